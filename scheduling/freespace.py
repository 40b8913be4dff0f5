"""Free GPUs as what could be started on them: by node, by island, by size, and the parts of shared cards.

Capacity is no secret, so that everybody signed in sees it; a shared card's room counts only for its own team.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib.postgres.aggregates import ArrayAgg
from django.db.models import Aggregate, Count, F
from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

from gpuyard.core import clock
from gpuyard.core.fields import Int4MultiRangeField
from gpuyard.core.models import User
from gpuyard.core.money import SLOTS_PER_GPU
from gpuyard.fleet.models import Condition, GpuCondition, NodeState, Tier
from scheduling.models import Allocation
from scheduling.policies import policy_current
from scheduling.states import ALLOCATION_LIVE
from scheduling.supply import gpu_groups
from tenants.models import Team
from tenants.selectors import pools_closed_to, teams_visible


@dataclass(frozen=True)
class NodeRoom:
    """One node's GPUs of one tier. `islands`: free GPUs of each island that has any, the largest first."""

    name: str
    pool: str
    is_open: bool
    total: int
    islands: tuple[int, ...]

    @property
    def free(self) -> int:
        return sum(self.islands)

    @property
    def largest_island(self) -> int:
        return self.islands[0] if self.islands else 0


@dataclass(frozen=True)
class SizeRoom:
    """How many requests for so many GPUs could stand at once, each on one node, or each inside one island."""

    gpus: int
    on_node: int
    on_island: int


@dataclass(frozen=True)
class CardRoom:
    """A card that shares are on: `slots_free` of 1000, for its own team only, or its company's by the policy."""

    node: str
    index: int
    slots_free: int
    is_own: bool


