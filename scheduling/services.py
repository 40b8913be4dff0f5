"""Giving GPUs back: what people do to workloads. Asking is in `submit`; what agents do to them is in `lifecycle`.

Lock order: a case before its workload.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from gpuyard.audit.services import event_draft, events_record
from gpuyard.core import clock
from gpuyard.core.errors import Conflict, StaleState
from gpuyard.core.models import User
from gpuyard.core.states import states_move
from gpuyard.core.text import text_check
from scheduling import lifecycle
from scheduling.claims import claims_end_of
from scheduling.models import Verdict, Workload
from scheduling.outcomes import EndReason
from scheduling.states import WORKLOAD_EDGES, WORKLOAD_ENDED, WorkloadState
from scheduling.submit import CASE_SUBJECT, HIGHEST_PRIORITY, workload_submit
from tenants.inbox import case_live_of
from tenants.models import Role
from tenants.selectors import ADMIN, role_require
from tenants.services import case_withdraw

__all__ = [
    "CASE_SUBJECT",
    "HIGHEST_PRIORITY",
    "array_stop",
    "workload_stop",
    "workload_submit",
]


def workload_stop(*, actor: User, workload: Workload, reason: str = "") -> Workload:
    """Takes a workload back: by its owner, a manager of its team or an admin. Twice is once.

    Waiting for approval: its case is withdrawn (one member of an array alone leaves the case to the others). Waiting
    for GPUs: cancelled. Placed: it stops, and ends once its agents say so. Ended: `Conflict`.
    """
    reason = _may_stop(actor, workload, reason)
    for _turn in range(3):
        workload.refresh_from_db()
        try:
            with transaction.atomic():
                return _stop(actor, workload, reason)
        except StaleState:
            continue  # it was just approved, or just placed: look again
    raise StaleState()


def array_stop(*, actor: User, workload: Workload, reason: str = "") -> int:
    """Takes back whatever of the workload's array has not ended; returns how many that was."""
    reason = _may_stop(actor, workload, reason)
    if workload.array_id is None:
        raise Conflict("no_array", _("This workload is no member of an array."))
    members = request_members(workload.case_subject_id)
    with transaction.atomic():
        stopped = _withdraw(actor, workload, reason)
    with transaction.atomic():
        stopped += len(workloads_cancel(members, WorkloadState.WAITING, actor, reason))
    for member in members.exclude(state__in=[*WORKLOAD_ENDED, WorkloadState.STOPPING]):
        workload_stop(actor=actor, workload=member, reason=reason)
        stopped += 1
    return stopped


def _may_stop(actor: User, workload: Workload, reason: str) -> str:
    if workload.owner_id != actor.pk:
        role_require(actor, workload.team, Role.MANAGER, ADMIN)
    return text_check(reason, field="reason", longest=400, is_optional=True)


def _stop(actor: User, workload: Workload, reason: str) -> Workload:
    if workload.state in WORKLOAD_ENDED:
        raise Conflict(
            "workload_ended",
            _("This workload has ended already: %(state)s.") % {"state": workload.get_state_display()},
        )
    itself = Workload.objects.filter(pk=workload.pk)
    if workload.state == WorkloadState.PENDING_APPROVAL:
        others = request_members(workload.case_subject_id).exclude(pk=workload.pk)
        if others.filter(state=WorkloadState.PENDING_APPROVAL).exists():
            found = workloads_cancel(itself, WorkloadState.PENDING_APPROVAL, actor, reason)
        else:
            found = [workload] * _withdraw(actor, workload, reason)
    elif workload.state == WorkloadState.WAITING:
        found = workloads_cancel(itself, WorkloadState.WAITING, actor, reason)
    else:
        return lifecycle.workload_stop_begin(workload_id=workload.pk, actor=actor, reason=reason)
    if not found:
        raise StaleState()
    workload.refresh_from_db()
    return workload


def _withdraw(actor: User, workload: Workload, reason: str) -> int:
    """Withdraws the open case, which cancels all that waits for it; returns how many wait no longer."""
    subject = workload.case_subject_id
    pending = request_members(subject).filter(state=WorkloadState.PENDING_APPROVAL).count()
    case = case_live_of(CASE_SUBJECT, subject)
    if case is None:  # it was decided since we looked
        return 0
    case_withdraw(actor=actor, case_public_id=case.public_id, reason=reason)
    return pending


# --- Moving many at once ---------------------------------------------------------------------------------------


def request_members(subject_id: UUID) -> QuerySet[Workload]:
    """What was asked for with one request: a workload, or all members of the array whose first member it is."""
    return Workload.objects.filter(Q(pk=subject_id) | Q(array=subject_id))


def workloads_cancel(found: QuerySet[Workload], old: str, actor: User | None, reason: str) -> list[Workload]:
    """Cancels those that are `old`: they hold nothing, so that they end at once. What they claimed is given up."""
    lifecycle.nodes_lock(lifecycle.claims_nodes(found))
    cancelled = workloads_move(
        found,
        old,
        WorkloadState.CANCELLED,
        action="workload.cancel",
        actor=actor,
        reason=reason,
        state_reason=reason,
        stop_requested_by=actor,
        ended_at=clock.now(),
    )
    keys = [one.pk for one in cancelled]
    claims_end_of(keys, clock.now(), EndReason.STOP_REQUESTED, actor)
    Verdict.objects.filter(workload__in=keys).delete()
    return cancelled


def workloads_move(
    found: QuerySet[Workload],
    old: str,
    new: str,
    *,
    action: str,
    actor: User | None,
    reason: str,
    **changes: Any,
) -> list[Workload]:
    """Moves those that are `old`, each with its event; returns them."""
    moved = states_move(found, old=old, new=new, edges=WORKLOAD_EDGES, **changes)
    rule = changes.get("approved_by_rule")
    told = {"rule": rule} if rule else {}
    events_record(
        event_draft(
            company_id=one.company_id,
            actor=actor,
            action=action,
            subject=one,
            old={"state": old},
            new={"state": new, **told},
            reason=reason,
        )
        for one in moved
    )
    return moved
