"""What a node does now: its GPUs, and who has which of them or which part, until when."""

from __future__ import annotations

from django.urls import reverse
from django.utils.translation import gettext as _

from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.fleet.models import Node
from gpuyard.web.contexts import NodeNow, NodeWorkRow
from gpuyard.web.pages.fleet import node_row
from gpuyard.web.pages.rows import part_memory
from gpuyard.web.pages.workload import gpus_text
from scheduling.ends import ends_at
from scheduling.selectors import fleet_list
from scheduling.states import AllocationState
from scheduling.supply import NodeWork, node_work


def build(actor: User, node: Node) -> NodeNow:
    view = fleet_list(actor, node_public_id=node.public_id)
    drawn = [row for one in view.nodes if (row := node_row(one, "", view.as_of))]
    return NodeNow(
        as_of=clock.now(),
        row=drawn[0][1] if drawn else None,
        work=[_work(one) for one in node_work(actor, node)],
    )


def _work(found: NodeWork) -> NodeWorkRow:
    first = found.rows[0]
    workload, is_part = first.workload, first.scope is not None
    slots = sum(piece.upper - piece.lower for piece in first.slots)
    return NodeWorkRow(
        name=_("another team") if found.is_hidden else workload.name,
        url="" if found.is_hidden else reverse("web:workload", args=[workload.public_id]),
        team="" if found.is_hidden else workload.team.name,
        gpus=gpus_text(found.rows),
        memory=part_memory(slots, first.tier) if is_part else "",
        state=_state(first.state, first.running_at is not None),
        until=ends_at(first),
    )


def _state(state: str, is_running: bool) -> str:
    """A key of wording.GPU_STATES."""
    if state == AllocationState.HELD:
        return "active" if is_running else "starting"
    return "unknown" if state == AllocationState.UNCONFIRMED else state
