"""What every act on a case shares: lock it, know it as `casework.Work`, store what an act made of it, tell it.

Lock order: the case's row, its steps, then whatever the subject's handler locks. Two people who act at once meet at
the case's row; the second finds it as the first one left it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils.translation import gettext as _

from gpuyard.audit.services import Actor, event_record
from gpuyard.core import clock, hooks
from gpuyard.core.errors import Conflict, DomainError, Forbidden, StaleState
from gpuyard.core.models import User
from gpuyard.core.states import state_move
from tenants import casework
from tenants.casework import Refused, Work
from tenants.models import ApprovalPolicy, Case, CaseMessage, CaseState, CaseStep, StepState
from tenants.news import asked_settle
from tenants.policies import ApprovalDocument, Stage, Then, rule_named


@dataclass
class Held:
    """A case whose rows are locked until the end of the transaction; `steps` are those of its present round."""

    case: Case
    steps: list[CaseStep]

    @property
    def work(self) -> Work:
        return Work(
            requester=self.case.requester_id,
            state=self.case.state,
            round=self.case.round,
            steps=tuple(_pure(step) for step in self.steps),
        )

    def turn(self) -> list[CaseStep]:
        """The steps that may be decided now."""
        keys = {step.key for step in self.work.turn()}
        return [step for step in self.steps if step.pk in keys]


def _pure(step: CaseStep) -> casework.Step:
    return casework.Step(
        step.pk, step.order, step.needs, step.state, step.decided_by_id, step.on_behalf_of_id
    )


@dataclass(frozen=True)
class By:
    """Who acts: a person, in the own name or for somebody who is away; nobody: a rule, or time."""

    person: User | None = None
    on_behalf_of: User | None = None

    @property
    def actor(self) -> User | Actor | None:
        if self.person is None or self.on_behalf_of is None:
            return self.person
        return Actor(str(self.person), self.person.pk, on_behalf_of=str(self.on_behalf_of))


def case_hold(case: Case) -> Held:
    """Locks it and its steps."""
    locked = Case.objects.select_for_update(of=("self",)).select_related(
        "team", "company", "requester", "policy"
    )
    held = locked.get(pk=case.pk)
    steps = held.steps.select_for_update(of=("self",)).filter(round=held.round)
    return Held(held, list(steps.select_related("team", "requester")))


def played(act: Callable[[], Work]) -> Work:
    """Runs an act of `casework`; its refusal becomes words."""
    try:
        return act()
    except Refused as refused:
        raise _refusal(refused.code) from refused


def _refusal(code: str) -> DomainError:
    if code == "own_request":
        return own_request()
    if code == "decided_before":
        return decided_before()
    if code == "sent_back":
        return Conflict("case_sent_back", _("It waits for the requester’s answer. Look again later."))
    if code == "case_open":
        return Conflict("case_not_sent_back", _("Nothing has been asked that waits for an answer."))
    return StaleState("case_decided", _("This request has been decided already. Load it again."))


def own_request() -> Forbidden:
    return Forbidden(
        "own_request",
        _("Nobody decides on their own request."),
        remedy=_("Ask another manager, or withdraw it."),
    )


def decided_before() -> Forbidden:
    return Forbidden(
        "decided_before",
        _("You have had your say on this request."),
        remedy=_("Each of its steps is decided by another person."),
    )


# --- Storing ---------------------------------------------------------------------------------------------------


def work_store(held: Held, new: Work, act: str, by: By, *, reason: str = "") -> None:
    """Moves the steps and the case to what the act made of them, each with its event."""
    now = clock.now()
    stage_before = _stage_of(held.work)
    after = {step.key: step for step in new.steps}
    for step in held.steps:
        if after[step.pk].state != step.state:
            step_move(held.case, step, after[step.pk].state, by, now, reason)
    if new.state != held.case.state:
        case_move(held.case, new.state, act, by, now, reason)
    if new.is_live and (
        new.state == CaseState.SENT_BACK or act == "answer" or _stage_of(new) != stage_before
    ):
        stage_begin(held.case, now)


def _stage_of(work: Work) -> int:
    return min((step.stage for step in work.steps if step.state == casework.PENDING), default=0)


def step_move(case: Case, step: CaseStep, state: str, by: By, now: datetime, reason: str) -> None:
    old = step.state
    decided = state in (StepState.APPROVED, StepState.REJECTED)
    changes: dict[str, Any] = {}
    if decided:
        changes = {
            "decided_by": by.person,
            "on_behalf_of": by.on_behalf_of,
            "decided_at": now,
            "reason": reason,
        }
    state_move(CaseStep, step.pk, old=old, new=state, edges=casework.STEP_EDGES, **changes)
    for name, value in {"state": state, **changes}.items():
        setattr(step, name, value)
    if decided or state == StepState.VOID:
        event_record(
            company_id=case.company_id,
            actor=by.actor,
            action="case.step",
            subject=case,
            old={"step": step.order, "state": old},
            new={"step": step.order, "state": state, "role": step.role},
            reason=reason,
        )


def case_move(case: Case, state: str, act: str, by: By, now: datetime, reason: str) -> None:
    old, is_over = case.state, state not in casework.LIVE
    changes: dict[str, Any] = {"decided_at": now} if is_over else {}
    state_move(Case, case.pk, old=old, new=state, edges=casework.CASE_EDGES, **changes)
    case.state, case.decided_at = state, now if is_over else None
    asked_settle(case)
    event_record(
        company_id=case.company_id,
        actor=by.actor,
        action="case.state",
        subject=case,
        old={"state": old},
        new={"state": state, "rule": case.rule, "act": act},
        reason=reason,
    )


def message_add(
    case: Case, act: str, by: By, *, text: str = "", changes: Sequence[dict[str, Any]] = ()
) -> None:
    """Adds to the thread that everybody who may see the case reads."""
    CaseMessage.objects.create(
        case=case,
        round=case.round,
        act=act,
        author=by.person,
        on_behalf_of=by.on_behalf_of,
        text=text,
        changes=list(changes),
    )


# --- Stages and their time ---------------------------------------------------------------------------------------


def then_of(policy: ApprovalPolicy, rule: str) -> Then:
    """What the rule said that a case fell under, in the version that it fell under."""
    return rule_named(ApprovalDocument.model_validate(policy.document), rule)


def stage_rule(case: Case, order: int) -> Stage:
    """The rule's stage of this order, counted from 1."""
    return then_of(case.policy, case.rule).stages[order - 1]


