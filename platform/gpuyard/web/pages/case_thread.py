"""What was said and done about a case, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from gpuyard.web.case_contexts import ThreadLine
from gpuyard.web.pages.rows import step_text
from tenants.inbox import case_messages
from tenants.models import Case, CaseMessage, CaseStep, StepState


def thread_lines(case: Case) -> list[ThreadLine]:
    """Oldest first."""
    voided = {step.round for step in case.steps.all() if step.state == StepState.VOID}
    return [_line(one, voided) for one in case_messages(case)]


def _line(message: CaseMessage, voided: set[int]) -> ThreadLine:
    who = message.author.username if message.author else _("GPU Yard")
    if message.on_behalf_of:
        who = _("%(who)s for %(person)s") % {"who": who, "person": message.on_behalf_of.username}
    changes = [_change(one) for one in message.changes]
    if message.act == "amend" and changes and message.round - 1 in voided:
        changes.append(_("What had been approved is void: it is asked anew."))
    return ThreadLine(who=who, what=_act(message), at=message.created_at, text=message.text, changes=changes)


def _act(message: CaseMessage) -> str:
    known = {
        "send_back": _("asks"),
        "answer": _("answers"),
        "amend": _("asked to change it") if message.changes else _("amended it"),
        "approve": _("approved"),
        "less": _("granted less"),
        "reject": _("rejected"),
        "escalate": _("past the deadline, asks more people"),
        "notice": _("it will expire undecided"),
        "expire": _("nobody decided in time"),
    }
    return known.get(message.act, message.act)


def _change(change: Mapping[str, Any]) -> str:
    """`GPUs: from 4 to 2`."""
    words = {
        "gpu_count": _("GPUs"),
        "hours": _("hours"),
        "estimated_cost": _("cost"),
        "tiers": _("tiers"),
        "priority": _("priority"),
        "over_quota": _("over the guarantee"),
        "asked": _("what"),
    }
    return _("%(what)s: from %(old)s to %(new)s") % {
        "what": words.get(change["name"], change["name"]),
        "old": _value(change["old"]),
        "new": _value(change["new"]),
    }


def _value(value: Any) -> str:
    if value is None or value == "":
        return _("nothing")
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    if isinstance(value, list):
        return ", ".join(str(one) for one in value)
    return str(value)


# --- Steps -------------------------------------------------------------------------------------------------------


def steps_lines(case: Case) -> list[str]:
    """The steps of the present round, each with who decides or decided; none where there is one step only."""
    steps = [one for one in case.steps.all() if one.round == case.round]
    return [_step(one) for one in steps] if len(steps) > 1 else []


def _step(step: CaseStep) -> str:
    who = _("%(order)s. %(who)s") % {"order": step.order, "who": step_text(step)}
    if step.decided_by is None:
        more = _("no longer needed") if step.state == StepState.SKIPPED else _("waits")
    elif step.on_behalf_of:
        more = _("%(state)s by %(by)s for %(person)s") % {
            "state": step.get_state_display().lower(),
            "by": step.decided_by.username,
            "person": step.on_behalf_of.username,
        }
    else:
        more = _("%(state)s by %(by)s") % {
            "state": step.get_state_display().lower(),
            "by": step.decided_by.username,
        }
    any_of = _(" (any of these is enough)") if step.needs == "any" else ""
    return f"{who}{any_of}: {more}"
