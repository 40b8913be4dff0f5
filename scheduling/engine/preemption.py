"""The victims that lose least, of those that may be taken, so that a gang fits.

For each node a table says how cheaply one, two, … replicas fit there; one knapsack over the nodes then chooses. That
is exact where every victim stands on one node. Victims on several nodes are tried one way and the other while they
are few, else by two prices: the whole loss on each node, or each node's part of it. Whatever is found is made minimal.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np

from scheduling.engine.placement import Bools, Fleet, Ints, Shape, TierNodes, replicas_that_fit
from scheduling.engine.snapshot import ISLAND, WHOLE
from scheduling.engine.victims import Victim

NEVER = 1 << 62
_MOST_BUNDLES = 10  # for each node; what is more is taken together
_MOST_GANGS = 6  # victims on several nodes of which every combination is tried
_EXACT_ROWS = 16

_Bundle = tuple[Victim, ...]
_Table = list[tuple[int, _Bundle]]  # by replicas: the least weight, and who leaves for it


@cache
def _subsets(count: int) -> Ints:
    """(2^count, count) every choice of so many, as zeros and ones."""
    return (np.arange(1 << count)[:, None] >> np.arange(count)) & 1


class _Gives:
    """What one victim gives back on one node, as this tier sees it."""

    __slots__ = ("cards", "cpu_m", "memory_mib")

    def __init__(self, cards: Ints, cpu_m: int, memory_mib: int) -> None:
        self.cards, self.cpu_m, self.memory_mib = cards, cpu_m, memory_mib  # (cards,) slots

    def add(self, other: "_Gives", sign: int) -> None:
        self.cards = self.cards + sign * other.cards
        self.cpu_m += sign * other.cpu_m
        self.memory_mib += sign * other.memory_mib


class Search:
    """For one circle of victims, one tier and one shape of replica; `forget` what happened on a node."""

    def __init__(self, fleet: Fleet, tier: TierNodes, shape: Shape, victims: Iterable[Victim]) -> None:
        self._fleet, self._tier = fleet, tier
        self._shape = replace(shape, replicas=1)
        on_islands = shape.required_level == ISLAND and not shape.is_share
        self._island = tier.island if on_islands else None  # (tier nodes, cards)
        self._islands = 1 + int(self._island.max(initial=-1)) if self._island is not None else 0
        self._is_on_one = on_islands and tier.on_one_island(shape)
        self._open = fleet.open_nodes(tier, shape)  # (tier nodes,)
        self._column = {gpu.id: column for cards in tier.gpus for column, gpu in enumerate(cards)}
        self._on: dict[int, dict[Victim, _Gives]] = {}
        self._rows_of: dict[Victim, list[int]] = {}
        for victim in victims:
            self._enter(victim)
        size = tier.slots.shape
        self._extra = np.zeros(size, dtype=np.int64)  # (tier nodes, cards) slots, were they all gone
        self._extra_cpu = np.zeros(size[0], dtype=np.int64)  # (tier nodes,)
        self._extra_memory = np.zeros(size[0], dtype=np.int64)  # (tier nodes,)
        for row, there in self._on.items():
            for gives in there.values():
                self._add(row, gives, 1)
        self._tables: dict[int, _Table] = {}
        self._stale = np.array(self._open)  # (tier nodes,) whether their part of `_first` is not known
        self._first = np.full(size[0], NEVER, dtype=np.int64)  # (tier nodes,) least weight for one replica
        self._least_each = self._least_weights(size[0])

    def _least_weights(self, rows: int) -> Ints:
        """(tier nodes,) no card there becomes free for less; victims that leave later only raise it."""
        least = np.full(rows, NEVER, dtype=np.int64)
        for row, there in self._on.items():
            each = (victim.weight // max(1, int((gives.cards > 0).sum())) for victim, gives in there.items())
            least[row] = min(each)
        return least

    def _enter(self, victim: Victim) -> None:
        for live in victim.live:
            node = self._fleet.node_index.get(live.node_id)
            row = None if node is None else self._tier.row_of.get(node)
            if row is None or not self._open[row]:
                continue
            there = self._on.setdefault(row, {})
            gives = there.get(victim)
            if gives is None:
                gives = there[victim] = _Gives(np.zeros(self._tier.slots.shape[1], dtype=np.int64), 0, 0)
                self._rows_of.setdefault(victim, []).append(row)
            gives.cpu_m += live.cpu_m
            gives.memory_mib += live.memory_mib
            if live.tier_id == self._tier.tier_id:
                for gpu_id in live.gpu_ids:
                    column = self._column[gpu_id]
                    gives.cards[column] += live.slots * int(self._tier.is_ready[row, column])

    def _add(self, row: int, gives: _Gives, sign: int) -> None:
        self._extra[row] += sign * gives.cards
        self._extra_cpu[row] += sign * gives.cpu_m
        self._extra_memory[row] += sign * gives.memory_mib

    def forget(self, rows: Iterable[int], gone: Iterable[Victim] = ()) -> None:
        """These nodes have changed; these victims have left."""
        for victim in gone:
            for row in self._rows_of.pop(victim, ()):
                self._add(row, self._on[row].pop(victim), -1)
                self._changed(row)
        for row in rows:
            self._changed(row)

    def _changed(self, row: int) -> None:
        self._tables.pop(row, None)
        if self._open[row]:
            self._stale[row] = True
            self._first[row] = NEVER

    # --- Whether it can be done at all ----------------------------------------------------------------

    def most(self) -> Ints:
        """(tier nodes,) replicas if every victim left: the necessary condition, before any search."""
        slots = np.minimum(self._tier.slots + self._extra, WHOLE * self._tier.is_ready)
        nodes = self._tier.nodes
        cpu_m = self._fleet.cpu_free[nodes] + self._extra_cpu
        memory_mib = self._fleet.memory_free[nodes] + self._extra_memory
        by_gpu = self._by_gpu(slots, self._tier.sharer, self._island)
        return replicas_that_fit(self._shape, by_gpu, cpu_m, memory_mib) * self._open

    def _by_gpu(self, slots: Ints, sharer: Ints, island: Ints | None) -> Ints:
        """Replicas by the cards alone, along the last axis."""
        if self._shape.is_share:
            joins = (slots == WHOLE) | (sharer == self._tier.code_of(self._shape))
            return np.asarray((slots // self._tier.slots_of(self._shape) * joins).sum(axis=-1))
        is_free = slots == WHOLE
        if island is None:
            return np.asarray(is_free.sum(axis=-1) // self._shape.gpus)
        each = [
            (is_free & (island == number)).sum(axis=-1) // self._shape.gpus for number in range(self._islands)
        ]
        return np.asarray(np.max(each, axis=0) if self._is_on_one else np.sum(each, axis=0))

    def _island_of(self, row: int) -> Ints | None:
        return None if self._island is None else self._island[row]

    # --- Tables of single nodes -----------------------------------------------------------------------

    def _bundles(self, row: int, victims: Sequence[Victim]) -> list[_Bundle]:
        """Who leaves together: each alone, or where they are too many, all that stand on one card."""
        bundles: list[_Bundle] = [(victim,) for victim in victims]
        if len(bundles) <= _MOST_BUNDLES:
            return bundles
        if not self._shape.is_share:
            together: dict[bytes, _Bundle] = {}
            for victim in victims:
                key = (self._on[row][victim].cards > 0).tobytes()
                together[key] = (*together.get(key, ()), victim)
            bundles = list(together.values())
        bundles.sort(key=lambda bundle: self._price_each(row, bundle))
        rest = [victim for bundle in bundles[_MOST_BUNDLES - 1 :] for victim in bundle]
        return [*bundles[: _MOST_BUNDLES - 1], tuple(rest)] if rest else bundles

    def _price_each(self, row: int, bundle: _Bundle) -> float:
        """The weight of each card that is free with it, or of each slot for a share."""
        slots = np.array(self._tier.slots[row])
        for victim in bundle:
            slots += self._on[row][victim].cards
        gained = int(slots.sum() - self._tier.slots[row].sum())
        if not self._shape.is_share:
            gained = int((slots >= WHOLE).sum() - (self._tier.slots[row] == WHOLE).sum())
        return sum(victim.weight for victim in bundle) / gained if gained else float(NEVER)

    def _table(self, row: int, prices: dict[Victim, int], banned: frozenset[Victim]) -> _Table:
        tier, node = self._tier, int(self._tier.nodes[row])
        there = self._on.get(row, {})
        bundles = self._bundles(row, [victim for victim in there if victim not in banned])
        chosen = _subsets(len(bundles))  # (subsets, bundles)
        weights = np.array(
            [sum(prices.get(v, v.weight) for v in bundle) for bundle in bundles], dtype=np.int64
        )
        width = tier.slots.shape[1]
        cards = np.zeros((len(bundles), width), dtype=np.int64)
        beside = np.zeros((len(bundles), 2), dtype=np.int64)
        for number, bundle in enumerate(bundles):
            for victim in bundle:
                cards[number] += there[victim].cards
                beside[number] += (there[victim].cpu_m, there[victim].memory_mib)
        slots = np.minimum(tier.slots[row] + chosen @ cards, WHOLE)  # (subsets, cards)
        free = chosen @ beside  # (subsets, 2)
        cpu_m, memory_mib = (
            free[:, 0] + self._fleet.cpu_free[node],
            free[:, 1] + self._fleet.memory_free[node],
        )
        fit = replicas_that_fit(
            self._shape, self._by_gpu(slots, tier.sharer[row], self._island_of(row)), cpu_m, memory_mib
        )
        return _cheapest_by_count(fit * int(self._open[row]), chosen @ weights, bundles)

    def _tables_for(
        self, rows: Iterable[int], prices: dict[Victim, int], banned: frozenset[Victim]
    ) -> dict[int, _Table]:
        """Nodes of victims with a price of their own are worked out anew, all others once."""
        anew = {row for victim in (*prices, *banned) for row in self.rows(victim)}
        found = {}
        for row in rows:
            if row in anew:
                found[row] = self._table(row, prices, banned)
            else:
                if row not in self._tables:
                    self._tables[row] = self._table(row, {}, frozenset())
                found[row] = self._tables[row]
        return found

    def _look_at(self, allowed: Bools) -> None:
        """Work out `_first` of the allowed nodes, but for those that cannot be cheaper than the best one known."""
        stale = np.flatnonzero(self._stale & allowed)
        if not stale.size:
            return
        best = int(self._first[allowed].min(initial=NEVER))
        bounds = self._bounds(stale)
        order = np.argsort(bounds, kind="stable")
        for row, bound in zip(stale[order].tolist(), bounds[order].tolist(), strict=True):
            if bound > best or bound >= NEVER:
                break
            self._tables[row] = table = self._table(row, {}, frozenset())
            self._first[row] = table[1][0] if len(table) > 1 else NEVER
            self._stale[row] = False
            best = min(best, int(self._first[row]))

    def _bounds(self, rows: Ints) -> Ints:
        """(rows,) one replica costs at least so much: each card that is missing costs the least of any there."""
        slots = self._tier.slots[rows]
        if self._shape.is_share:
            missing = (self._by_gpu(slots, self._tier.sharer[rows], None) < 1).astype(np.int64)
        else:
            missing = np.maximum(self._shape.gpus - (slots == WHOLE).sum(axis=1), 0)
        each = self._least_each[rows]
        bounds: Ints = np.where(
            missing == 0, 0, np.where(each < NEVER, missing * np.minimum(each, NEVER >> 8), NEVER)
        )
        return bounds

    def _best_node(
        self, allowed: Bools, prices: dict[Victim, int], banned: frozenset[Victim]
    ) -> tuple[Victim, ...] | None:
        """Who leaves on the one node where a single replica is cheapest."""
        anew = sorted({row for victim in (*prices, *banned) for row in self.rows(victim) if allowed[row]})
        as_known = allowed.copy()
        as_known[anew] = False
        self._look_at(as_known)
        first = np.where(as_known, self._first, NEVER)
        tables = {row: self._table(row, prices, banned) for row in anew}
        for row, table in tables.items():
            first[row] = table[1][0] if len(table) > 1 else NEVER
        row = int(first.argmin())
        if first[row] >= NEVER:
            return None
        return (tables[row] if row in tables else self._tables[row])[1][1]

    # --- The choice -----------------------------------------------------------------------------------

    def cheapest(
        self,
        replicas: int,
        allowed: Bools,
        given: frozenset[Victim] = frozenset(),
        banned: frozenset[Victim] = frozenset(),
    ) -> tuple[Victim, ...] | None:
        """The set that loses least, minimal, for so many replicas on the allowed nodes.

        `given` leave anyway and are not part of the answer; `banned` stay.
        """
        if int((self.most() * allowed).sum()) < replicas:
            return None
        rows = np.flatnonzero(allowed & self._open).tolist()
        best: tuple[int, tuple[Victim, ...]] | None = None
        for prices, staying in self._pricings(rows, replicas, given, banned):
            enough = self._solve(rows, allowed, replicas, prices, staying | banned)
            if enough is None:
                continue
            found = self._minimal(enough, replicas, allowed, given)
            weight = sum(victim.weight for victim in found)
            if best is None or weight < best[0]:
                best = (weight, found)
        return None if best is None else best[1]

    def _pricings(
        self, rows: Sequence[int], replicas: int, given: frozenset[Victim], banned: frozenset[Victim]
    ) -> Iterator[tuple[dict[Victim, int], frozenset[Victim]]]:
        """How the loss of victims that stand on several nodes is to be counted on each, one way after another."""
        free = dict.fromkeys(given, 0)
        inside = set(rows)
        gangs = [] if replicas == 1 else self._gangs(inside, given | banned)
        if len(gangs) <= _MOST_GANGS and (not gangs or len(rows) <= _EXACT_ROWS):
            for leaves in product((True, False), repeat=len(gangs)):
                out = {gang: 0 for gang, gone in zip(gangs, leaves, strict=True) if gone}
                yield free | out, frozenset(gangs) - out.keys()
            return
        yield free, frozenset()
        parts = {gang: gang.weight // sum(row in inside for row in self._rows_of[gang]) + 1 for gang in gangs}
        yield free | parts, frozenset()

    def _gangs(self, inside: set[int], settled: frozenset[Victim]) -> list[Victim]:
        return [
            victim
            for victim, rows in self._rows_of.items()
            if len(rows) > 1 and victim not in settled and sum(row in inside for row in rows) > 1
        ]

    def _solve(
        self,
        rows: Sequence[int],
        allowed: Bools,
        replicas: int,
        prices: dict[Victim, int],
        banned: frozenset[Victim],
    ) -> list[Victim] | None:
        if replicas == 1:
            alone = self._best_node(allowed, prices, banned)
            return None if alone is None else list(alone)
        tables = self._tables_for(rows, prices, banned)
        picks = _knapsack(rows, tables, replicas)
        if picks is None:
            return None
        leaving = (victim for row, count in picks for victim in tables[row][count][1])
        paid = (victim for victim, price in prices.items() if not price)
        return list(dict.fromkeys((*leaving, *paid)))

    def _minimal(
        self, victims: Sequence[Victim], replicas: int, allowed: Bools, given: frozenset[Victim]
    ) -> tuple[Victim, ...]:
        """Give back whoever is not needed, the dearest first."""
        kept = {victim: None for victim in victims if victim not in given}
        if not kept:
            return ()
        base = self._fleet.fit_per_node(self._tier, self._shape) * allowed  # (tier nodes,)
        left: dict[int, _Gives] = {}
        for victim in (*kept, *given):
            for row in self.rows(victim):
                if row not in left:
                    left[row] = _Gives(np.zeros(self._tier.slots.shape[1], dtype=np.int64), 0, 0)
                left[row].add(self._on[row][victim], 1)
        fits = {row: self._fit(row, gives) if allowed[row] else 0 for row, gives in left.items()}
        spare = int(base.sum()) + sum(fits[row] - int(base[row]) for row in fits) - replicas
        for victim in sorted(kept, key=lambda victim: -victim.weight):
            fewer = {row: self._fit(row, left[row], but=self._on[row][victim]) for row in self.rows(victim)}
            loss = sum(fits[row] - fit for row, fit in fewer.items() if allowed[row])
            if loss <= spare:
                del kept[victim]
                spare -= loss
                for row, fit in fewer.items():
                    fits[row] = fit if allowed[row] else 0
                    left[row].add(self._on[row][victim], -1)
        return tuple(kept)

    def rows(self, victim: Victim) -> Sequence[int]:
        return self._rows_of.get(victim, ())

    def _fit(self, row: int, gives: _Gives, but: _Gives | None = None) -> int:
        """Replicas there once that is given back."""
        node = int(self._tier.nodes[row])
        slots = self._tier.slots[row] + gives.cards
        cpu_m = int(self._fleet.cpu_free[node]) + gives.cpu_m
        memory_mib = int(self._fleet.memory_free[node]) + gives.memory_mib
        if but is not None:
            slots, cpu_m, memory_mib = slots - but.cards, cpu_m - but.cpu_m, memory_mib - but.memory_mib
        by_gpu = int(self._by_gpu(np.minimum(slots, WHOLE), self._tier.sharer[row], self._island_of(row)))
        if self._shape.cpu_m:
            by_gpu = min(by_gpu, cpu_m // self._shape.cpu_m)
        if self._shape.memory_mib:
            by_gpu = min(by_gpu, memory_mib // self._shape.memory_mib)
        return max(0, by_gpu) * int(self._open[row])


def _cheapest_by_count(fit: Ints, weights: Ints, bundles: Sequence[_Bundle]) -> _Table:
    """For 0, 1, … replicas the first of the lightest subsets with room for so many."""
    order = np.lexsort((np.arange(fit.size), weights))
    table: _Table = []
    for subset in order.tolist():
        count = int(fit[subset])
        if count >= len(table):
            leaving = tuple(v for number, b in enumerate(bundles) if subset >> number & 1 for v in b)
            table += [(int(weights[subset]), leaving)] * (count + 1 - len(table))
    return table


def _knapsack(rows: Sequence[int], tables: dict[int, _Table], replicas: int) -> list[tuple[int, int]] | None:
    """(node, replicas) of least weight in all; None if there is no room."""
    kept = _not_outdone(rows, tables, replicas)
    best = np.full(replicas + 1, NEVER, dtype=np.int64)  # (replicas + 1,) weight of so many
    best[0] = 0
    picked = np.zeros((len(kept), replicas + 1), dtype=np.int32)
    for number, row in enumerate(kept):
        after = best.copy()
        for count in range(1, min(len(tables[row]) - 1, replicas) + 1):
            weight = tables[row][count][0]
            with_row = np.concatenate([np.full(count, NEVER), best[:-count]])
            with_row[count:] += np.where(best[:-count] < NEVER, weight, 0)
            better = with_row < after
            after[better], picked[number, better] = with_row[better], count
        best = after
    if best[replicas] >= NEVER:
        return None
    picks, left = [], replicas
    for number in range(len(kept) - 1, -1, -1):
        count = int(picked[number, left])
        if count:
            picks.append((kept[number], count))
            left -= count
    return picks


def _not_outdone(rows: Sequence[int], tables: dict[int, _Table], replicas: int) -> list[int]:
    """At most `replicas` nodes are used, so for each count of replicas the cheapest so many are enough."""
    kept: set[int] = set()
    for count in range(1, max((len(tables[row]) for row in rows), default=1)):
        able = sorted((tables[row][count][0], row) for row in rows if len(tables[row]) > count)
        kept.update(row for _, row in able[:replicas])
    return sorted(kept)