@dataclass(frozen=True)
class TierRoom:
    tier: Tier
    nodes: tuple[NodeRoom, ...]
    cards: tuple[CardRoom, ...]
    as_of: datetime
    out: tuple[tuple[str, int], ...] = ()  # GPUs that are not ready, by condition, the most first

    @property
    def total(self) -> int:
        return sum(node.total for node in self.nodes)

    @property
    def free(self) -> int:
        return sum(node.free for node in self.nodes)

    @property
    def largest_on_node(self) -> int:
        return max((node.free for node in self.nodes), default=0)

    @property
    def largest_on_island(self) -> int:
        return max((node.largest_island for node in self.nodes), default=0)

    @property
    def largest_node(self) -> int:
        return max((node.total for node in self.nodes), default=0)

    @property
    def sizes(self) -> tuple[SizeRoom, ...]:
        """For 1, 2, 4, … and all GPUs of the largest node."""
        return tuple(
            SizeRoom(
                size,
                sum(node.free // size for node in self.nodes),
                sum(free // size for node in self.nodes for free in node.islands),
            )
            for size in block_sizes(self.largest_node)
        )

    @property
    def blocks(self) -> tuple[int, ...]:
        """The free GPUs of each node that has any, the largest first."""
        return tuple(sorted((node.free for node in self.nodes if node.free), reverse=True))

    @property
    def too_small(self) -> int:
        """Free GPUs that could not be part of a request for a whole node of the largest kind."""
        return sum(free % self.largest_node for free in self.blocks) if self.largest_node else 0

    @property
    def own_cards(self) -> tuple[CardRoom, ...]:
        """The shared cards that the reader's teams may use, the one with most room first."""
        own = (card for card in self.cards if card.is_own)
        return tuple(sorted(own, key=lambda card: (-card.slots_free, card.node, card.index)))


def block_sizes(largest: int) -> tuple[int, ...]:
    sizes = [size for size in (1, 2, 4, 8, 16, 32, 64) if size <= largest]
    return (*sizes, largest) if largest and largest not in sizes else tuple(sizes)


def free_space(actor: User, tiers: Iterable[Tier], *, team: Team | None = None) -> list[TierRoom]:
    """The tiers in the given order, for a team (None: for anybody), in five queries however large the fleet is."""
    wanted, as_of = list(tiers), clock.now()
    tier_ids = [tier.pk for tier in wanted]
    closed = pools_closed_to(team) if team else set()
    nodes, cards = _nodes(tier_ids, closed), _cards(actor, tier_ids, closed, team)
    out = _out(tier_ids, closed)
    return [
        TierRoom(tier, tuple(nodes[tier.pk]), tuple(cards[tier.pk]), as_of, tuple(out[tier.pk]))
        for tier in wanted
    ]


def _out(tier_ids: list[UUID], closed: set[UUID]) -> dict[UUID, list[tuple[str, int]]]:
    """Tier → why so many of its GPUs are not counted as free."""
    rows = (
        GpuCondition.objects.filter(span__upper_inf=True, gpu__retired_at=None, gpu__tier__in=tier_ids)
        .exclude(condition=Condition.READY)
        .exclude(gpu__node__state=NodeState.RETIRED)
        .exclude(gpu__node__pool__in=closed)
        .values_list("gpu__tier_id", "condition")
        .annotate(count=Count("pk"))
        .order_by("-count", "condition")
    )
    found: dict[UUID, list[tuple[str, int]]] = defaultdict(list)
    for tier_id, condition, count in rows:
        found[tier_id].append((condition, count))
    return found


def _nodes(tier_ids: list[UUID], closed: set[UUID]) -> dict[UUID, list[NodeRoom]]:
    found: dict[tuple[UUID, UUID], list[dict[str, Any]]] = defaultdict(list)
    for row in _island_rows(tier_ids, closed):
        found[row["tier_id"], row["node_id"]].append(row)
    by_tier: dict[UUID, list[NodeRoom]] = defaultdict(list)
    for (tier_id, _node_id), rows in found.items():
        first = rows[0]
        free = sorted((row["free"] for row in rows if row["free"]), reverse=True)
        room = NodeRoom(
            name=first["node_name"],
            pool=first["pool_name"],
            is_open=first["is_open"],
            total=sum(row["total"] for row in rows),
            islands=tuple(free) if first["is_open"] else (),
        )
        by_tier[tier_id].append(room)
    return by_tier


def _island_rows(tier_ids: list[UUID], closed: set[UUID]) -> Iterable[Any]:
    groups = gpu_groups(tier_ids, closed, "tier_id", "node_id", "island_id")
    return groups.annotate(pool_name=F("node__pool__name")).order_by("node__name", "node_id")


class _RangeAgg(Aggregate):
    function = "range_agg"
    output_field = Int4MultiRangeField()


_WHOLE = Multirange([Range(0, SLOTS_PER_GPU)])


def _cards(
    actor: User, tier_ids: list[UUID], closed: set[UUID], team: Team | None
) -> dict[UUID, list[CardRoom]]:
    is_company = policy_current().share_scope == "company"
    teams = [team] if team else teams_visible(actor).order_by()
    own = {one.company_id if is_company else one.pk for one in teams}
    rows = (
        Allocation.objects.filter(state__in=ALLOCATION_LIVE, tier__in=tier_ids)
        .exclude(gpu__node__pool__in=closed)
        .values("tier_id", "gpu_id", "gpu__index", "gpu__node__name")
        .annotate(taken=_RangeAgg("slots"), scopes=ArrayAgg("scope", distinct=True))
        .exclude(taken=_WHOLE)
        .order_by("gpu__node__name", "gpu__index")
    )
    by_tier: dict[UUID, list[CardRoom]] = defaultdict(list)
    for row in rows:
        free = SLOTS_PER_GPU - sum(part.upper - part.lower for part in row["taken"])
        is_own = len(row["scopes"]) == 1 and row["scopes"][0] in own
        by_tier[row["tier_id"]].append(CardRoom(row["gpu__node__name"], row["gpu__index"], free, is_own))
    return by_tier
