"""What the fleet has: free GPUs by tier for a request, and every GPU with who holds it for the fleet page.

Capacity is no secret: everybody signed in sees it. Who holds a GPU is shown inside the reader's own teams only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Sum
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpuyard.core import clock
from gpuyard.core.hooks import Holder
from gpuyard.core.models import User
from gpuyard.core.money import SLOTS_PER_GPU, UNITS_PER_GPU
from gpuyard.fleet.models import Condition, Gpu, GpuCondition, Node, NodeState, Tier
from scheduling.ends import ends_at
from scheduling.loader_fleet import levels_and_domains
from scheduling.models import Allocation, Workload
from scheduling.policies import policy_current
from scheduling.specs import Request
from scheduling.states import ALLOCATION_LIVE
from scheduling.visibility import workloads_visible_q
from tenants.models import Team
from tenants.selectors import pools_closed_to, teams_visible

# --- By tier -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeSupply:
    """GPUs of one tier on one node. `free` counts ready ones that nothing holds, where new work may start."""

    node_id: UUID
    node_name: str
    total: int
    ready: int
    free: int
    cpu_total_m: int
    cpu_free_m: int
    memory_total_mib: int
    memory_free_mib: int
    parts: tuple[int, ...] = ()  # free slots of the cards that shares of the team are on
    domain: str = ""  # that of the level which a request must stay inside

    def could_ever_hold(self, request: Request, slots: int = SLOTS_PER_GPU) -> bool:
        """Whether one replica fits onto the node when it is empty and whole. `slots`: of each of its GPUs."""
        return (
            self.total >= request.gpus_per_replica
            and slots <= SLOTS_PER_GPU
            and self.cpu_total_m >= request.cpu_m
            and self.memory_total_mib >= request.memory_mib
        )

    def replicas_now(self, request: Request, slots: int = SLOTS_PER_GPU) -> int:
        """How many replicas would fit at this moment. Shares of a team lie on cards of their own."""
        pieces = [*self.parts, *[SLOTS_PER_GPU] * self.free]
        return min(
            sum(piece // slots for piece in pieces)
            if request.is_part
            else self.free // request.gpus_per_replica,
            self.cpu_free_m // request.cpu_m,
            self.memory_free_mib // request.memory_mib,
        )


@dataclass(frozen=True)
class TierSupply:
    """One tier as a team may use it: pools dedicated to others are left out."""

    tier: Tier
    nodes: tuple[NodeSupply, ...]
    as_of: datetime

    @property
    def total(self) -> int:
        return sum(node.total for node in self.nodes)

    @property
    def free(self) -> int:
        return sum(node.free for node in self.nodes)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Free GPUs on each node that has any, the largest first."""
        return tuple(sorted((node.free for node in self.nodes if node.free), reverse=True))

    @property
    def largest_block(self) -> int:
        return max((node.free for node in self.nodes), default=0)

    @property
    def largest_node(self) -> int:
        return max((node.total for node in self.nodes), default=0)

    def never_fits(self, request: Request) -> bool:
        """Whether no node that has joined could hold one replica, even if it were empty."""
        slots = request.slots_on(self.tier.memory_mib)
        return not any(node.could_ever_hold(request, slots) for node in self.nodes)

    def fits_now(self, request: Request) -> bool:
        """Whether the gang would find room at this moment, in one domain where it asks for that; the queue aside."""
        slots, room = request.slots_on(self.tier.memory_mib), Counter[str]()
        for node in self.nodes:
            room[node.domain] += node.replicas_now(request, slots)
        return max(room.values(), default=0) >= request.replicas_min


def tier_supply(team: Team | None, tiers: Iterable[Tier], request: Request | None = None) -> list[TierSupply]:
    """The tiers in the given order, for a team (None: for anybody), in three queries.

    With a request only the nodes that it chooses, and what is left of the cards that the team's shares are on.
    """
    wanted, as_of = list(tiers), clock.now()
    closed = pools_closed_to(team) if team else set()
    by_tier: dict[UUID, list[NodeSupply]] = defaultdict(list)
    rows = _supply_rows([tier.pk for tier in wanted], closed, nodes_chosen(request))
    parts = _parts(team, wanted) if team and request and request.is_part else {}
    domains = _domains(request)
    for row in rows:
        node, domain = _node_supply(row), domains(row["node_id"])
        if domain is None:  # it stands in none, so that nothing that must stay inside one fits there
            node = replace(node, free=0)
        elif row["is_open"]:
            node = replace(node, parts=parts.get((row["tier_id"], node.node_id), ()), domain=domain)
        by_tier[row["tier_id"]].append(node)
    return [TierSupply(tier, tuple(by_tier[tier.pk]), as_of) for tier in wanted]


