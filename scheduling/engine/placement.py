"""Where a gang fits: one vectorised scan over the nodes of a tier, then best fit.

Replicas of a gang are alike and GPUs are whole, so the number of replicas that fit is the plain sum over the
nodes of what each holds. That sum is exact: no search is needed to know that a gang does not fit.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduling.engine.decisions import Policy, ReplicaPlacement
from scheduling.engine.snapshot import UNITS_PER_GPU, WHOLE, Gpu, Node, Request, Snapshot

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_TierState = tuple[Ints, Ints, Ints, list[dict[int, list[Gpu]]]]


@dataclass(frozen=True, slots=True)
class Shape:
    """All that placement asks of a request: equal shapes have equal answers."""

    replicas: int
    gpus: int
    cpu_m: int
    memory_mib: int
    pool_ids: tuple[str, ...] | None

    @classmethod
    def of(cls, request: Request) -> "Shape":
        pools = None if request.pool_ids is None else tuple(sorted(request.pool_ids))
        return cls(request.replicas_min, request.gpus_per_replica, request.cpu_m, request.memory_mib, pools)

    def with_replicas(self, replicas: int) -> "Shape":
        return replace(self, replicas=replicas)


@dataclass(frozen=True, slots=True)
class Placed:
    replicas: tuple[ReplicaPlacement, ...]
    why: dict[str, Any]


class TierNodes:
    """The nodes that have GPUs of one tier, in order of name, and those GPUs."""

    def __init__(self, tier_id: str, gpus: Iterable[Gpu], node_index: dict[str, int]) -> None:
        self.tier_id = tier_id
        by_node: dict[int, list[Gpu]] = {}
        for gpu in sorted(gpus, key=lambda gpu: (gpu.index, gpu.id)):
            by_node.setdefault(node_index[gpu.node_id], []).append(gpu)
        members = sorted(by_node)
        self.nodes: Ints = np.array(members, dtype=np.int64)  # (tier nodes,) rows of the fleet
        self.total = _counts(len(by_node[n]) for n in members)  # (tier nodes,)
        self.ready = _counts(sum(g.ready for g in by_node[n]) for n in members)  # (tier nodes,)
        self.free = _counts(sum(g.free for g in by_node[n]) for n in members)  # (tier nodes,) ready or not
        self.islands = [_islands(by_node[n]) for n in members]
        self.usable = _counts(
            sum(map(len, held.values())) for held in self.islands
        )  # (tier nodes,) ready and free
        self.largest_island = _counts(max(map(len, held.values()), default=0) for held in self.islands)

    def state(self) -> "_TierState":
        islands = [{island: list(free) for island, free in held.items()} for held in self.islands]
        return self.usable.copy(), self.free.copy(), self.largest_island.copy(), islands

    def restore(self, state: "_TierState") -> None:
        self.usable, self.free, self.largest_island, self.islands = state

    def take(self, row: int, gpu_count: int) -> tuple[str, ...]:
        """Take GPUs from the fullest island that has them all, else from the emptiest islands first."""
        islands = self.islands[row]
        whole = [(len(free), island) for island, free in islands.items() if len(free) >= gpu_count]
        by_most_free = sorted(islands, key=lambda island: (-len(islands[island]), island))
        taken: list[Gpu] = []
        for island in [min(whole)[1]] if whole else by_most_free:
            wanted = gpu_count - len(taken)
            taken += islands[island][:wanted]
            islands[island] = islands[island][wanted:]
        self.usable[row] -= gpu_count
        self.free[row] -= gpu_count
        self.largest_island[row] = max(map(len, islands.values()))
        return tuple(gpu.id for gpu in sorted(taken, key=lambda gpu: (gpu.index, gpu.id)))


class Fleet:
    """The pass's working copy of the machines; starts of this pass are taken off at once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.nodes: list[Node] = sorted(snapshot.nodes, key=lambda node: (node.name, node.id))
        self.node_index = {node.id: row for row, node in enumerate(self.nodes)}
        self.cpu_free = _counts(node.cpu_free_m for node in self.nodes)  # (nodes,)
        self.cpu_total = _counts(node.cpu_total_m for node in self.nodes)  # (nodes,)
        self.memory_free = _counts(node.memory_free_mib for node in self.nodes)  # (nodes,)
        self.memory_total = _counts(node.memory_total_mib for node in self.nodes)  # (nodes,)
        self.schedulable: Bools = np.array(
            [node.schedulable for node in self.nodes], dtype=np.bool_
        )  # (nodes,)
        by_tier: dict[str, list[Gpu]] = {tier.id: [] for tier in snapshot.tiers}
        for gpu in snapshot.gpus:
            if gpu.tier_id in by_tier and gpu.node_id in self.node_index:
                by_tier[gpu.tier_id].append(gpu)
        self.tiers = {tier_id: TierNodes(tier_id, gpus, self.node_index) for tier_id, gpus in by_tier.items()}
        self._pool_masks: dict[tuple[str, tuple[str, ...] | None], Bools] = {}

    def pool_mask(self, tier: TierNodes, pool_ids: tuple[str, ...] | None) -> Bools:
        key = (tier.tier_id, pool_ids)
        if key not in self._pool_masks:
            allowed = [pool_ids is None or self.nodes[row].pool_id in pool_ids for row in tier.nodes]
            self._pool_masks[key] = np.array(allowed, dtype=np.bool_)  # (tier nodes,)
        return self._pool_masks[key]

    def open_nodes(self, tier: TierNodes, pool_ids: tuple[str, ...] | None) -> Bools:
        """Where a start may go at all: schedulable nodes of allowed pools."""
        return self.schedulable[tier.nodes] & self.pool_mask(tier, pool_ids)

    def fit_per_node(self, tier: TierNodes, shape: Shape) -> Ints:
        """How many replicas each node of the tier could start now."""
        fit = replicas_that_fit(
            shape, tier.usable, self.cpu_free[tier.nodes], self.memory_free[tier.nodes]
        )  # (tier nodes,)
        return fit * self.open_nodes(tier, shape.pool_ids)

    def fits_now(self, tier: TierNodes, shape: Shape) -> bool:
        # Necessary conditions first: most requests that wait are refused by one of these two.
        if tier.usable.size == 0 or int(tier.usable.max()) < shape.gpus:
            return False
        if int(tier.usable.sum()) < shape.gpus * shape.replicas:
            return False
        return int(self.fit_per_node(tier, shape).sum()) >= shape.replicas

    def place(
        self, tier: TierNodes, shape: Shape, policy: Policy, at_most: Ints | None = None
    ) -> Placed | None:
        """Take the best places for all replicas of the shape, or none at all; `at_most` so many on each node."""
        if not self.fits_now(tier, shape):
            return None
        fit = self.fit_per_node(tier, shape)
        if at_most is not None:
            fit = np.minimum(fit, at_most)
            if int(fit.sum()) < shape.replicas:
                return None
        wanted = shape.replicas
        placements: list[ReplicaPlacement] = []
        why: dict[str, Any] = {}
        while wanted:
            scores = self._scores(tier, shape, fit, wanted, policy)
            row = int(scores.argmin())
            count = min(int(fit[row]), wanted)
            if not why:
                why = self._why(tier, shape, fit, wanted, scores)
            for _ in range(count):
                placements.append(self._take(tier, row, shape, len(placements)))
            fit[row] = 0
            wanted -= count
        return Placed(tuple(placements), why)

    def place_mixed(
        self, tiers: list[tuple[TierNodes, int, Ints | None]], shape: Shape, policy: Policy
    ) -> Placed | None:
        """Spread one gang over tiers in order of preference, each with its most replicas; all or none."""
        cpu_free, memory_free = self.cpu_free.copy(), self.memory_free.copy()
        before = [(tier, tier.state()) for tier, _, _ in tiers]
        placements: list[ReplicaPlacement] = []
        why: dict[str, Any] = {}
        for tier, at_most, each_node in tiers:
            fit = self.fit_per_node(tier, shape)  # (tier nodes,)
            fit = fit if each_node is None else np.minimum(fit, each_node)
            count = min(shape.replicas - len(placements), at_most, int(fit.sum()))
            placed = self.place(tier, shape.with_replicas(count), policy, each_node) if count > 0 else None
            if placed is not None:
                why = why or placed.why
                placements += renumbered(placed.replicas, len(placements))
        if len(placements) == shape.replicas:
            return Placed(tuple(placements), why)
        self.cpu_free, self.memory_free = cpu_free, memory_free
        for tier, state in before:
            tier.restore(state)
        return None

    def _take(self, tier: TierNodes, row: int, shape: Shape, index: int) -> ReplicaPlacement:
        node_row = int(tier.nodes[row])
        node = self.nodes[node_row]
        self.cpu_free[node_row] -= shape.cpu_m
        self.memory_free[node_row] -= shape.memory_mib
        gpu_ids = tier.take(row, shape.gpus)
        return ReplicaPlacement(
            index,
            node.id,
            node.epoch,
            gpu_ids,
            UNITS_PER_GPU,
            WHOLE,
            shape.cpu_m,
            shape.memory_mib,
            tier.tier_id,
        )

    def _scores(self, tier: TierNodes, shape: Shape, fit: Ints, wanted: int, policy: Policy) -> Ints:
        """One integer for each node, smaller is better, `_NOWHERE` where no replica fits.

        From most to least important: GPUs of one island; no whole node broken; fewest GPUs left over; most
        replicas of the gang together; least CPU left over. The first node by name wins a tie.
        """
        count = np.minimum(fit, wanted)  # (tier nodes,)
        left = tier.usable - count * shape.gpus  # (tier nodes,)
        cpu_left = (self.cpu_free[tier.nodes] - count * shape.cpu_m) // 1000  # (tier nodes,) whole cores
        score = (np.minimum(left, _MAX_16) << 40) + ((_MAX_16 - np.minimum(count, _MAX_16)) << 24)
        score += np.clip(cpu_left, 0, _MAX_24)
        if policy.keep_nodes_whole:
            score += ((tier.usable == tier.total) & (left > 0)).astype(np.int64) << 57
        if policy.prefer_one_island:
            score += (tier.largest_island < shape.gpus).astype(np.int64) << 58
        return np.where(fit > 0, score, _NOWHERE)

    def _why(self, tier: TierNodes, shape: Shape, fit: Ints, wanted: int, scores: Ints) -> dict[str, Any]:
        best = int(scores.argmin())
        others = scores.copy()
        others[best] = _NOWHERE
        second = int(others.argmin())
        has_second = int(others[second]) < _NOWHERE
        return {
            "candidates": int((fit > 0).sum()),
            "score": self._score_parts(tier, shape, fit, wanted, best),
            "runner_up": self._score_parts(tier, shape, fit, wanted, second) if has_second else None,
        }

    def _score_parts(self, tier: TierNodes, shape: Shape, fit: Ints, wanted: int, row: int) -> dict[str, Any]:
        node = self.nodes[int(tier.nodes[row])]
        count = min(int(fit[row]), wanted)
        left = int(tier.usable[row]) - count * shape.gpus
        return {
            "node_id": node.id,
            "node_name": node.name,
            "one_island": bool(tier.largest_island[row] >= shape.gpus),
            "breaks_whole_node": bool(tier.usable[row] == tier.total[row] and left > 0),
            "gpus_left": left,
            "replicas_here": count,
            "cpu_left_m": int(self.cpu_free[tier.nodes[row]]) - count * shape.cpu_m,
        }


def renumbered(replicas: Iterable[ReplicaPlacement], first: int) -> list[ReplicaPlacement]:
    return [replace(replica, index=first + offset) for offset, replica in enumerate(replicas)]


def replicas_that_fit(shape: Shape, gpus: Ints, cpu_m: Ints, memory_mib: Ints) -> Ints:
    """Replicas for each node, given what each node has; never negative."""
    fit = gpus // shape.gpus
    if shape.cpu_m:
        fit = np.minimum(fit, cpu_m // shape.cpu_m)
    if shape.memory_mib:
        fit = np.minimum(fit, memory_mib // shape.memory_mib)
    return np.maximum(fit, 0)


_MAX_16 = (1 << 16) - 1
_MAX_24 = (1 << 24) - 1
_NOWHERE = 1 << 62


def _counts(values: Iterable[int]) -> Ints:
    return np.fromiter(values, dtype=np.int64)


def _islands(gpus: list[Gpu]) -> dict[int, list[Gpu]]:
    """The usable GPUs of each island of one node, by index."""
    islands: dict[int, list[Gpu]] = {gpu.island: [] for gpu in gpus}
    for gpu in gpus:
        if gpu.ready and gpu.free:
            islands[gpu.island].append(gpu)
    return islands
