"""Deciding on cases: approve, approve less, reject, send back with a question; one by one or many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from gpuyard.audit.services import event_record
from gpuyard.core import hooks
from gpuyard.core.errors import Conflict, DomainError, FieldError, Forbidden, Invalid
from gpuyard.core.models import User
from gpuyard.core.text import text_check
from tenants import casework
from tenants.approvers import delegations_now, for_another_q, own_name_q, people_asked
from tenants.caseflow import (
    By,
    Held,
    case_hold,
    decided_before,
    message_add,
    own_request,
    played,
    subject_check,
    subject_end,
    work_store,
)
from tenants.cases import LONGEST_TEXT, facts_changes
from tenants.inbox import case_get
from tenants.models import Case, CaseState, CaseStep
from tenants.telling import tell_asked, tell_requester

MOST_AT_ONCE = 100


@transaction.atomic
def case_decide(
    *,
    actor: User,
    case_public_id: str,
    approve: bool,
    reason: str = "",
    seen_round: int | None = None,
    less: Mapping[str, int] | None = None,
) -> Case:
    """Decides the step whose turn it is. A rejection ends the case; the last approval approves it.

    `seen_round` is that of the request which was looked at: `Conflict` if it was amended since. `less` grants less
    than was asked for, as the subject's app allows: it is changed in the same transaction.
    """
    reason = text_check(reason, field="reason", longest=LONGEST_TEXT, is_optional=True)
    if not approve and not reason:
        raise Invalid(
            "reason_missing",
            _("A rejection needs a reason."),
            field="reason",
            remedy=_("Say in a sentence why, so that the requester knows what to change."),
        )
    held, step, by = _turn_held(actor, case_public_id, seen_round)
    if approve:
        subject_check(held.case)
        if less:
            _less_apply(held.case, less, by, reason)
    act, move = ("approve", casework.approve) if approve else ("reject", casework.reject)
    behalf = by.on_behalf_of.pk if by.on_behalf_of else None
    work_store(
        held,
        played(lambda: move(held.work, step.pk, by=actor.pk, on_behalf_of=behalf)),
        act,
        by,
        reason=reason,
    )
    message_add(held.case, act, by, text=reason)
    if held.case.state == CaseState.OPEN:
        tell_asked(held.case, act)
    else:
        subject_end(held.case, by, reason)
        tell_requester(held.case, act, by, text=reason)
    return case_get(actor, case_public_id)


@transaction.atomic
def case_send_back(
    *,
    actor: User,
    case_public_id: str,
    question: str,
    seen_round: int | None = None,
) -> Case:
    """Asks the requester something. Nobody decides, and no deadline runs, until the answer; expiry goes on."""
    question = text_check(question, field="question", longest=LONGEST_TEXT)
    held, step, by = _turn_held(actor, case_public_id, seen_round)
    behalf = by.on_behalf_of.pk if by.on_behalf_of else None
    new = played(lambda: casework.send_back(held.work, step.pk, by=actor.pk, on_behalf_of=behalf))
    message_add(held.case, "send_back", by, text=question)
    work_store(held, new, "send_back", by, reason=question)
    tell_requester(held.case, "send_back", by, text=question)
    return case_get(actor, case_public_id)


# --- Many at once ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decided:
    """What became of one case of many: its state, or why nothing was decided."""

    case_public_id: str
    state: str | None
    error: DomainError | None = None


def cases_decide(
    *, actor: User, case_public_ids: Sequence[str], approve: bool, reason: str = ""
) -> list[Decided]:
    """Decides on each for itself: what is refused for one leaves the others decided."""
    wanted = list(dict.fromkeys(case_public_ids))
    if not 0 < len(wanted) <= MOST_AT_ONCE:
        raise Invalid(
            "cases_count",
            _("Decide on 1 to %(most)s requests at once.") % {"most": MOST_AT_ONCE},
            field="cases",
            remedy=_("Choose fewer."),
        )
    return [_decided(actor, one, approve, reason) for one in wanted]


def _decided(actor: User, public_id: str, approve: bool, reason: str) -> Decided:
    try:
        case = case_decide(actor=actor, case_public_id=public_id, approve=approve, reason=reason)
    except DomainError as refused:
        return Decided(public_id, None, refused)
    return Decided(public_id, case.state)


# --- Whose decision it is ----------------------------------------------------------------------------------------


def _turn_held(
    actor: User,
    case_public_id: str,
    seen_round: int | None,
) -> tuple[Held, CaseStep, By]:
    """The case, locked, with the step that the actor decides, and in whose name."""
    held = case_hold(case_get(actor, case_public_id))
    if held.case.state != CaseState.OPEN:
        played(lambda: casework.approve(held.work, None, by=actor.pk))
    if held.case.requester_id == actor.pk:
        raise own_request()
    if seen_round is not None and seen_round != held.case.round:
        raise Conflict(
            "case_changed",
            _("The requester has changed what is asked for since you looked."),
            field="round",
            remedy=_("Look at it again, then decide."),
        )
    turn = CaseStep.objects.filter(pk__in=[step.pk for step in held.turn()]).order_by("position")
    if (step := _scarcest(turn.filter(own_name_q(actor)))) is not None:
        return held, step, By(actor)
    for delegation in delegations_now(actor):
        if actor.pk in held.work.deciders():
            break
        if (step := _scarcest(turn.filter(for_another_q(delegation)))) is not None:
            return held, step, By(actor, delegation.person)
    if actor.pk in held.work.deciders():
        raise decided_before()
    raise Forbidden(
        "not_the_approver",
        _("This request waits for somebody else's decision."),
        remedy=_("Its page says who may decide."),
    )


def _scarcest(steps: QuerySet[CaseStep]) -> CaseStep | None:
    """Of several that somebody may decide, the one that the fewest others may: the rest is left to them."""
    found = list(steps.select_related("case", "team", "up_team"))
    if len(found) < 2:
        return found[0] if found else None
    return min(found, key=lambda step: (len(people_asked([step])), step.position))


# --- Less ----------------------------------------------------------------------------------------------------------


def less_fields(case: Case) -> Sequence[hooks.LessField]:
    """What an approver may grant less of."""
    return hooks.case_handlers.get(case.subject_type).less_fields(subject_id=case.subject_id)


def less_check(case: Case, less: Mapping[str, Any], *, field: str = "less") -> dict[str, int]:
    """The values, each a whole number below what is asked for now; `Invalid` names what is not."""
    fields = {one.name: one for one in less_fields(case)}
    errors = []
    for name, value in less.items():
        known = fields.get(name)
        if known is None:
            choices = ", ".join(fields) or "–"
            remedy = _("Choose from: %(choices)s.") % {"choices": choices}
            text = _("That cannot be granted less.")
            errors.append(FieldError(f"{field}.{name[:80]}", "unknown_field", text, remedy))
        elif isinstance(value, bool) or not isinstance(value, int) or not known.least <= value <= known.most:
            remedy = _("Give a whole number from %(least)s to %(most)s.") % {
                "least": known.least,
                "most": known.most,
            }
            text = _("This is not less than was asked for.")
            errors.append(FieldError(f"{field}.{name}", "not_less", text, remedy))
    if errors:
        raise Invalid("less_invalid", _("That cannot be granted."), errors=errors)
    return {name: value for name, value in less.items() if value != fields[name].now}


def _less_apply(case: Case, less: Mapping[str, int], by: By, reason: str) -> None:
    values = less_check(case, less)
    if not values:
        return
    handler = hooks.case_handlers.get(case.subject_type)
    handler.apply_less(subject_id=case.subject_id, less=values, actor=by.person, reason=reason)
    before = case.granted or case.facts
    granted = {**case.facts, **handler.facts_now(subject_id=case.subject_id).facts}
    for kept in ("day", "time", "teams"):
        granted[kept] = case.facts.get(kept, granted.get(kept))
    changes = facts_changes(before, granted)
    case.granted, case.fingerprint = granted, handler.fingerprint(subject_id=case.subject_id) or ""
    Case.objects.filter(pk=case.pk).update(granted=granted, fingerprint=case.fingerprint)
    event_record(
        company_id=case.company_id,
        actor=by.actor,
        action="case.less",
        subject=case,
        old={one["name"]: one["old"] for one in changes},
        new={one["name"]: one["new"] for one in changes},
        reason=reason,
    )
    message_add(case, "less", by, changes=changes)