def nodes_chosen(request: Request | None) -> Q:
    """The condition, on GPUs, that a request's labels and exclusions make."""
    if request is None:
        return Q()
    chosen = Q(node__labels__contains=list(request.node_labels)) if request.node_labels else Q()
    if request.not_labels:
        chosen &= ~Q(node__labels__overlap=list(request.not_labels))
    if request.not_nodes:
        names = list(request.not_nodes)
        chosen &= ~Q(node__name__in=names) & ~Q(node__public_id__in=names)
    return chosen


def _parts(team: Team, tiers: Sequence[Tier]) -> dict[tuple[UUID, UUID], tuple[int, ...]]:
    """(tier, node) → what is left of each card that has shares, of the team's scope."""
    own = Q(scope=share_scope_of(team))
    found: dict[tuple[UUID, UUID], list[int]] = defaultdict(list)
    # a card that somebody of another scope is on takes none of these, as while the policy changes
    cards = (
        Allocation.objects.filter(state__in=ALLOCATION_LIVE, tier__in=tiers)
        .values_list("tier_id", "gpu__node_id", "gpu_id")
        .annotate(units=Sum("units"))
        .alias(others=Count("pk", filter=~own))
        .filter(others=0)
    )
    for tier_id, node_id, _gpu, units in cards:
        left = SLOTS_PER_GPU - units * SLOTS_PER_GPU // UNITS_PER_GPU
        found[tier_id, node_id].append(max(0, left))
    return {key: tuple(pieces) for key, pieces in found.items()}


def share_scope_of(team: Team) -> UUID:
    """Whose shares may lie on one card with the team's, by the policy in force: its own, or its company's."""
    return team.company_id if policy_current().share_scope == "company" else team.pk


def _domains(request: Request | None) -> Callable[[UUID], str | None]:
    """Node → its domain at the level that the request must stay inside; "" for all where there is no such level."""
    level = request.topology.required if request and request.topology else None
    if level is None:
        return lambda node_id: ""
    levels, named = levels_and_domains()
    if level not in levels:  # a node, or an island in it
        return str
    column = levels.index(level)
    rows = Node.objects.exclude(domain=None).values_list("pk", "domain_id")
    known = {node_id: named[str(domain_id)][column] for node_id, domain_id in rows}
    return lambda node_id: known.get(node_id) or None


def gpu_groups(
    tier_ids: Sequence[UUID], closed: set[UUID], *by: str, chosen: Q | None = None
) -> QuerySet[Gpu, dict[str, Any]]:
    """The tiers' GPUs in service outside the closed pools, counted by these columns: all, ready, ready and free."""
    ready = Exists(
        GpuCondition.objects.filter(gpu=OuterRef("pk"), span__upper_inf=True, condition=Condition.READY)
    )
    held = Exists(Allocation.objects.filter(gpu=OuterRef("pk"), state__in=ALLOCATION_LIVE))
    gpus = Gpu.objects.filter(chosen or Q(), retired_at=None, tier__in=tier_ids)
    gpus = gpus.exclude(node__state=NodeState.RETIRED)
    groups: QuerySet[Gpu, dict[str, Any]] = (
        gpus.exclude(node__pool__in=closed)
        .values(*by)
        .annotate(
            node_name=F("node__name"),
            is_open=Q(node__state=NodeState.READY, node__cordoned=False, node__draining=False),
            total=Count("pk"),
            ready=Count("pk", filter=Q(ready)),
            free=Count("pk", filter=Q(ready) & ~Q(held)),
        )
    )
    return groups


