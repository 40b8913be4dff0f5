"""Every GPU as a cell, by pool and node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpuyard.core.models import User
from gpuyard.core.money import SLOTS_PER_GPU
from gpuyard.fleet.models import Node, NodeState, Tier
from gpuyard.fleet.selectors import gpus_left_out
from gpuyard.web import wording
from gpuyard.web.contexts import Cell, Choice, FleetPage, NodeRow, PoolRows, StateCount
from gpuyard.web.pages.supply import free_tiers
from scheduling.asked import number
from scheduling.promises import promises_short
from scheduling.selectors import fleet_list
from scheduling.supply import FleetNode, GpuCell
from tenants.models import Team

LATE, MOST_LEFT_OUT = timedelta(seconds=30), 20
ORDER = ("active", "starting", "claimed", "stopping", "free", "cordoned", "maintenance", "down", "unknown")
OUT = frozenset({"cordoned", "maintenance", "down", "unknown"})
CSV_HEADER = (
    "node",
    "pool",
    "gpu",
    "gpu_id",
    "tier",
    "state",
    "workload",
    "team",
    "node_state",
    "heard_from",
)


def build(actor: User, team: Team | None, tier: str) -> FleetPage:
    view = fleet_list(actor)
    every = [cell for node in view.nodes for cell in node.cells]
    tiers = [tier.name for tier in sorted({cell.gpu.tier for cell in every}, key=_dearest_first)]
    picked = tier if tier in tiers else ""
    rows = [row for node in _sorted(view.nodes) if (row := node_row(node, picked, view.as_of))]
    counts = Counter(cell.state for _pool, row in rows for cell in row.cells)
    return FleetPage(
        as_of=view.as_of,
        summary=_summary(len(rows), counts),
        counts=[StateCount(state=state, count=counts[state]) for state in ORDER if counts[state]],
        pools=_pools(rows),
        tiers=free_tiers(team),
        warnings=[*promises_short(), *(_left_out(actor) if actor.is_platform_admin else ())],
        tier_choices=[
            Choice(value="", label=_("All tiers"), selected=not picked),
            *(Choice(value=name, label=name, selected=name == picked) for name in tiers),
        ],
    )


def _left_out(actor: User) -> list[str]:
    """GPUs that agents reported and that are no part of the fleet, one sentence for each reason on a node.

    For platform admins, who can give them a tier.
    """
    counts = Counter((one.node_name, one.model, one.reason) for one in gpus_left_out(actor))
    return [
        ngettext(
            "%(n)s GPU of %(node)s (%(model)s) is not counted: %(reason)s.",
            "%(n)s GPUs of %(node)s (%(model)s) are not counted: %(reason)s.",
            count,
        )
        % {"n": count, "node": node, "model": model, "reason": reason.rstrip(".")}
        for (node, model, reason), count in list(counts.items())[:MOST_LEFT_OUT]
    ]


def _dearest_first(tier: Tier) -> tuple[int, int, str]:
    """As the card of free blocks has them."""
    return -tier.cost_rank, -tier.memory_mib, tier.name


def _sorted(nodes: Iterable[FleetNode]) -> list[FleetNode]:
    """By tier, then name; nodes without a GPU last."""
    return sorted(
        nodes,
        key=lambda node: (
            not node.cells,
            min((_dearest_first(cell.gpu.tier) for cell in node.cells), default=(0, 0, "")),
            node.node.name,
        ),
    )


def csv_rows(actor: User, tier: str) -> Iterator[tuple[object, ...]]:
    for node in fleet_list(actor).nodes:
        for cell in node.cells:
            if tier and cell.gpu.tier.name != tier:
                continue
            yield (
                node.node.name,
                node.node.pool.name,
                cell.gpu.index,
                cell.gpu.public_id,
                cell.gpu.tier.name,
                cell_state(node.node, cell),
                cell.holder.workload_public_id if cell.holder else None,
                cell.holder.team_name if cell.holder else None,
                condition_of(node.node),
                node.node.last_sync_at.isoformat(timespec="seconds") if node.node.last_sync_at else None,
            )


def cell_state(node: Node, cell: GpuCell) -> str:
    """A key of wording.GPU_STATES."""
    if cell.state == "held":
        return "active" if cell.is_running else "starting"
    if cell.state == "unconfirmed":
        return "unknown"
    if cell.state == "free" and node.state != NodeState.READY:
        return "unknown"
    if cell.state == "free" and (node.cordoned or node.draining):
        return "cordoned"
    return cell.state


def condition_of(node: Node) -> str:
    if node.state != NodeState.READY:
        return str(node.state)
    return "draining" if node.draining else "cordoned" if node.cordoned else "ready"


def _summary(nodes: int, counts: Counter[str]) -> str:
    total, free = sum(counts.values()), counts["free"]
    out = sum(counts[state] for state in OUT)
    used = total - free - out
    text = ngettext("%(n)s node", "%(n)s nodes", nodes) % {"n": nodes}
    gpus = ngettext("%(n)s GPU", "%(n)s GPUs", total) % {"n": total}
    return _("%(nodes)s, %(gpus)s. %(free)s free, %(used)s held, %(out)s out of service.") % {
        "nodes": text,
        "gpus": gpus,
        "free": free,
        "used": used,
        "out": out,
    }


def node_row(node: FleetNode, tier: str, as_of: datetime) -> tuple[str, NodeRow] | None:
    shown = [cell for cell in node.cells if not tier or cell.gpu.tier.name == tier]
    if tier and not shown:
        return None
    row, found = node.node, [_cell(node.node, cell) for cell in shown]
    names = dict.fromkeys(cell.gpu.tier.name for cell in shown)
    return row.pool.name, NodeRow(
        id=row.public_id,
        name=row.name,
        tier=", ".join(names) or _("no GPU reported"),
        condition=condition_of(row),
        cells=found,
        held=sum(cell.state in ("active", "starting", "claimed", "stopping") for cell in found),
        free=sum(cell.state == "free" for cell in found),
        cpu_free_m=row.cpu_total_m - row.cpu_used_m,
        cpu_total_m=row.cpu_total_m,
        memory_free_mib=row.memory_total_mib - row.memory_used_mib,
        memory_total_mib=row.memory_total_mib,
        synced_at=row.last_sync_at,
        late=row.last_sync_at is None or as_of - row.last_sync_at > LATE,
        agent_version=row.agent_version,
    )


def _cell(node: Node, cell: GpuCell) -> Cell:
    state = cell_state(node, cell)
    words = [f"{node.name} gpu {cell.gpu.index}: {wording.state_word(state).label}"]
    if 0 < cell.slots_held < SLOTS_PER_GPU:
        words.append(_("%s of it held") % number(cell.slots_held, SLOTS_PER_GPU))
    if cell.holder:
        words.append(f"{cell.holder.workload_name} ({cell.holder.team_name})")
    elif cell.is_others:
        words.append(_("another team"))
    if cell.condition_reason and state in OUT:
        words.append(cell.condition_reason)
    url = reverse("web:workload", args=[cell.holder.workload_public_id]) if cell.holder else ""
    island = cell.gpu.island.index if cell.gpu.island else 0
    return Cell(index=cell.gpu.index, state=state, title=", ".join(words), island=island, url=url)


def _pools(rows: list[tuple[str, NodeRow]]) -> list[PoolRows]:
    by_pool: dict[str, list[NodeRow]] = {}
    for pool, row in rows:
        by_pool.setdefault(pool, []).append(row)
    return [
        PoolRows(name=pool, detail=", ".join(dict.fromkeys(row.tier for row in nodes)), nodes=nodes)
        for pool, nodes in sorted(by_pool.items())
    ]
