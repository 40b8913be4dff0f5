"""The packing score of a pass: every node's GPUs of one tier are a place, and places follow the fleet."""

from collections.abc import Iterable, Sequence

import numpy as np

from scheduling.engine.decisions import Policy
from scheduling.engine.fragmentation import PackingPolicy
from scheduling.engine.machines import Ints, Shape, TierNodes
from scheduling.engine.mix import Ask, Mix, scarcity
from scheduling.engine.packing import Floats, NodeStates, Packer
from scheduling.engine.snapshot import WHOLE, MixRow, Snapshot, Tier

_FINE_SLOTS = 10  # shares of the mix are rounded up to this: their prices need no finer steps
_THOUSAND = 1000


def packing_policy(policy: Policy) -> PackingPolicy:
    return PackingPolicy(
        fragments=policy.pack_fragments,
        shares=policy.pack_shares,
        stranded=policy.pack_stranded,
        scarcity=policy.pack_scarcity,
        balance=policy.pack_balance,
        fullness=policy.pack_fullness,
        islands=policy.pack_islands,
        step_slots=policy.pack_step_slots,
    )


def mix_of(snapshot: Snapshot) -> Mix:
    """What was asked for lately; where nobody counted that, what waits and runs now."""
    memory = {tier.id: tier.memory_mib for tier in snapshot.tiers}
    weights: dict[Ask, float] = {}
    for row in snapshot.mix or _asked_now(snapshot, memory):
        tiers = tuple(sorted(tier_id for tier_id in set(row.tiers) if tier_id in memory))
        if row.tiers and not tiers:
            continue
        slots = min(WHOLE, -(-row.slots // _FINE_SLOTS) * _FINE_SLOTS)
        ask = Ask(_coarse(row.cpu_m), row.gpus, slots, tiers)
        weights[ask] = weights.get(ask, 0.0) + row.count
    return Mix.of(weights)


def _coarse(cpu_m: int) -> int:
    """Rounded up to four binary digits: or requests that differ by little CPU would all be shapes of their own."""
    step = 1 << max(0, cpu_m.bit_length() - 4)
    return -(-cpu_m // step) * step


def _asked_now(snapshot: Snapshot, memory: dict[str, int]) -> Iterable[MixRow]:
    for request in (*snapshot.requests, *snapshot.placed):
        slots = WHOLE
        if request.share or request.gpu_memory_mib:
            first = next((memory[tier_id] for tier_id in request.tiers if memory.get(tier_id)), 0)
            by_memory = -(-WHOLE * (request.gpu_memory_mib or 0) // first) if first else 0
            slots = max(1, request.share or 0, by_memory)
        yield MixRow(request.cpu_m, request.gpus_per_replica, slots, request.tiers, request.replicas_min)


def scarce_tiers(snapshot: Snapshot, mix: Mix, policy: Policy) -> dict[str, int]:
    """By tier, thousandths by which its GPUs count as dearer because others can go nowhere else."""
    ids = tuple(tier.id for tier in snapshot.tiers)
    supply = dict.fromkeys(ids, 0.0)
    for gpu in snapshot.gpus:
        if gpu.tier_id in supply:
            supply[gpu.tier_id] += WHOLE
    found = scarcity(mix, ids, np.array([supply[tier_id] for tier_id in ids]), PackingPolicy().scarce_from)
    return {
        tier_id: round(_THOUSAND * policy.pack_scarcity * float(value))
        for tier_id, value in zip(ids, found, strict=True)
    }


class Scores:
    """Costs of placing, kept up with the tiers' nodes; both CPU arrays are the fleet's own. Smaller is better."""

    def __init__(
        self, tiers: Sequence[TierNodes], cpu_free: Ints, cpu_total: Ints, mix: Mix, policy: Policy
    ) -> None:
        self._policy, self._cpu_free = policy, cpu_free
        self._first: dict[str, int] = {}
        self._places: list[tuple[TierNodes, int]] = []
        self._at: dict[int, list[int]] = {}  # by node, its places
        for tier in tiers:
            self._first[tier.tier_id] = len(self._places)
            for row, node in enumerate(tier.nodes.tolist()):
                self._at.setdefault(node, []).append(len(self._places))
                self._places.append((tier, row))
        self._touched: set[int] = set()
        self._sizes: dict[tuple[str, Shape, int], Ask] = {}
        self._states = self._empty_states(tiers, cpu_total)
        self._fill(range(len(self._places)))
        self.packer = Packer(self._states, mix, packing_policy(policy))

    def _empty_states(self, tiers: Sequence[TierNodes], cpu_total: Ints) -> NodeStates:
        count = len(self._places)
        nodes = np.concatenate([tier.nodes for tier in tiers]) if tiers else np.zeros(0, dtype=np.int64)
        wide = [max((tier.slots.shape[1] for tier in tiers), default=0)]
        wide.append(max((tier.by_island.shape[1] for tier in tiers), default=0))
        cards, islands = (np.zeros((count, width), dtype=np.int64) for width in wide)
        of_tier = np.repeat(np.arange(len(tiers)), [tier.nodes.size for tier in tiers])
        gpus = np.concatenate([tier.total for tier in tiers]) if tiers else np.zeros(0, dtype=np.int64)
        return NodeStates(
            tuple(tier.tier_id for tier in tiers),
            of_tier,
            cpu_total[nodes],
            self._cpu_free[nodes],
            np.zeros(count, dtype=np.int64),
            gpus,
            cards,
            np.zeros_like(cards),
            islands,
        )

    def touch(self, node: int) -> None:
        """Something changed on this node."""
        self._touched.update(self._at.get(node, ()))

    def _fill(self, places: Iterable[int]) -> None:
        states = self._states
        assert states.sharer is not None
        assert states.islands is not None
        for place in places:
            tier, row = self._places[place]
            states.slots_free[place, : tier.slots.shape[1]] = tier.slots[row]
            states.sharer[place, : tier.slots.shape[1]] = tier.sharer[row]
            states.islands[place, : tier.by_island.shape[1]] = tier.by_island[row]
            states.cpu_free_m[place] = self._cpu_free[tier.nodes[row]]

    def _sync(self) -> None:
        if self._touched:
            places = sorted(self._touched)
            self._touched.clear()
            self._fill(places)
            self.packer.changed(np.array(places, dtype=np.int64))

    def costs(self, tier: TierNodes, shape: Shape, count: Ints, wanted: int) -> Floats:
        """(tier nodes,) for so many replicas on each node, for one of them; infinite where there are none.

        Nodes that hold less of the gang cost more: `pack_together` for each further node it would then need.
        """
        self._sync()
        code = tier.code_of(shape)
        first = self._first[tier.tier_id]
        span = (first, first + tier.nodes.size)
        if wanted == 1 or shape.is_share:
            costs = self.packer.costs(self._size(tier, shape, 1), code, span)
            return np.where(count > 0, costs, np.inf)
        found = np.full(tier.nodes.size, np.inf)
        for many in np.unique(count[count > 0]).tolist():
            here = count == many
            costs = self.packer.costs(self._size(tier, shape, many), code, span)
            found[here] = costs[here] / many + self._policy.pack_together * (-(-wanted // many) - 1)
        return found

    def parts_later(self, tier: TierNodes, shape: Shape, row: int, many: int) -> dict[str, float]:
        """What the cost of so many replicas there is made of, before they are taken: empty until it is explained."""
        place = self._first[tier.tier_id] + row
        return self.packer.note(self._size(tier, shape, many), place, tier.code_of(shape))

    def _size(self, tier: TierNodes, shape: Shape, many: int) -> Ask:
        key = (tier.tier_id, shape, many)
        if key not in self._sizes:
            if shape.is_share:
                self._sizes[key] = Ask(shape.cpu_m, 1, tier.slots_of(shape))
            else:
                self._sizes[key] = Ask(many * shape.cpu_m, many * shape.gpus, WHOLE)
        return self._sizes[key]


def cost_of_result(tier: Tier, kind: str, scarce: int) -> tuple[bool, int]:
    """What the same work costs there, in some unit; tiers whose speed or cost is not known come last, as named.

    `scarce`: thousandths by which a tier that others depend on counts as dearer.
    """
    speed = tier.speed(kind)
    if speed <= 0 or tier.cost_micro <= 0:
        return True, 0
    return False, tier.cost_micro * (_THOUSAND + scarce) * _THOUSAND // speed