def _supply_rows(tier_ids: list[UUID], closed: set[UUID], chosen: Q) -> Iterable[Any]:
    return (
        gpu_groups(tier_ids, closed, "tier_id", "node_id", chosen=chosen)
        .annotate(
            cpu_total_m=F("node__cpu_total_m"),
            cpu_used_m=F("node__cpu_used_m"),
            memory_total_mib=F("node__memory_total_mib"),
            memory_used_mib=F("node__memory_used_mib"),
        )
        .order_by("node__name")
    )


def _node_supply(row: dict[str, Any]) -> NodeSupply:
    return NodeSupply(
        node_id=row["node_id"],
        node_name=row["node_name"],
        total=row["total"],
        ready=row["ready"],
        free=row["free"] if row["is_open"] else 0,
        cpu_total_m=row["cpu_total_m"],
        cpu_free_m=row["cpu_total_m"] - row["cpu_used_m"],
        memory_total_mib=row["memory_total_mib"],
        memory_free_mib=row["memory_total_mib"] - row["memory_used_mib"],
    )


def free_text(team: Team, tiers: Sequence[Tier]) -> list[str]:
    """One sentence for each tier, for an approver's card."""
    return [
        _("%(free)s of %(total)s %(tier)s, at most %(largest)s on one node")
        % {
            "free": one.free,
            "total": one.total,
            "tier": one.tier.name,
            "largest": one.largest_block,
        }
        for one in tier_supply(team, tiers)
    ]


def never_fits_text(supply: TierSupply, request: Request) -> str:
    """Why no node could ever hold one replica; "" if one could."""
    if not supply.never_fits(request):
        return ""
    tier, nodes = supply.tier.name, supply.nodes
    if request.slots_on(supply.tier.memory_mib) > SLOTS_PER_GPU:
        return _("A %(tier)s has less GPU memory than that.") % {"tier": tier}
    if not nodes and (request.node_labels or request.not_labels or request.not_nodes):
        return _("No node with %(tier)s is left by the labels and nodes that it chooses.") % {"tier": tier}
    if not nodes:
        return _("No %(tier)s has joined that your team may use.") % {"tier": tier}
    if supply.largest_node < request.gpus_per_replica:
        return ngettext(
            "The largest %(tier)s node has %(most)s GPU; a replica must fit onto one node.",
            "The largest %(tier)s node has %(most)s GPUs; a replica must fit onto one node.",
            supply.largest_node,
        ) % {"tier": tier, "most": supply.largest_node}
    return _("No %(tier)s node has that many GPUs with that much CPU and memory beside them.") % {
        "tier": tier
    }


# --- Every GPU ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GpuCell:
    """One GPU as the reader may see it.

    `state`: free, claimed, held, stopping, unconfirmed, or the GPU's condition where that is not ready and nothing
    holds it. `holder` is only there inside the reader's teams; `is_others` says that another team has it.
    """

    gpu: Gpu
    condition: str
    condition_reason: str
    state: str
    holder: Holder | None
    is_others: bool
    is_running: bool
    slots_held: int  # of 1000; less where only parts of the card are held


@dataclass(frozen=True)
class FleetNode:
    node: Node
    cells: tuple[GpuCell, ...]

    @property
    def free(self) -> int:
        is_open = self.node.state == NodeState.READY and not self.node.cordoned and not self.node.draining
        return sum(cell.state == "free" for cell in self.cells) if is_open else 0


@dataclass(frozen=True)
class FleetView:
    nodes: tuple[FleetNode, ...]
    as_of: datetime


def fleet_list(
    actor: User, *, node_public_id: str | None = None, node_ids: Iterable[UUID] | None = None
) -> FleetView:
    """All nodes that are not retired with their GPUs, by name; or one, or some. Six queries, however many there are."""
    nodes = Node.objects.exclude(state=NodeState.RETIRED).select_related("pool", "domain").order_by("name")
    if node_public_id is not None:
        nodes = nodes.filter(public_id=node_public_id)
    if node_ids is not None:
        nodes = nodes.filter(pk__in=list(node_ids))
    gpus = Gpu.objects.filter(retired_at=None, node__in=nodes).select_related("tier", "island", "node")
    holdings = _holdings(actor, gpus)
    conditions = {row.gpu_id: row for row in GpuCondition.objects.filter(gpu__in=gpus, span__upper_inf=True)}
    cells: dict[UUID, list[GpuCell]] = defaultdict(list)
    for gpu in gpus.order_by("node_id", "index"):
        cells[gpu.node_id].append(_cell(gpu, conditions.get(gpu.pk), holdings.get(gpu.pk)))
    return FleetView(tuple(FleetNode(node, tuple(cells[node.pk])) for node in nodes), clock.now())


