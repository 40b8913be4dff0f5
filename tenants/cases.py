"""Cases: opening one, and what its requester does with it. Deciding is in `tenants.deciding`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils.translation import gettext as _

from gpuyard.audit.services import event_record
from gpuyard.core import clock, hooks
from gpuyard.core.errors import Forbidden
from gpuyard.core.models import User
from gpuyard.core.text import text_check
from tenants import casework
from tenants.approvers import approver_of
from tenants.caseflow import (
    By,
    Held,
    case_hold,
    case_move,
    life_of,
    message_add,
    played,
    stage_begin,
    step_move,
    subject_end,
    subject_gone,
    work_store,
)
from tenants.inbox import case_get
from tenants.models import ApprovalPolicy, Case, CaseState, CaseStep, Team
from tenants.policies import Facts, RuleMatch, facts_from_json
from tenants.rules import rule_for
from tenants.selectors import ADMIN, role_require
from tenants.telling import tell_asked, tell_requester

LONGEST_TEXT = 2000


@transaction.atomic
def case_open(
    *,
    company: Team,
    team: Team,
    subject_type: str,
    subject_id: UUID,
    subject_label: str,
    requester: User,
    justification: str,
    facts: Facts,
) -> Case:
    """Opens a case under the rule that fits. A rule that says "auto" approves it at once, and its handler acts."""
    now = clock.now()
    policy, match = rule_for(team, facts, now)
    handler = hooks.case_handlers.get(subject_type)
    case = Case.objects.create(
        company=company,
        team=team,
        subject_type=subject_type,
        subject_id=subject_id,
        subject_label=subject_label,
        requester=requester,
        justification=justification,
        policy=policy,
        rule=match.rule,
        facts=match.facts.as_json(),
        fingerprint=handler.fingerprint(subject_id=subject_id) or "",
        state=CaseState.APPROVED if match.is_auto else CaseState.OPEN,
        decided_at=now if match.is_auto else None,
        **life_of(match.then, now),
    )
    event_record(
        company_id=company.pk,
        actor=requester,
        action="case.open",
        subject=case,
        new={"state": case.state, "rule": case.rule, "policy_version": policy.version, "facts": case.facts},
        reason=justification,
    )
    if match.is_auto:
        subject_end(case, By(), "")
    else:
        _stages_create(case, match, now)
        tell_asked(case, "open")
    return case


def _stages_create(case: Case, match: RuleMatch, now: datetime) -> None:
    """The steps of the case's present round; and its first stage begins."""
    for order, stage in enumerate(match.then.stages, start=1):
        for position, step in enumerate(stage.steps, start=1):
            approver = approver_of(step, team=case.team, requester=case.requester)
            CaseStep.objects.create(
                case=case,
                round=case.round,
                order=order,
                position=position,
                needs=stage.needs,
                team=approver.team,
                role=approver.role,
                group=approver.group,
                requester_id=case.requester_id,
            )
    stage_begin(case, now)


# --- The requester ---------------------------------------------------------------------------------------------


@transaction.atomic
def case_answer(*, actor: User, case_public_id: str, answer: str) -> Case:
    """Answers the question that a request was sent back with; the step that asked waits for its decision again."""
    answer = text_check(answer, field="answer", longest=LONGEST_TEXT)
    held = _own_held(actor, case_public_id)
    new = played(lambda: casework.answer(held.work))
    message_add(held.case, "answer", By(actor), text=answer)
    work_store(held, new, "answer", By(actor), reason=answer)
    tell_asked(held.case, "answer", text=answer)
    return case_get(actor, case_public_id)


@transaction.atomic
def case_amend(
    *,
    actor: User,
    case_public_id: str,
    changes: Mapping[str, Any],
    justification: str | None = None,
    reason: str = "",
) -> Case:
    """Changes what is asked for (the subject's app says how), or why. It answers a question, too.

    What is material (the handler's fingerprint differs) asks anew, under the rules of today: approvals of what was
    asked before are void.
    """
    reason = text_check(reason, field="reason", longest=LONGEST_TEXT, is_optional=True)
    held = _own_held(actor, case_public_id)
    played(lambda: casework.amend(held.work, None))
    case, handler = held.case, hooks.case_handlers.get(held.case.subject_type)
    before = handler.fingerprint(subject_id=case.subject_id, lock=True)
    if changes:
        handler.amend(subject_id=case.subject_id, changes=changes, actor=actor, reason=reason)
    after = handler.fingerprint(subject_id=case.subject_id, lock=True)
    if before is None or after is None:
        raise subject_gone()
    if justification is not None:
        _justify(case, justification, actor)
    if after == (case.fingerprint or before):
        _go_on(held, By(actor), reason)
    else:
        _ask_anew(held, after, By(actor), reason)
    return case_get(actor, case_public_id)


