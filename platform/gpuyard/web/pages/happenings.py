"""A workload's events in people's words. What no one wrote words for yet is shown under its own name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from gpuyard.audit.models import Event
from gpuyard.web import wording
from gpuyard.web.workload_contexts import EventRow
from scheduling.outcomes import EndReason

Told = Mapping[str, Any]

WHAT = {
    "workload.submit": gettext_lazy("Requested"),
    "workload.approve": gettext_lazy("Approved, in line for GPUs"),
    "workload.reject": gettext_lazy("Rejected"),
    "workload.start": gettext_lazy("Placed"),
    "workload.claim": gettext_lazy("Promised GPUs, once others have left"),
    "workload.unclaim": gettext_lazy("Its promised GPUs went to others"),
    "workload.grow": gettext_lazy("Grew"),
    "workload.shrink": gettext_lazy("Made smaller"),
    "workload.run": gettext_lazy("Running"),
    "workload.stop": gettext_lazy("Stopping"),
    "workload.succeed": gettext_lazy("Succeeded"),
    "workload.fail": gettext_lazy("Failed"),
    "workload.requeue": gettext_lazy("Back in line for GPUs"),
    "workload.node_lost": gettext_lazy("Its node is not heard from"),
    "workload.node_back": gettext_lazy("Its node is heard from again"),
}
ATTEMPT = {
    "claiming": gettext_lazy("Attempt %(n)s: GPUs reserved"),
    "starting": gettext_lazy("Attempt %(n)s: starting"),
    "running": gettext_lazy("Attempt %(n)s: running"),
    "stopping": gettext_lazy("Attempt %(n)s: stopping"),
    "ended": gettext_lazy("Attempt %(n)s: ended"),
}
REPLICA = {
    "claiming": gettext_lazy("Replica %(n)s: GPUs reserved"),
    "assigned": gettext_lazy("Replica %(n)s: handed to its node"),
    "starting": gettext_lazy("Replica %(n)s: its program is being started"),
    "running": gettext_lazy("Replica %(n)s: its program runs"),
    "stopping": gettext_lazy("Replica %(n)s: told to end"),
    "exited": gettext_lazy("Replica %(n)s: ended, its GPUs are free"),
    "lost": gettext_lazy("Replica %(n)s: not heard from"),
}
CASE = {
    "open": gettext_lazy("Approval asked for"),
    "approved": gettext_lazy("Approval given"),
    "rejected": gettext_lazy("Approval refused"),
    "withdrawn": gettext_lazy("Request for approval withdrawn"),
}
EXITS = {
    "signal": gettext_lazy("ended by a signal"),
    "time_limit": gettext_lazy("time limit reached"),
    "lease": gettext_lazy("its node was cut off"),
    "start_failed": gettext_lazy("it could not start"),
    "stopped": gettext_lazy("stopped"),
    "shim_lost": gettext_lazy("what watched over it was killed"),
    "lost_on_reboot": gettext_lazy("its node restarted"),
    "node_lost": gettext_lazy("its node was lost"),
}


def event_row(event: Event) -> EventRow:
    told = event.new if isinstance(event.new, dict) else {}
    before = event.old if isinstance(event.old, dict) else {}
    if event.action == "workload.grow":
        told = {}  # the reason says all of it
    elif event.reason:
        told = {**told, "why": ""}  # the reason says it better
    detail = wording.sentence(", ".join(filter(None, _detail(event.action, told))))
    return EventRow(
        at=event.created_at,
        what=_what(event.action, told, before),
        actor=_("GPU Yard") if event.actor_label == "system" else event.actor_label,
        detail=". ".join(filter(None, [detail, event.reason])),
        sealed=event.sequence is not None,
    )


def _what(action: str, told: Told, before: Told) -> str:
    subject, _dot, verb = action.partition(".")
    if action == "workload.cancel":
        return _("Cancelled") if before.get("state") == "stopping" else _("Withdrawn")
    if action == "case.open" and told.get("state") == "approved":
        return _("Needs no approval")
    if action == "case.step":
        return _step(told)
    if action == "case.state":
        verb = str(told.get("state", verb))
    words = {"attempt": ATTEMPT, "replica": REPLICA, "case": CASE}.get(subject, WHAT)
    found = words.get(action if words is WHAT else verb)
    if found is None:
        return wording.sentence(action.replace(".", " ").replace("_", " "))
    return str(found) % {"n": told.get("number", told.get("index", ""))}


def _step(told: Told) -> str:
    role = str(told.get("role", ""))
    return _("Approved by a %s") % role if told.get("state") == "approved" else _("Rejected by a %s") % role


def _detail(action: str, told: Told) -> list[str]:
    subject, _dot, _verb = action.partition(".")
    details = DETAILS.get(action) or DETAILS.get(subject)
    return details(told) if details else []


def _submit(told: Told) -> list[str]:
    request = told.get("request") or {}
    count = int(request.get("gpus_per_replica", 0)) * int(request.get("replicas_max", 1))
    limit = told.get("time_limit_s")
    return [
        wording.gpus(count, _(" or ").join(request.get("tiers", []))) if count else "",
        _("for at most %s") % wording.duration(limit) if limit else _("no time limit"),
        _("priority %s") % told["priority"] if told.get("priority") else "",
    ]


def _start(told: Told) -> list[str]:
    gpus = int(told.get("gpus", 0))
    return [
        ngettext("%(n)s GPU", "%(n)s GPUs", gpus) % {"n": gpus},
        _("borrowed, beyond the guarantee") if told.get("borrowed") else _("inside the guarantee"),
        _again(told),
    ]


def _shrunk(told: Told) -> list[str]:
    count = len(told.get("replicas") or ())
    return [ngettext("by %(n)s replica", "by %(n)s replicas", count) % {"n": count}]


def _again(told: Told) -> str:
    number = told.get("attempt", 1)
    return _("attempt %s") % number if number != 1 else ""


def _moved(told: Told) -> list[str]:
    code = told.get("exit_code")
    return [
        _("rule “%s”") % told["rule"] if told.get("rule") else "",
        _end_reason(told.get("why")),
        _("exit code %s") % code if code is not None else "",
        _again(told),
    ]


def _at_node(told: Told) -> list[str]:
    return [_("on %s") % told["node"]] if told.get("node") else []


def _attempt(told: Told) -> list[str]:
    return [_end_reason(told.get("end_reason"))]


def _replica(told: Told) -> list[str]:
    code, reason = told.get("exit_code"), str(told.get("exit_reason", ""))
    return [
        *_at_node(told),
        _("exit code %s") % code if code is not None else "",
        str(EXITS.get(reason, "")),
    ]


def _case(told: Told) -> list[str]:
    return [_("rule “%s”") % told["rule"]] if told.get("rule") else []


def _end_reason(value: Any) -> str:
    label = dict(EndReason.choices).get(value) if value else None
    text = str(label or "")
    return text[:1].lower() + text[1:]


DETAILS: dict[str, Callable[[Told], list[str]]] = {
    "workload.submit": _submit,
    "workload.start": _start,
    "workload.claim": _start,
    "workload.shrink": _shrunk,
    "workload.unclaim": lambda _told: [],
    "workload.node_lost": _at_node,
    "workload.node_back": _at_node,
    "workload": _moved,
    "attempt": _attempt,
    "replica": _replica,
    "case": _case,
}
