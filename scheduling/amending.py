"""Changing what a workload asks for while it waits for approval: by its owner, or by an approver who grants less.

A spec never changes: each change is a new revision. All members of an array share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _

from gpuyard.audit.services import event_draft, events_record
from gpuyard.core.errors import FieldError, Invalid, StaleState
from gpuyard.core.hooks import LessField
from gpuyard.core.models import User
from scheduling.models import Workload, WorkloadSpec
from scheduling.references import references_check
from scheduling.services import request_members
from scheduling.sizes import tiers_of
from scheduling.spec_types import MOST_SECONDS
from scheduling.specs import Spec, spec_parse
from scheduling.states import WorkloadState
from scheduling.submit import HIGHEST_PRIORITY, priority_check

AMENDABLE = ("spec", "priority")


def pending_members(subject_id: UUID, *, lock: bool = False) -> list[Workload]:
    """What of a request still waits for approval, the first member first."""
    found = request_members(subject_id).filter(state=WorkloadState.PENDING_APPROVAL).select_related("spec")
    if lock:
        found = found.select_for_update(no_key=True, of=("self",))
    return list(found.order_by("id"))


def request_amend(*, subject_id: UUID, changes: Mapping[str, Any], actor: User, reason: str) -> None:
    """`changes`: a whole new `spec`, or a `priority`, or both. An array keeps its members."""
    if unknown := [name for name in changes if name not in AMENDABLE]:
        raise Invalid(
            "unknown_field",
            _("That cannot be amended."),
            field=f"changes.{str(unknown[0])[:80]}",
            remedy=_("Choose from: %(choices)s.") % {"choices": ", ".join(AMENDABLE)},
        )
    members = pending_members(subject_id, lock=True)
    if not members:
        raise StaleState()
    priority = priority_check(changes["priority"]) if "priority" in changes else members[0].priority
    spec = _spec(members[0])
    if "spec" in changes:
        new = spec_parse(changes["spec"])
        tiers_of(new.request)
        references_check(actor, new.request)
        _same_members(spec, new)
        spec = new
    _store(members, spec, priority, actor, reason, "workload.amend")


def request_less_fields(subject_id: UUID) -> tuple[LessField, ...]:
    """GPUs, replicas and time can be fewer, the priority lower."""
    members = pending_members(subject_id)
    if not members:
        return ()
    spec = _spec(members[0])
    asked = spec.request
    fields = []
    if not asked.is_part and asked.gpus_per_replica > 1:
        now = asked.gpus_per_replica
        fields.append(LessField("gpus_per_replica", _("GPUs of each replica"), now, 1, now))
    if asked.replicas_max > 1:
        fields.append(LessField("replicas", _("Replicas"), asked.replicas_max, 1, asked.replicas_max))
    limit = spec.time_limit_s
    fields.append(LessField("time_limit_s", _("Time limit, seconds"), limit, 1, limit or MOST_SECONDS))
    now = members[0].priority
    fields.append(LessField("priority", _("Priority"), now, -HIGHEST_PRIORITY, now))
    return tuple(fields)


def request_less(*, subject_id: UUID, less: Mapping[str, int], actor: User, reason: str) -> None:
    """Stores the request with the smaller numbers."""
    members = pending_members(subject_id, lock=True)
    if not members:
        raise StaleState()
    document = _spec(members[0]).as_json()
    asked = document["request"]
    if "gpus_per_replica" in less:
        asked["gpus_per_replica"] = less["gpus_per_replica"]
    if "replicas" in less:
        asked["replicas_max"] = less["replicas"]
        asked["replicas_min"] = min(asked["replicas_min"], less["replicas"])
        asked["elastic"] = asked["elastic"] and asked["replicas_min"] < asked["replicas_max"]
    if "time_limit_s" in less:
        document["time_limit_s"] = less["time_limit_s"]
    priority = less.get("priority", members[0].priority)
    _store(members, spec_parse(document), priority, actor, reason, "workload.less")


def _spec(member: Workload) -> Spec:
    assert member.spec is not None
    return spec_parse(member.spec.document)


def _same_members(old: Spec, new: Spec) -> None:
    errors = [
        FieldError(
            f"spec.request.{name}",
            "fixed",
            _("This cannot be changed after submitting."),
            _("Withdraw the request and ask again."),
        )
        for name in ("array", "depends_on")
        if getattr(old.request, name) != getattr(new.request, name)
    ]
    if errors:
        raise Invalid("amendment_invalid", _("The request is not valid."), errors=errors)


def _store(
    members: Sequence[Workload], spec: Spec, priority: int, actor: User, reason: str, action: str
) -> None:
    first = members[0]
    assert first.spec is not None
    old, document = first.spec, spec.as_json()
    if document == _spec(first).as_json() and priority == first.priority:
        return
    revision = WorkloadSpec.objects.create(
        workload=old.workload, revision=old.revision + 1, document=document
    )
    found = Workload.objects.filter(pk__in=[one.pk for one in members])
    found.update(spec=revision, priority=priority)
    events_record(
        event_draft(
            company_id=one.company_id,
            actor=actor,
            action=action,
            subject=one,
            old=_told(first.priority, old.revision, old.document),
            new=_told(priority, revision.revision, document),
            reason=reason,
        )
        for one in members
    )


def _told(priority: int, revision: int, document: Mapping[str, Any]) -> dict[str, Any]:
    # not the whole spec: commands and variables may hold secrets, and the revision never changes
    return {
        "priority": priority,
        "spec_revision": revision,
        "time_limit_s": document["time_limit_s"],
        "request": document["request"],
    }
