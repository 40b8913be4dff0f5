"""What time does to cases: reminders, escalation, a notice before the end, and the end.

Run every minute; safe to run twice, and beside itself. Whatever fell due while nobody ran it is done once, now, and
nothing expires that was not announced a fair time before (`casework.acts_due`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from django.db import transaction
from django.db.models import F, Q

from gpuyard.core import clock
from gpuyard.core.errors import DomainError
from tenants import casework
from tenants.approvers import approver_above
from tenants.caseflow import By, Held, case_hold, message_add, stage_rule
from tenants.cases import case_end
from tenants.models import Case, CaseState, CaseStep
from tenants.telling import tell_asked, tell_requester

_BATCH = 500


def cases_tick() -> int:
    """Does what is due; returns how many cases something was done with."""
    now = clock.now()
    return sum(_one(case, now) for case in _due(now)[:_BATCH])


def _due(now: datetime) -> list[Case]:
    stage = Q(state=CaseState.OPEN) & (Q(remind_at__lte=now) | Q(due_at__lte=now, escalated_at__isnull=True))
    life = Q(notice_at__lte=now, noticed_at__isnull=True) | Q(expires_at__lte=now, noticed_at__isnull=False)
    found = Case.objects.filter(stage | life, state__in=casework.LIVE)
    return list(found.order_by(F("expires_at").asc(nulls_last=True), "id"))


def _one(seen: Case, now: datetime) -> bool:
    try:
        with transaction.atomic():
            held = case_hold(seen)
            case = held.case
            timer = casework.Timer(
                case.remind_at,
                case.due_at,
                case.escalated_at,
                case.notice_at,
                case.noticed_at,
                case.expires_at,
            )
            acts = casework.acts_due(timer, now, state=case.state) if held.work.is_live else ()
            for act in acts:
                _ACTS[act](held, now)
            return bool(acts)
    except DomainError:  # its subject is just being changed by somebody else: next time
        return False


def _remind(held: Held, now: datetime) -> None:
    _set(held.case, remind_at=None)
    tell_asked(held.case, "remind")


def _escalate(held: Held, now: datetime) -> None:
    """More people may decide; those who were asked still may."""
    case = held.case
    _set(case, remind_at=None, escalated_at=now)
    for step in held.turn():
        escalation = stage_rule(case, step.order).escalate
        if escalation is None:
            continue
        above = approver_above(escalation, step)
        CaseStep.objects.filter(pk=step.pk).update(
            up_team=above.team, up_role=above.role, up_group=above.group, escalated_at=now
        )
    tell_asked(case, "escalate")
    message_add(case, "escalate", By())


def _notice(held: Held, now: datetime) -> None:
    """Says that it will expire, to both sides; a late notice moves the end."""
    case = held.case
    assert case.expires_at is not None
    assert case.notice_at is not None
    lead = case.expires_at - case.notice_at
    _set(case, noticed_at=now, expires_at=casework.expiry_after_notice(case.expires_at, now, lead))
    message_add(case, "notice", By())
    if case.state == CaseState.OPEN:
        tell_asked(case, "notice")
    tell_requester(case, "notice", By())


def _expire(held: Held, now: datetime) -> None:
    message_add(held.case, "expire", By())
    case_end(held, "expire", By(), "")


_ACTS: dict[str, Callable[[Held, datetime], None]] = {
    "remind": _remind,
    "escalate": _escalate,
    "notice": _notice,
    "expire": _expire,
}


def _set(case: Case, **values: datetime | None) -> None:
    Case.objects.filter(pk=case.pk).update(**values)
    for name, value in values.items():
        setattr(case, name, value)
