"""The fleet as a pass knows it: nodes with their domains, and what is left of each GPU.

Raw rows rather than model instances: a fleet has 100,000 GPUs. Ids that repeat share one string.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from django.db.models import Sum

from gpuyard.core.money import units_for
from gpuyard.fleet.models import FabricDomain, Node, NodeState
from scheduling.engine import snapshot as engine
from scheduling.models import Replica
from scheduling.rows import rows_read
from scheduling.states import ReplicaState


@dataclass
class Taken:
    """What lives on the GPUs: which are held whole, and the slots and the scope of those that shares are on."""

    whole: set[str] = field(default_factory=set)
    pieces: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    teams: dict[str, str] = field(default_factory=dict)
    scopes: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def slots_free(self, gpu_id: str) -> int:
        """Claims lie over the holders whom they wait for: what both cover counts once."""
        free, reached = engine.WHOLE, 0
        for low, high in sorted(self.pieces[gpu_id]):
            free -= max(0, high - max(low, reached))
            reached = max(reached, high)
        return free


# --- Nodes -------------------------------------------------------------------------------------------------


def levels_and_domains() -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """The levels of the fabric, widest first, and each domain's name at each of them ("" where it has none).

    How wide a level is follows from the tree: the deepest place at which it occurs, then its name.
    """
    rows = {
        str(key): (str(parent) if parent else None, level, name)
        for key, parent, level, name in FabricDomain.objects.values_list("id", "parent_id", "level", "name")
    }
    chains = {key: _chain(key, rows) for key in rows}
    depths: dict[str, int] = {}
    for chain in chains.values():
        for depth, (level, _name) in enumerate(chain):
            depths[level] = max(depth, depths.get(level, 0))
    levels = tuple(sorted(depths, key=lambda level: (depths[level], level)))
    named = {key: dict(chain) for key, chain in chains.items()}
    return levels, {key: tuple(named[key].get(level, "") for level in levels) for key in rows}


def _chain(key: str, rows: Mapping[str, tuple[str | None, str, str]]) -> list[tuple[str, str]]:
    """(level, name) from the root down to the domain. A loop of parents is cut."""
    found: list[tuple[str, str]] = []
    seen: set[str] = set()
    at: str | None = key
    while at is not None and at not in seen:
        seen.add(at)
        parent, level, name = rows[at]
        found.append((level, name))
        at = parent
    return found[::-1]


_NODE = (
    "id",
    "name",
    "pool_id",
    "domain_id",
    "labels",
    "state",
    "draining",
    "cordoned",
    "epoch",
    "cpu_total_m",
    "cpu_used_m",
    "memory_total_mib",
    "memory_used_mib",
)


def nodes_load(levels: Sequence[str], domains: Mapping[str, tuple[str, ...]]) -> Iterator[engine.Node]:
    """All nodes but the retired, by id. What is claimed of CPU and memory counts as taken."""
    claims = Replica.objects.filter(state=ReplicaState.CLAIMING).values_list("node_id")
    claimed = {row[0]: row[1:] for row in claims.annotate(cpu=Sum("cpu_m"), memory=Sum("memory_mib"))}
    nowhere = ("",) * len(levels)
    for row in Node.objects.exclude(state=NodeState.RETIRED).order_by("id").values_list(*_NODE):
        (
            key,
            name,
            pool,
            domain,
            labels,
            state,
            draining,
            cordoned,
            epoch,
            cpu_total,
            cpu_used,
            memory,
            used,
        ) = row
        reason = unschedulable_reason(state, draining, cordoned)
        cpu_claimed, memory_claimed = claimed.get(key, (0, 0))
        yield engine.Node(
            id=str(key),
            name=name,
            pool_id=str(pool),
            schedulable=reason is None,
            epoch=epoch,
            cpu_free_m=max(0, cpu_total - cpu_used - cpu_claimed),
            memory_free_mib=max(0, memory - used - memory_claimed),
            cpu_total_m=cpu_total,
            memory_total_mib=memory,
            reason_unschedulable=reason,
            labels=tuple(labels),
            domains=domains[str(domain)] if domain else nowhere,
        )


def unschedulable_reason(state: str, draining: bool, cordoned: bool) -> str | None:
    """Why nothing new may start on a node, as a word; None if it may."""
    if state != NodeState.READY:
        return state
    if draining:
        return "draining"
    return "cordoned" if cordoned else None


# --- GPUs --------------------------------------------------------------------------------------------------

_GPUS = """
SELECT g.id::text, g.node_id::text, g.tier_id::text, g.card::text, g.is_instance, g.index, coalesce(i.index, 0),
  g.compute_slices, g.card_slices, c.condition IS NOT NULL AND c.condition = 'ready'
FROM fleet_gpu g
LEFT JOIN fleet_island i ON i.id = g.island_id
LEFT JOIN fleet_gpucondition c ON c.gpu_id = g.id AND upper_inf(c.span)
WHERE g.retired_at IS NULL ORDER BY g.node_id, g.index, g.id
"""


def gpus_load(taken: Taken, scope_of: Mapping[str, str]) -> Iterator[engine.Gpu]:
    """All GPUs, by node and index. `scope_of`: who may share a card with each team, as the policy has it now.

    A card whose shares have another scope, or different ones, takes no more of them until they have left.
    """
    same: dict[str, str] = {}
    rows = rows_read(_GPUS)
    cut = {row[3] for row in rows if row[4]}  # the cards that have MIG instances
    for key, node, tier, card, is_instance, index, island, slices, of, is_ready in rows:
        is_shared = key in taken.pieces
        is_open = is_shared and taken.scopes[key] == {scope_of[taken.teams[key]]}
        yield engine.Gpu(
            id=key,
            node_id=same.setdefault(node, node),
            tier_id=same.setdefault(tier, tier),
            index=index,
            island=island,
            ready=is_ready,
            free=not (key in taken.whole or is_shared),
            slots_free=taken.slots_free(key) if is_open and key not in taken.whole else 0,
            shared_by=taken.teams[key] if is_shared else None,
            units=units_for(compute_slices=slices, card_slices=of),
            card=card if card in cut else None,
            is_instance=bool(is_instance),
        )
