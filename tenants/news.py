"""The words in which people are told about cases. Whom to tell is for `tenants.telling` to say."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from gpuyard.core import ids
from gpuyard.core.models import User
from gpuyard.notify.events import APP, EMAIL, HOOK, EventType
from gpuyard.notify.services import about_settle, notify
from tenants.models import Case, StepState

ASKED = EventType(
    "case.asked",
    gettext_lazy("A request waits for your decision"),
    frozenset({APP, EMAIL, HOOK}),
    may_be_off=False,
)
DUE = EventType(
    "case.due",
    gettext_lazy("A request that waits for you is about to be late"),
    frozenset({APP, EMAIL, HOOK}),
    is_urgent=True,
)
ANSWERED = EventType(
    "case.answered",
    gettext_lazy("Your request is decided, asked back or about to end"),
    frozenset({APP, EMAIL, HOOK}),
)
EVENTS = (ASKED, DUE, ANSWERED)

_ONCE_A_STAGE = ("open", "approve", "amend")


def asked_tell(case: Case, act: str, people: Sequence[User], text: str) -> None:
    """Those whose turn it is. However many acts lead to a stage, its news are told once."""
    if act == "amend":
        asked_settle(case)  # what they were told is not what is asked now
    key = f"stage:{case.round}:{_stage(case)}" if act in _ONCE_A_STAGE else str(ids.uuid7())
    event = ASKED if act in (*_ONCE_A_STAGE, "answer") else DUE
    subject = _("%(who)s asks: %(what)s") if event is ASKED else _("Still waits for you: %(what)s")
    notify(
        people,
        event.key,
        subject % {"who": case.requester.username, "what": case.subject_label},
        facts=_facts((_("Why"), case.justification), (_("Answer"), text if act == "answer" else "")),
        url=f"/approvals?case={case.public_id}",
        dedupe_key=f"case:{case.pk}:{key}",
        about=_about_asked(case),
        company_id=case.company_id,
        team_path=case.team.path,
    )


def requester_tell(case: Case, act: str, by: str, text: str) -> None:
    """Who asked."""
    notify(
        [case.requester],
        ANSWERED.key,
        _answer(act) % {"what": case.subject_label},
        facts=_facts((_("By"), by), (_("Question") if act == "send_back" else _("Reason"), text)),
        url=f"/approvals?case={case.public_id}",
        dedupe_key=f"case:{case.pk}:{ids.uuid7()}",
        about=f"case:{case.pk}",
        company_id=case.company_id,
        team_path=case.team.path,
    )


def asked_settle(case: Case) -> None:
    """Nobody needs to decide now: what they were told is done with."""
    about_settle(_about_asked(case))


def _about_asked(case: Case) -> str:
    return f"case:{case.pk}:asked"


def _stage(case: Case) -> int:
    pending = case.steps.filter(round=case.round, state=StepState.PENDING).order_by("order")
    return pending.values_list("order", flat=True).first() or 0


def _facts(*pairs: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(pair for pair in pairs if pair[1])


def _answer(act: str) -> str:
    return {
        "approve": _("Approved: %(what)s"),
        "reject": _("Rejected: %(what)s"),
        "send_back": _("A question about %(what)s"),
        "withdraw": _("Withdrawn: %(what)s"),
        "expire": _("Nobody decided in time: %(what)s"),
        "notice": _("About to expire: %(what)s"),
    }.get(act, _("News of %(what)s"))
