"""Where a gang fits: one vectorised scan over the nodes of a tier, then best fit.

Replicas of a gang are alike, so the number of replicas that fit is the plain sum over the nodes of what each
holds. That sum is exact: no search is needed to know that a gang does not fit.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from scheduling.engine.cards import CutCards
from scheduling.engine.decisions import Policy, ReplicaPlacement
from scheduling.engine.machines import UNKNOWN, Bools, Ints, Shape, TierNodes
from scheduling.engine.mix import Mix
from scheduling.engine.packing import Floats
from scheduling.engine.scoring import Scores, mix_of, scarce_tiers
from scheduling.engine.snapshot import ISLAND, WHOLE, Gpu, Live, Node, Snapshot
from scheduling.engine.topology import Topology

__all__ = ["Bools", "Fleet", "Ints", "Placed", "Shape", "TierNodes", "renumbered", "replicas_that_fit"]

_Undo = tuple[
    int, int, int, TierNodes | None, int, tuple[Ints, Ints] | None
]  # node, CPU, memory; tier, row, cards


_FEW = 24  # changed nodes that are looked at one by one; more are worked out with all others
_MANY = 256  # changes; with more it is as well to count anew
_KEPT = 512  # shapes (by tier) whose fit is kept


@dataclass(slots=True)
class _Fit:
    """How many replicas each node of a tier holds, after so many changes of the fleet."""

    each: Ints  # (tier nodes,)
    total: int
    changes: int


@dataclass(frozen=True, slots=True)
class Placed:
    replicas: tuple[ReplicaPlacement, ...]
    why: dict[str, Any]


class Fleet:
    """The pass's working copy of the machines; starts of this pass are taken off at once.

    What is tried can be undone: `savepoint` before it, `rollback` to that after.
    """

    def __init__(self, snapshot: Snapshot, policy: Policy | None = None) -> None:
        scope = (policy or Policy()).share_scope
        self._sharers = {team.id: team.path[0] if scope == "company" else team.id for team in snapshot.teams}
        self._sharer_codes: dict[str, int] = {}
        self._speeds = {(tier.id, kind): speed for tier in snapshot.tiers for kind, speed in tier.speeds}
        self.nodes: list[Node] = sorted(snapshot.nodes, key=lambda node: (node.name, node.id))
        self.node_index = {node.id: row for row, node in enumerate(self.nodes)}
        self.cpu_free = _counts(node.cpu_free_m for node in self.nodes)  # (nodes,)
        self.cpu_total = _counts(node.cpu_total_m for node in self.nodes)  # (nodes,)
        self.memory_free = _counts(node.memory_free_mib for node in self.nodes)  # (nodes,)
        self.memory_total = _counts(node.memory_total_mib for node in self.nodes)  # (nodes,)
        self.topology = Topology(snapshot.levels, self.nodes)
        self.schedulable: Bools = np.array(
            [node.schedulable for node in self.nodes], dtype=np.bool_
        )  # (nodes,)
        by_tier: dict[str, list[Gpu]] = {tier.id: [] for tier in snapshot.tiers}
        cut: list[Gpu] = []
        for gpu in snapshot.gpus:
            if gpu.tier_id in by_tier and gpu.node_id in self.node_index:
                by_tier[gpu.tier_id].append(gpu)
                if gpu.card is not None:
                    cut.append(gpu)
        self.tiers = {
            tier.id: TierNodes(tier.id, tier.memory_mib, by_tier[tier.id], self.node_index, self._code)
            for tier in snapshot.tiers
        }
        self._cut_cards = CutCards(cut, self.tiers, self.node_index)
        self._pool_masks: dict[tuple[str, tuple[str, ...] | None], Bools] = {}
        self._selected: dict[tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]], Bools] = {}
        self._open: dict[tuple[object, ...], Bools] = {}
        self._kinds: dict[str, tuple[Ints, Ints]] = {}
        self._undo: list[_Undo] = []
        self._changed: list[int] = []  # rows of the nodes that something was taken from or given back to
        self._fits: dict[tuple[str, Shape], _Fit] = {}
        self._snapshot, self._policy = snapshot, policy or Policy()
        self._close = self._policy.gangs_close

    @cached_property
    def mix(self) -> Mix:
        return mix_of(self._snapshot)

    @cached_property
    def scores(self) -> Scores:
        """Worked out when something is first placed: a pass in which nothing fits needs none."""
        return Scores(list(self.tiers.values()), self.cpu_free, self.cpu_total, self.mix, self._policy)

    @cached_property
    def scarce(self) -> dict[str, int]:
        """By tier, thousandths by which others depend on it (`scarce_tiers`)."""
        return scarce_tiers(self._snapshot, self.mix, self._policy)

    def speed(self, tier_id: str, kind: str) -> int:
        """Of the tier for this kind of work, in thousandths of the slowest; 0: not known."""
        return self._speeds.get((tier_id, kind), 0)

    def sharer_of(self, team_id: str) -> str:
        """Whose cards a share of the team may join: the team's own, or by policy those of its company."""
        return self._sharers.get(team_id, team_id)

    def _code(self, sharer: str | None) -> int:
        if sharer is None:
            return UNKNOWN
        return self._sharer_codes.setdefault(self.sharer_of(sharer), len(self._sharer_codes) + 1)

    def kinds(self, tier: TierNodes) -> tuple[Ints, Ints]:
        """(3, kinds) cards, CPU and memory of the nodes that are alike when empty; (kinds,) how many there are."""
        if tier.tier_id not in self._kinds:
            totals = np.array([tier.total, self.cpu_total[tier.nodes], self.memory_total[tier.nodes]])
            kinds, counts = np.unique(totals, axis=1, return_counts=True)
            self._kinds[tier.tier_id] = kinds, counts
        return self._kinds[tier.tier_id]

    def pool_mask(self, tier: TierNodes, pool_ids: tuple[str, ...] | None) -> Bools:
        key = (tier.tier_id, pool_ids)
        if key not in self._pool_masks:
            allowed = [pool_ids is None or self.nodes[row].pool_id in pool_ids for row in tier.nodes]
            self._pool_masks[key] = np.array(allowed, dtype=np.bool_)  # (tier nodes,)
        return self._pool_masks[key]

    def selected(self, tier: TierNodes, shape: Shape) -> Bools:
        """(tier nodes,) with the labels asked for and none of the labels or nodes excluded."""
        key = (tier.tier_id, shape.node_labels, shape.not_labels, shape.not_nodes)
        if key not in self._selected:
            wanted, unwanted, excluded = set(shape.node_labels), set(shape.not_labels), set(shape.not_nodes)
            nodes = [self.nodes[row] for row in tier.nodes]
            self._selected[key] = np.array(
                [
                    wanted.issubset(node.labels)
                    and unwanted.isdisjoint(node.labels)
                    and node.id not in excluded
                    for node in nodes
                ],
                dtype=np.bool_,
            )
        return self._selected[key]

    def open_nodes(self, tier: TierNodes, shape: Shape) -> Bools:
        """(tier nodes,) where a start may go at all: schedulable nodes of allowed pools that it selects."""
        key = (tier.tier_id, shape.pool_ids, shape.node_labels, shape.not_labels, shape.not_nodes)
        if key not in self._open:
            allowed = self.pool_mask(tier, shape.pool_ids) & self.selected(tier, shape)
            self._open[key] = self.schedulable[tier.nodes] & allowed
        return self._open[key]

    def fit_per_node(self, tier: TierNodes, shape: Shape) -> Ints:
        """(tier nodes,) how many replicas each node of the tier could start now: read only, until it is asked again."""
        return self._fit(tier, shape).each

    def _fit(self, tier: TierNodes, shape: Shape) -> _Fit:
        key, changes = (tier.tier_id, shape), len(self._changed)
        known = self._fits.get(key)
        if known is None:
            if len(self._fits) >= _KEPT:
                del self._fits[next(iter(self._fits))]
            each = self._fit_of_all(tier, shape)
            known = self._fits[key] = _Fit(each, int(each.sum()), changes)
        elif known.changes < changes:
            since = self._changed[known.changes :] if changes - known.changes < tier.nodes.size else ()
            nodes = set(since)
            if since and len(nodes) <= _FEW:
                self._renew_fit(known, tier, shape, nodes)
            else:
                known.each[:] = self._fit_of_all(tier, shape)
                known.total = int(known.each.sum())
            known.changes = changes
        return known

    def _fit_of_all(self, tier: TierNodes, shape: Shape) -> Ints:
        on_islands = shape.required_level == ISLAND
        by_gpu = tier.replicas_on_islands(shape) if on_islands else tier.replicas_by_gpu(shape)
        fit = replicas_that_fit(shape, by_gpu, self.cpu_free[tier.nodes], self.memory_free[tier.nodes])
        return fit * self.open_nodes(tier, shape)

    def _renew_fit(self, known: _Fit, tier: TierNodes, shape: Shape, nodes: Iterable[int]) -> None:
        is_open, each = self.open_nodes(tier, shape), known.each
        for node in nodes:
            row = tier.row_of.get(node)
            if row is None or not is_open[row]:
                continue
            fit = tier.replicas_on(row, shape)
            if shape.cpu_m:
                fit = min(fit, int(self.cpu_free[node]) // shape.cpu_m)
            if shape.memory_mib:
                fit = min(fit, int(self.memory_free[node]) // shape.memory_mib)
            fit = max(fit, 0)
            known.total += fit - int(each[row])
            each[row] = fit

    def finish_reasons(self) -> None:
        """Fill in the `parts` of all placements so far: together they are worked out in a fraction of the time."""
        if "scores" in self.__dict__:
            self.scores.packer.explain_noted()

    def savepoint(self) -> int:
        return len(self._undo)

    def rollback(self, savepoint: int) -> None:
        """Undo all that was taken and released since then."""
        while len(self._undo) > savepoint:
            node, cpu_m, memory_mib, tier, row, state = self._undo.pop()
            self.cpu_free[node], self.memory_free[node] = cpu_m, memory_mib
            if tier is not None and state is not None:
                tier.restore(row, state)
            self._touch(node)

    def release(self, live: Iterable[Live]) -> None:
        """Give back what live replicas hold, as if they had ended."""
        for held in live:
            node = self.node_index.get(held.node_id)
            if node is None:
                continue
            tier = self.tiers.get(held.tier_id)
            row = -1 if tier is None else tier.row_of.get(node, -1)
            self._note(node, tier, row)
            self.cpu_free[node] += held.cpu_m
            self.memory_free[node] += held.memory_mib
            if tier is not None and row >= 0:
                tier.give_back(row, held)
            self._touch(node)

    def _touch(self, node: int) -> None:
        self._changed.append(node)
        self._cut_cards.follow(node)
        if "scores" in self.__dict__:
            self.scores.touch(node)

    def is_free(self, replicas: Iterable[ReplicaPlacement]) -> bool:
        """Whether exactly these could start now."""
        before = self.savepoint()
        able = all(self._could_hold(replica) and self.hold(replica, "", beside=True) for replica in replicas)
        self.rollback(before)
        return able

    def _could_hold(self, replica: ReplicaPlacement) -> bool:
        node = self.node_index[replica.node_id]
        return bool(self.cpu_free[node] >= replica.cpu_m and self.memory_free[node] >= replica.memory_mib)

    def hold(self, replica: ReplicaPlacement, sharer: str, *, beside: bool) -> bool:
        """Take those of its cards that are free, and with `beside` its CPU and memory; whether all cards were."""
        node, tier = self.node_index[replica.node_id], self.tiers[replica.tier_id]
        row = tier.row_of[node]
        self._note(node, tier, row)
        wanted = [column for column, gpu in enumerate(tier.gpus[row]) if gpu.id in replica.gpu_ids]
        free = [column for column in wanted if tier.slots[row, column] >= replica.slots]
        tier.take(row, free, replica.slots, sharer)
        if beside:
            self.cpu_free[node] -= replica.cpu_m
            self.memory_free[node] -= replica.memory_mib
        self._touch(node)
        return len(free) == len(wanted)

    def leave_free(self, node: int, cpu_m: int, memory_mib: int) -> None:
        """So much CPU and memory is free there from now on."""
        self._note(node, None, -1)
        self.cpu_free[node], self.memory_free[node] = cpu_m, memory_mib
        self._touch(node)

    def _note(self, node: int, tier: TierNodes | None, row: int) -> None:
        state = None if tier is None or row < 0 else tier.state(row)
        self._undo.append((node, int(self.cpu_free[node]), int(self.memory_free[node]), tier, row, state))

    def fits_now(self, tier: TierNodes, shape: Shape) -> bool:
        # Necessary conditions first: most requests that wait are refused by one of these two.
        if tier.usable.size == 0 or tier.slots_of(shape) > WHOLE:
            return False
        needed = 0 if shape.is_share else shape.gpus
        if tier.most_usable < needed or tier.usable_in_all < needed * shape.replicas:
            return False
        return self._holds_anyway(tier, shape) or self._holds(tier, shape)

    def _holds_anyway(self, tier: TierNodes, shape: Shape) -> bool:
        """Whether the nodes that have not changed since it was last asked are enough by themselves."""
        known = self._fits.get((tier.tier_id, shape))
        if known is None or shape.required_level is not None or len(self._changed) - known.changes > _MANY:
            return False
        nodes = set(self._changed[known.changes :])
        changed = [tier.row_of[node] for node in nodes if node in tier.row_of]
        return known.total - int(known.each[changed].sum()) >= shape.replicas

    def _holds(self, tier: TierNodes, shape: Shape) -> bool:
        fit = self._fit(tier, shape)
        if shape.required_level is None or fit.total < shape.replicas:
            return fit.total >= shape.replicas
        return self.topology.holds(tier, shape, fit.each)

    def place(self, tier: TierNodes, shape: Shape, at_most: Ints | None = None) -> Placed | None:
        """Take the best places for all replicas of the shape, or none at all; `at_most` so many on each node."""
        if not tier.nodes.size or tier.slots_of(shape) > WHOLE:
            return None
        if not self._holds(tier, shape):
            return None
        fit = self.fit_per_node(tier, shape)  # (tier nodes,)
        if at_most is not None:
            fit = np.minimum(fit, at_most)
            if not self.topology.holds(tier, shape, fit):
                return None
        elif shape.replicas > 1:
            fit = fit.copy()
        if shape.replicas > 1 and (shape.asks_topology or (self._close and self.topology.has_levels)):
            return self._place_near(tier, shape, fit)
        placements: list[ReplicaPlacement] = []
        why: dict[str, Any] = {}
        while len(placements) < shape.replicas:
            wanted = shape.replicas - len(placements)
            count = np.minimum(fit, wanted) if wanted > 1 else fit  # (tier nodes,)
            costs = self.scores.costs(tier, shape, count, wanted)
            why = why or self._why(tier, shape, count, costs)
            for row in self._best_first(costs, shape, wanted):
                many = 1 if wanted == 1 or shape.is_share else int(count[row])
                if not many or many > shape.replicas - len(placements):
                    break
                placements += [self._take(tier, row, shape, len(placements) + i) for i in range(many)]
                if wanted > many:
                    fit[row] -= many
        return Placed(tuple(placements), why)

    def _place_near(self, tier: TierNodes, shape: Shape, fit: Ints) -> Placed:
        """The node with the best score that holds the whole gang; without one as the topology has it."""
        wanted, topology = shape.replicas, self.topology
        one_node = fit >= wanted
        if shape.spread_level is None and one_node.any():
            counts = np.where(one_node, wanted, 0)  # (tier nodes,)
            costs = self.scores.costs(tier, shape, counts, wanted)
            rows = [int(costs.argmin())]
        else:
            counts = topology.counts(tier, shape, fit)
            costs = self.scores.costs(tier, shape, counts, wanted)
            rows = topology.in_rank(tier, np.flatnonzero(counts).tolist())
        why = self._why(tier, shape, counts, costs) | {"candidates": int((fit > 0).sum())}
        if len(rows) > 1:
            why |= {"runner_up": None, "topology": topology.reached(tier, rows)}
        placements: list[ReplicaPlacement] = []
        for row in rows:
            for columns in self._columns(tier, row, shape, int(counts[row])):
                placements.append(self._take(tier, row, shape, len(placements), columns))
        return Placed(tuple(placements), why)

    def _columns(self, tier: TierNodes, row: int, shape: Shape, count: int) -> Iterable[tuple[int, ...]]:
        """The cards of each of the replicas there, as they are taken one after the other."""
        if shape.required_level == ISLAND and tier.on_one_island(shape):
            gpus = shape.gpus
            cards = tier.pick(row, replace(shape, gpus=gpus * count))
            yield from (cards[first : first + gpus] for first in range(0, len(cards), gpus))
        else:
            for _ in range(count):
                yield tier.pick(row, shape)

    def _best_first(self, costs: Floats, shape: Shape, wanted: int) -> list[int]:
        """Rows by their costs, as long as these hold: a share changes the cost of what it joined."""
        if wanted == 1 or shape.is_share:
            return [int(costs.argmin())]
        best: list[int] = costs.argsort(kind="stable")[:wanted].tolist()
        return best

    def place_mixed(self, tiers: list[tuple[TierNodes, int, Ints | None]], shape: Shape) -> Placed | None:
        """Spread one gang over tiers in order of preference, each with its most replicas; all or none."""
        rooms = []
        for tier, most, each_node in tiers:
            fit = self.fit_per_node(tier, shape)  # (tier nodes,)
            rooms.append((tier, fit if each_node is None else np.minimum(fit, each_node), most))
        free = shape if shape.required_level == ISLAND else replace(shape, required_level=None)
        for fits in self.topology.rooms(rooms, shape):
            parts = [(tier, fit, most) for (tier, _, most), fit in zip(rooms, fits, strict=True)]
            placed = self._place_parts(parts, free)
            if placed is not None:
                return placed
        return None

    def _place_parts(self, tiers: list[tuple[TierNodes, Ints, int]], shape: Shape) -> Placed | None:
        """As many as each tier has room for and may take; all or none."""
        before = self.savepoint()
        placements: list[ReplicaPlacement] = []
        why: dict[str, Any] = {}
        for tier, room, most in tiers:
            fit = np.minimum(self.fit_per_node(tier, shape), room)  # (tier nodes,)
            count = min(shape.replicas - len(placements), most, int(fit.sum()))
            placed = self.place(tier, shape.with_replicas(count), fit) if count > 0 else None
            if placed is not None:
                why = why or placed.why
                placements += renumbered(placed.replicas, len(placements))
        if len(placements) == shape.replicas:
            return Placed(tuple(placements), why)
        self.rollback(before)
        return None

    def _take(
        self,
        tier: TierNodes,
        row: int,
        shape: Shape,
        index: int,
        columns: tuple[int, ...] | None = None,
    ) -> ReplicaPlacement:
        node_row = int(tier.nodes[row])
        node = self.nodes[node_row]
        self._note(node_row, tier, row)
        columns = tier.pick(row, shape) if columns is None else columns
        slots = tier.slots_of(shape)
        self.cpu_free[node_row] -= shape.cpu_m
        self.memory_free[node_row] -= shape.memory_mib
        tier.take(row, columns, slots, shape.sharer)
        self._touch(node_row)
        return ReplicaPlacement(
            index,
            node.id,
            node.epoch,
            tuple(tier.gpus[row][column].id for column in columns),
            tier.units_each(shape) // shape.gpus,
            slots,
            shape.cpu_m,
            shape.memory_mib,
            tier.tier_id,
        )

    def _why(self, tier: TierNodes, shape: Shape, count: Ints, costs: Floats) -> dict[str, Any]:
        best = int(costs.argmin())
        least = float(costs[best])
        costs[best] = np.inf
        second = int(costs.argmin())
        next_least = float(costs[second])
        costs[best] = least
        many = shape.replicas  # at most, on one node
        return {
            "candidates": int(np.count_nonzero(count)),
            "score": self._score_parts(tier, shape, min(many, int(count[best])), least, best),
            "runner_up": self._score_parts(tier, shape, min(many, int(count[second])), next_least, second)
            if next_least < np.inf
            else None,
        }

    def _score_parts(
        self, tier: TierNodes, shape: Shape, count: int, cost: float, row: int
    ) -> dict[str, Any]:
        """`cost`: the least wins, in steps for each replica; `parts`: what it is made of (`finish_reasons`)."""
        node = self.nodes[int(tier.nodes[row])]
        many = 1 if shape.is_share else count
        usable, opened = int(tier.usable[row]), many * shape.gpus
        card_left = None
        if shape.is_share:
            free = int(tier.slots[row, tier.pick(row, shape)[0]])
            opened, card_left = int(free == WHOLE), free - tier.slots_of(shape)
        return {
            "node_id": node.id,
            "node_name": node.name,
            "one_island": shape.gpus == 1 or tier.islands_for(row, shape) == 1,
            "breaks_whole_node": usable == int(tier.total[row]) and opened < usable,
            "gpus_left": usable - opened,
            "slots_left": card_left,  # on the card that a share goes to
            "replicas_here": many,
            "cpu_left_m": int(self.cpu_free[tier.nodes[row]]) - many * shape.cpu_m,
            "cost": round(cost, 3),
            "parts": self.scores.parts_later(tier, shape, row, many),
        }


def renumbered(replicas: Iterable[ReplicaPlacement], first: int) -> list[ReplicaPlacement]:
    return [replace(replica, index=first + offset) for offset, replica in enumerate(replicas)]


def replicas_that_fit(shape: Shape, by_gpu: Ints, cpu_m: Ints, memory_mib: Ints) -> Ints:
    """Replicas for each node, given those that its GPUs hold and its CPU and memory; never negative."""
    fit = by_gpu
    if shape.cpu_m:
        fit = np.minimum(fit, cpu_m // shape.cpu_m)
    if shape.memory_mib:
        fit = np.minimum(fit, memory_mib // shape.memory_mib)
    return np.maximum(fit, 0)


def _counts(values: Iterable[int]) -> Ints:
    return np.fromiter(values, dtype=np.int64)