@dataclass(frozen=True)
class _Holding:
    state: str
    is_running: bool
    holder: Holder | None
    slots: int


def _holdings(actor: User, gpus: QuerySet[Gpu]) -> dict[UUID, _Holding]:
    mine = set(teams_visible(actor).order_by().values_list("pk", flat=True))
    found: dict[UUID, _Holding] = {}
    slots = Counter[UUID]()
    # A GPU may be held by one (stopping) and claimed by the next: the holder is what people ask for.
    for row in live_allocations().filter(gpu__in=gpus).order_by("-state"):
        if row.gpu_id in found and row.state == "claimed":
            continue
        slots[row.gpu_id] += sum(piece.upper - piece.lower for piece in row.slots)
        holder = holder_of(row, units=row.units) if row.team_id in mine else None
        found[row.gpu_id] = _Holding(row.state, row.running_at is not None, holder, 0)
    return {key: replace(one, slots=slots[key]) for key, one in found.items()}


def _cell(gpu: Gpu, condition: GpuCondition | None, holding: _Holding | None) -> GpuCell:
    word = condition.condition if condition else Condition.DOWN
    state = holding.state if holding else "free" if word == Condition.READY else word
    return GpuCell(
        gpu=gpu,
        condition=word,
        condition_reason=condition.reason if condition else "",
        state=state,
        holder=holding.holder if holding else None,
        is_others=holding is not None and holding.holder is None,
        is_running=holding is not None and holding.is_running,
        slots_held=holding.slots if holding else 0,
    )


@dataclass(frozen=True)
class NodeWork:
    """What one replica has on a node. `is_hidden`: another team's, of which only that much is told."""

    rows: tuple[Allocation, ...]
    is_hidden: bool


def node_work(actor: User, node: Node) -> list[NodeWork]:
    """By GPU; three queries."""
    found: dict[tuple[UUID, str], list[Allocation]] = defaultdict(list)
    live = live_allocations().select_related("gpu", "tier", "workload__team", "attempt", "replica__spec")
    for row in live.filter(gpu__node=node).order_by("gpu__index", "slots", "pk"):
        found[row.replica_id, row.state].append(row)
    keys = {rows[0].workload_id for rows in found.values()}
    visible = Workload.objects.filter(workloads_visible_q(actor), pk__in=keys).order_by()
    seen = set(visible.values_list("pk", flat=True))
    return [NodeWork(tuple(rows), rows[0].workload_id not in seen) for rows in found.values()]


# --- Who holds what ----------------------------------------------------------------------------------------


def live_allocations() -> QuerySet[Allocation]:
    """All that is held, claimed, stopping or not confirmed, with what `holder_of` reads."""
    related = ("workload__team", "attempt", "replica__spec")
    return Allocation.objects.filter(state__in=ALLOCATION_LIVE).select_related(*related)


def holder_of(row: Allocation, *, units: int) -> Holder:
    return Holder(
        workload_id=row.workload_id,
        workload_public_id=row.workload.public_id,
        workload_name=row.workload.name,
        team_id=row.team_id,
        team_name=row.workload.team.name,
        tier_id=row.tier_id,
        units=units,
        ends_at=ends_at(row),
    )


def holders(tier_ids: Sequence[UUID]) -> Sequence[Holder]:
    """The provider of `core.hooks.holders`: for other apps, which must hide what their reader may not see."""
    groups: dict[tuple[UUID, UUID], list[Allocation]] = defaultdict(list)
    for row in live_allocations().filter(tier__in=list(tier_ids)).order_by("workload_id", "pk"):
        groups[row.workload_id, row.tier_id].append(row)
    return [holder_of(rows[0], units=sum(row.units for row in rows)) for rows in groups.values()]
