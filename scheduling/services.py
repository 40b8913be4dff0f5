"""Asking for GPUs and giving them back: what people do to workloads. What agents do to them is in `lifecycle`.

A workload begins by waiting for approval, if only for an instant: a rule that says "auto" moves it on in the same
transaction. Lock order: a case before its workload.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from gpuyard.audit.services import event_record
from gpuyard.core import clock
from gpuyard.core.errors import Conflict, DomainError, FieldError, Invalid, StaleState
from gpuyard.core.hooks import CardFact
from gpuyard.core.models import User
from gpuyard.core.states import state_move
from gpuyard.core.text import text_check
from gpuyard.fleet.models import Tier
from scheduling import lifecycle
from scheduling.bands import band_check
from scheduling.facts import asked_text, kind_check, request_facts, tiers_named
from scheduling.models import Kind, Verdict, Workload, WorkloadSpec
from scheduling.specs import Spec, spec_parse
from scheduling.states import WORKLOAD_EDGES, WORKLOAD_ENDED, WorkloadState
from scheduling.supply import free_text
from scheduling.wake import wake
from tenants.models import Case, CaseState, Role, Team
from tenants.policies import Facts
from tenants.selectors import ADMIN, company_of, role_require
from tenants.services import case_open, case_withdraw

CASE_SUBJECT = "workload"
HIGHEST_PRIORITY = 1000
_T = TypeVar("_T")


# --- Submitting ------------------------------------------------------------------------------------------


def workload_submit(
    *,
    actor: User,
    team: Team,
    name: str,
    kind: str,
    spec: Any,
    priority: int = 0,
    preemptible: bool | None = None,
    justification: str = "",
    submission_key: str = "",
    band: int = 0,
) -> Workload:
    """Stores a request of a member of the team; it waits for approval or, where a rule lets it, for GPUs.

    The same `submission_key` again, from the same person, is the same workload: a form posted twice, at once even,
    makes one. `spec` is the document as it was sent. Everything that is wrong is said in one `Invalid`.
    """
    role_require(actor, team, Role.MEMBER, Role.MANAGER)
    key = text_check(submission_key, field="submission_key", longest=200, is_optional=True)
    if key and (earlier := _submitted(actor, key)):
        return earlier
    asked = _Asked(name, kind, spec, priority, preemptible, justification, lambda: band_check(team, band))
    try:
        with transaction.atomic():
            return _submit(actor, team, asked, key)
    except IntegrityError as exc:
        # The database made us wait for the other one with this key, and it has committed.
        if key and "submitted_once" in str(exc) and (earlier := _submitted(actor, key)):
            return earlier
        raise


def _submitted(actor: User, key: str) -> Workload | None:
    workloads = Workload.objects.select_related("team", "spec", "owner")
    return workloads.filter(owner=actor, submission_key=key).first()


class _Asked:
    """What was sent, checked: attributes are clean values."""

    def __init__(
        self,
        name: Any,
        kind: Any,
        spec: Any,
        priority: Any,
        preemptible: bool | None,
        justification: Any,
        band: Callable[[], int],
    ) -> None:
        errors: list[FieldError] = []
        self.name = _try(errors, lambda: text_check(name, field="name", longest=120), "")
        self.kind = _try(errors, lambda: kind_check(kind), "")
        self.priority = _try(errors, lambda: _priority_check(priority), 0)
        self.band = _try(errors, band, 0)
        self.justification = _try(
            errors,
            lambda: text_check(justification, field="justification", longest=2000, is_optional=True),
            "",
        )
        parsed = _try(errors, lambda: spec_parse(spec), None)
        self.tiers: tuple[Tier, ...] = ()
        if parsed:
            self.tiers = _try(errors, lambda: tiers_named(parsed.request.tiers), ())
        if errors or parsed is None:
            raise Invalid("workload_invalid", _("The request is not valid."), errors=errors)
        self.spec: Spec = parsed
        # What has checkpoints loses little; the rest is only evicted if its owner said so.
        has_checkpoints = self.kind == Kind.TRAINING and parsed.checkpoint_dir is not None
        self.preemptible = has_checkpoints if preemptible is None else preemptible


def _try(errors: list[FieldError], check: Callable[[], _T], otherwise: _T) -> _T:
    """Runs one check; what it objects to is added to `errors`."""
    try:
        return check()
    except Invalid as exc:
        errors.extend(exc.errors)
        return otherwise


def _priority_check(priority: Any) -> int:
    if isinstance(priority, int) and not isinstance(priority, bool) and abs(priority) <= HIGHEST_PRIORITY:
        return priority
    raise Invalid(
        "out_of_range",
        _("This is no priority."),
        field="priority",
        remedy=_("Give a whole number from −1000 to 1000; 0 is usual."),
    )


def _submit(actor: User, team: Team, asked: _Asked, key: str) -> Workload:
    facts = request_facts(team, asked.kind, asked.spec, priority=asked.priority, tiers=asked.tiers).facts
    workload = _store(actor, team, asked, key)
    case_open(
        company=company_of(team),
        team=team,
        subject_type=CASE_SUBJECT,
        subject_id=workload.pk,
        subject_label=f"{workload.name}: {asked_text(asked.spec.request)}"[:200],
        requester=actor,
        justification=asked.justification,
        facts=facts,
    )
    return Workload.objects.select_related("team", "spec", "owner").get(pk=workload.pk)


def _store(actor: User, team: Team, asked: _Asked, key: str) -> Workload:
    workload = Workload.objects.create(
        company_id=team.company_id,
        team=team,
        owner=actor,
        name=asked.name,
        kind=asked.kind,
        priority=asked.priority,
        band=asked.band,
        preemptible=asked.preemptible,
        state=WorkloadState.PENDING_APPROVAL,
        submission_key=key,
        justification=asked.justification,
    )
    document = asked.spec.as_json()
    workload.spec = WorkloadSpec.objects.create(workload=workload, revision=1, document=document)
    workload.save(update_fields=["spec"])
    event_record(
        company_id=workload.company_id,
        actor=actor,
        action="workload.submit",
        subject=workload,
        # not the whole spec: commands and variables may hold secrets, and the revision never changes
        new={
            "state": workload.state,
            "team": team.public_id,
            "kind": workload.kind,
            "priority": workload.priority,
            "band": workload.band,
            "spec_revision": 1,
            "time_limit_s": asked.spec.time_limit_s,
            "request": document["request"],
        },
        reason=asked.justification,
    )
    return workload


# --- Stopping --------------------------------------------------------------------------------------------


def workload_stop(*, actor: User, workload: Workload, reason: str = "") -> Workload:
    """Takes a workload back: by its owner, a manager of its team or an admin. Twice is once.

    Waiting for approval: its case is withdrawn. Waiting for GPUs: cancelled. Placed: it stops, and ends once its
    agents say so. Ended: `Conflict`.
    """
    if workload.owner_id != actor.pk:
        role_require(actor, workload.team, Role.MANAGER, ADMIN)
    reason = text_check(reason, field="reason", longest=400, is_optional=True)
    for _turn in range(3):
        workload.refresh_from_db()
        try:
            with transaction.atomic():
                return _stop(actor, workload, reason)
        except StaleState:
            continue  # it was just approved, or just placed: look again
    raise StaleState()


def _stop(actor: User, workload: Workload, reason: str) -> Workload:
    if workload.state in WORKLOAD_ENDED:
        raise Conflict(
            "workload_ended",
            _("This workload has ended already: %(state)s.") % {"state": workload.get_state_display()},
        )
    if workload.state == WorkloadState.PENDING_APPROVAL:
        case = Case.objects.filter(
            subject_type=CASE_SUBJECT, subject_id=workload.pk, state=CaseState.OPEN
        ).first()
        if case is None:  # it was decided since we looked
            raise StaleState()
        case_withdraw(actor=actor, case_public_id=case.public_id, reason=reason)
    elif workload.state == WorkloadState.WAITING:
        _cancel(workload.pk, WorkloadState.WAITING, actor, reason)
    else:
        return lifecycle.workload_stop_begin(workload_id=workload.pk, actor=actor, reason=reason)
    workload.refresh_from_db()
    return workload


def _cancel(workload_id: UUID, old: str, actor: User, reason: str) -> None:
    _move(
        workload_id,
        old,
        WorkloadState.CANCELLED,
        action="workload.cancel",
        actor=actor,
        reason=reason,
        state_reason=reason,
        stop_requested_by=actor,
        ended_at=clock.now(),
    )
    Verdict.objects.filter(workload=workload_id).delete()


def _move(
    workload_id: UUID, old: str, new: str, *, action: str, actor: User | None, reason: str, **changes: Any
) -> None:
    state_move(Workload, workload_id, old=old, new=new, edges=WORKLOAD_EDGES, **changes)
    workload = Workload.objects.get(pk=workload_id)
    told = {"rule": workload.approved_by_rule} if changes.get("approved_by_rule") else {}
    event_record(
        company_id=workload.company_id,
        actor=actor,
        action=action,
        subject=workload,
        old={"state": old},
        new={"state": new, **told},
        reason=reason,
    )


# --- What cases do to their workloads ------------------------------------------------------------------------


class WorkloadCases:
    """The handler of cases about workloads (`core.hooks.case_handlers`)."""

    def on_case_decided(
        self, *, case_id: UUID, subject_id: UUID, approved: bool, actor: Any, reason: str
    ) -> None:
        """Approved: it waits for GPUs from now on, and the pass is woken. Rejected: it has ended."""
        pending, now = WorkloadState.PENDING_APPROVAL, clock.now()
        if approved:
            rule = "" if actor else Case.objects.values_list("rule", flat=True).get(pk=case_id)
            changes = {"approved_by_rule": rule, "queued_at": now}
            new, action = WorkloadState.WAITING, "workload.approve"
        else:
            changes = {"state_reason": reason[:400], "ended_at": now}
            new, action = WorkloadState.REJECTED, "workload.reject"
        _move(subject_id, pending, new, action=action, actor=actor, reason=reason, **changes)
        if approved:
            wake()

    def on_case_withdrawn(self, *, case_id: UUID, subject_id: UUID, actor: Any, reason: str) -> None:
        """It is cancelled."""
        _cancel(subject_id, WorkloadState.PENDING_APPROVAL, actor, reason)

    def card_facts(self, *, subject_id: UUID) -> Sequence[CardFact]:
        """What is asked, quota before and after, price, and what is free now."""
        workload = Workload.objects.select_related("spec", "team").get(pk=subject_id)
        assert workload.spec is not None
        spec = spec_parse(workload.spec.document)
        facts = [
            CardFact("asked", _("Asks for"), asked_text(spec.request)),
            CardFact("time_limit", _("For"), _duration(spec.time_limit_s)),
        ]
        try:
            known = request_facts(workload.team, workload.kind, spec, priority=workload.priority)
        except DomainError as exc:  # a tier that is gone meanwhile: say so instead of hiding the card
            return [*facts, CardFact("tiers", _("Tiers"), str(exc.errors[0].message))]
        if workload.band:
            text = _("Band %(band)s: before all fair share") % {"band": workload.band}
            facts.append(CardFact("band", _("Critical"), text))
        for check in known.quota:
            facts.append(
                CardFact("quota", _("Guarantee, %(tier)s") % {"tier": check.tier.name}, check.text())
            )
        facts.append(CardFact("estimate", _("Estimated cost"), _price(known.facts)))
        for supply in free_text(workload.team, known.tiers):
            facts.append(CardFact("free", _("Free now"), supply))
        return facts


def _duration(time_limit_s: int | None) -> str:
    if time_limit_s is None:
        return _("no time limit")
    hours, minutes = divmod(time_limit_s // 60, 60)
    parts = [f"{hours} h"] if hours else []
    parts += [f"{minutes} m"] if minutes or not hours else []
    return _("at most %(time)s") % {"time": " ".join(parts)}


def _price(facts: Facts) -> str:
    if facts.estimated_cost is None:
        return _("not known: no time limit, or no price for it")
    return f"{facts.estimated_cost} {facts.currency}"
