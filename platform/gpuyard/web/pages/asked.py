"""What was asked for beside GPUs and a command: lines of the workload page, and the array it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _

from gpuyard.core.models import User
from gpuyard.web import wording
from gpuyard.web.contexts import ArrayChip
from scheduling.models import Workload
from scheduling.selectors import array_counts
from scheduling.specs import Request, Topology, request_of
from scheduling.visibility import workloads_named


def request_lines(actor: User, request: Request, as_of: datetime) -> list[tuple[str, str]]:
    """Label and value of whatever was chosen; nothing for what was left open."""
    lines = [
        (_("Of several GPUs"), _choice(request)),
        (_("Elastic"), _("replicas come and go while it runs") if request.elastic else ""),
        (_("Only nodes with"), ", ".join(request.node_labels)),
        (_("No nodes with"), ", ".join(request.not_labels)),
        (_("Not on"), ", ".join(request.not_nodes)),
        (_("Close together"), _topology(request.topology) if request.topology else ""),
        (_("Spread over"), request.spread_level or ""),
        (_("Not before"), wording.clock(request.not_before, as_of) if request.not_before else ""),
        (_("After"), _dependencies(actor, request.depends_on)),
        (_("Runs at least"), wording.duration(request.min_run_s) if request.min_run_s else ""),
        (
            _("Starting again costs"),
            wording.duration(request.restart_cost_s) if request.restart_cost_s else "",
        ),
    ]
    return [(label, value) for label, value in lines if value]


def _choice(request: Request) -> str:
    if len(request.tiers) < 2 and request.capabilities is None:
        return ""
    return _("the best result per cost") if request.tier_choice == "value" else _("the first that is free")


def _topology(topology: Topology) -> str:
    parts = [_("all in one %s") % topology.required] if topology.required else []
    if topology.preferred:
        wish = _("in one %s if possible") % topology.preferred
        if topology.wait_s:
            wish = _("%(wish)s, for %(wait)s") % {"wish": wish, "wait": wording.duration(topology.wait_s)}
        parts.append(wish)
    return ", ".join(parts)


def _dependencies(actor: User, names: Sequence[str]) -> str:
    """Links to what the reader may see; the others keep their ids."""
    known = {one.public_id: one for one in workloads_named(actor, names)}
    return format_html_join(", ", "{}", ((_dependency(name, known.get(name)),) for name in names))


def _dependency(name: str, workload: Workload | None) -> str:
    if workload is None:
        return name
    url = reverse("web:workload", args=[name])
    label = str(wording.state_word(workload.state).label)
    return format_html('<a href="{}">{}</a> ({})', url, workload.name, label)


# ───────── arrays ─────────


def array_chip(workload: Workload, states: str = "") -> ArrayChip | None:
    if workload.array is None or workload.array_index is None or workload.spec is None:
        return None
    array = request_of(workload.spec.document).array
    count = array.count if array else 1
    return ArrayChip(id=workload.array.public_id, number=workload.array_index + 1, count=count, states=states)


def array_states(actor: User, workloads: Sequence[Workload]) -> dict[UUID | None, str]:
    """Array → what its members do, the most frequent state first."""
    arrays = {one.array_id for one in workloads if one.array_id}
    return {
        array_id: ", ".join(
            f"{count} {str(wording.state_word(state).label).lower()}" for state, count in counts
        )
        for array_id, counts in array_counts(actor, arrays).items()
    }