def stage_begin(case: Case, now: datetime) -> None:
    """Starts the clock of the stage whose turn it is; while the requester is to answer, there is none."""
    timer = casework.Timer()
    if case.state == CaseState.OPEN:
        pending = case.steps.filter(round=case.round, state=StepState.PENDING).order_by("order").first()
        assert pending is not None
        hours = stage_rule(case, pending.order).deadline_h
        timer = casework.stage_timer(now, None if hours is None else timedelta(hours=hours))
    values = {"remind_at": timer.remind_at, "due_at": timer.due_at, "escalated_at": None}
    Case.objects.filter(pk=case.pk).update(**values)
    for name, value in values.items():
        setattr(case, name, value)


def life_of(then: Then, now: datetime) -> dict[str, datetime | None]:
    """When a case that is asked now expires, and when that is announced."""
    if then.expires_h is None:
        return {"expires_at": None, "notice_at": None, "noticed_at": None}
    lifetime = timedelta(hours=then.expires_h)
    expires_at = now + lifetime
    return {
        "expires_at": expires_at,
        "notice_at": expires_at - casework.notice_lead(lifetime),
        "noticed_at": None,
    }


# --- The subject -------------------------------------------------------------------------------------------------


def subject_check(case: Case) -> None:
    """Locks the subject; `Conflict` unless it still asks for what the case is about."""
    handler = hooks.case_handlers.get(case.subject_type)
    found = handler.fingerprint(subject_id=case.subject_id, lock=True)
    if found is None:
        raise subject_gone()
    if case.fingerprint and found != case.fingerprint:
        raise Conflict(
            "subject_changed",
            _("What is asked for has changed since this request was made."),
            remedy=_("Send it back, so that the requester amends it, or reject it."),
        )


def subject_gone() -> Conflict:
    return Conflict(
        "subject_gone",
        _("What was asked for is no longer waiting: there is nothing to approve."),
        remedy=_("Reject it to close it."),
    )


def subject_end(case: Case, by: By, reason: str) -> None:
    """Lets the subject's app act on the outcome. A subject that is gone needs nothing: the case just ends."""
    handler = hooks.case_handlers.get(case.subject_type)
    is_approved = case.state == CaseState.APPROVED
    if not is_approved and handler.fingerprint(subject_id=case.subject_id, lock=True) is None:
        return
    outcome: Any = str(case.state)
    handler.on_case_ended(
        case_id=case.pk, subject_id=case.subject_id, outcome=outcome, actor=by.person, reason=reason
    )