def _justify(case: Case, justification: str, actor: User) -> None:
    text = text_check(justification, field="justification", longest=LONGEST_TEXT, is_optional=True)
    event_record(
        company_id=case.company_id,
        actor=actor,
        action="case.justify",
        subject=case,
        old={"justification": case.justification},
        new={"justification": text},
    )
    Case.objects.filter(pk=case.pk).update(justification=text)
    case.justification = text


def _go_on(held: Held, by: By, reason: str) -> None:
    """Nothing that matters has changed."""
    was_asked = held.case.state == CaseState.SENT_BACK
    message_add(held.case, "amend", by, text=reason)
    act = "answer" if was_asked else "amend"
    work_store(held, casework.amend(held.work, None), act, by, reason=reason)
    if was_asked:
        tell_asked(held.case, "answer", text=reason)


def _ask_anew(held: Held, fingerprint: str, by: By, reason: str) -> None:
    case, now = held.case, clock.now()
    subject = hooks.case_handlers.get(case.subject_type).facts_now(subject_id=case.subject_id)
    policy, match = rule_for(case.team, facts_from_json(subject.facts), now)
    steps = [casework.Step((order, 0), order) for order, _stage in enumerate(match.then.stages, start=1)]
    new = casework.amend(held.work, steps)
    differing = facts_changes(case.facts, match.facts.as_json())
    for step, then in zip(held.steps, new.earlier, strict=True):
        if then.state != step.state:
            step_move(case, step, then.state, by, now, reason)
    old = {"round": case.round, "rule": case.rule, "policy_version": case.policy.version}
    _round_begin(case, policy, match, fingerprint, subject.label, now)
    event_record(
        company_id=case.company_id,
        actor=by.actor,
        action="case.amend",
        subject=case,
        old={**old, **{one["name"]: one["old"] for one in differing}},
        new={
            "round": case.round,
            "rule": case.rule,
            "policy_version": policy.version,
            **{one["name"]: one["new"] for one in differing},
        },
        reason=reason,
    )
    message_add(case, "amend", by, text=reason, changes=differing)
    if new.state != case.state:
        case_move(case, new.state, "amend", by, now, reason)
    if match.is_auto:
        subject_end(case, By(), "")
        tell_requester(case, "approve", By())
    else:
        _stages_create(case, match, now)
        tell_asked(case, "amend", text=reason)


def _round_begin(
    case: Case, policy: ApprovalPolicy, match: RuleMatch, fingerprint: str, label: str, now: datetime
) -> None:
    values = {
        "round": case.round + 1,
        "policy": policy,
        "rule": match.rule,
        "facts": match.facts.as_json(),
        "granted": None,
        "fingerprint": fingerprint,
        "subject_label": label[:200],
        **life_of(match.then, now),
    }
    Case.objects.filter(pk=case.pk).update(**values)
    for name, value in values.items():
        setattr(case, name, value)


def facts_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What differs between two sets of facts, as the thread and the log keep it. When it was asked is no change."""
    names = [name for name in new if name not in ("day", "time", "teams")]
    return [
        {"name": name, "old": old.get(name), "new": new[name]}
        for name in names
        if old.get(name) != new[name] and (name in old or new[name])
    ]


@transaction.atomic
def case_withdraw(*, actor: User, case_public_id: str, reason: str = "") -> Case:
    """Takes an open request back: by its requester, a manager of the team or an admin. Its subject is cancelled."""
    reason = text_check(reason, field="reason", longest=LONGEST_TEXT, is_optional=True)
    held = case_hold(case_get(actor, case_public_id))
    if held.case.requester_id != actor.pk:
        role_require(actor, held.case.team, "manager", ADMIN)
    case_end(held, "withdraw", By(actor), reason)
    return case_get(actor, case_public_id)


def case_end(held: Held, act: str, by: By, reason: str) -> None:
    """`withdraw` or `expire`: nobody decided, and the subject's app ends it."""
    new = played(lambda: casework.end(held.work, act))
    work_store(held, new, act, by, reason=reason)
    subject_end(held.case, by, reason)
    if by.person is None or by.person.pk != held.case.requester_id:
        tell_requester(held.case, act, by, text=reason)


def _own_held(actor: User, case_public_id: str) -> Held:
    """One's own case, locked."""
    seen = case_get(actor, case_public_id)
    if seen.requester_id != actor.pk:
        raise Forbidden(
            "requester_only",
            _("Only who asked for it may do this."),
            remedy=_("Send it back with a question instead."),
        )
    return case_hold(seen)
