"""Who is told what about a case. The one place that knows: services say what happened, this says to whom."""

from __future__ import annotations

from collections.abc import Sequence

from gpuyard.audit.services import event_record
from gpuyard.core.models import User
from tenants.approvers import people_asked, steps_next
from tenants.caseflow import By
from tenants.models import Case
from tenants.news import asked_tell, requester_tell


def tell_asked(case: Case, act: str, *, text: str = "") -> list[User]:
    """Those whose turn it is. `act`: `open`, `approve` (a stage is done), `answer`, `amend`, or one of time."""
    steps = steps_next().filter(case=case).select_related("case", "team", "up_team")
    people = people_asked(list(steps))
    _tell(case, act, people, text)
    asked_tell(case, act, people, text)
    return people


def tell_requester(case: Case, act: str, by: By, *, text: str = "") -> None:
    """Who asked: `approve`, `reject`, `send_back`, `withdraw` (by somebody else), `expire`, `notice`."""
    _tell(case, act, [case.requester], text)
    requester_tell(case, act, str(by.person or ""), text)


_BY_TIME = ("remind", "escalate", "notice")


def _tell(case: Case, act: str, people: Sequence[User], text: str) -> None:
    # What people did has its event already; that time did something is recorded with whom it was told.
    if act in _BY_TIME:
        event_record(
            company_id=case.company_id,
            actor=None,
            action=f"case.{act}",
            subject=case,
            new={"told": [person.username for person in people]},
            reason=text,
        )
