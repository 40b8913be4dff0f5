"""The victims that lose least, of those that may be taken, so that a gang fits.

`Choices` says how cheaply one, two, … replicas fit on each node; one knapsack over the nodes then chooses. That is
exact where every victim stands on one node. Victims on several nodes are tried one way and the other while they are
few, else by two prices: the whole loss on each node, or each node's part of it. Whatever is found is made minimal.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from scheduling.engine.choices import Cards, Choices
from scheduling.engine.ground import NEVER, Gives, Ground
from scheduling.engine.placement import Bools, Ints, Shape, replicas_that_fit
from scheduling.engine.snapshot import WHOLE
from scheduling.engine.victims import Victim

_MOST_GANGS = 6  # victims on several nodes of which every combination is tried
_EXACT_ROWS = 16
_FIRST_LOOK = 128  # nodes that are worked out at once, those that may be cheapest first; then ever more

_FAR = np.iinfo(np.int64).max


@dataclass(slots=True)
class _Least:
    """For one count of replicas, by row of the tier."""

    weight: Ints  # (tier nodes,) NEVER where so many do not fit
    place: Ints  # (tier nodes,) of that choice in its table
    is_known: Bools  # (tier nodes,)

    @classmethod
    def unknown(cls, rows: int) -> "_Least":
        return cls(
            np.full(rows, NEVER, dtype=np.int64),
            np.zeros(rows, dtype=np.int64),
            np.zeros(rows, dtype=np.bool_),
        )

    def forget(self, rows: Ints) -> None:
        self.weight[rows], self.is_known[rows] = NEVER, False


class Search:
    """For one ground and one shape of replica. `kept`: the ground's tables, shared by all its searches."""

    def __init__(self, ground: Ground, kept: dict[str, Choices], shape: Shape) -> None:
        self._ground, self._fleet, self._tier = ground, ground.fleet, ground.tier
        self._shape = replace(shape, replicas=1)
        self._cards = Cards(ground.tier, shape)
        self._open = ground.fleet.open_nodes(ground.tier, shape)  # (tier nodes,)
        if self._cards.key not in kept:
            kept[self._cards.key] = Choices(ground, self._cards)
        self._choices = kept[self._cards.key]
        self._seen = len(ground.changed)
        self._least: dict[int, _Least] = {}  # by count of replicas
        self._most = self._most_of(np.arange(ground.tier.nodes.size))  # (tier nodes,)

    def _sync(self) -> None:
        changed = self._ground.changed
        if self._seen == len(changed):
            return
        rows = np.unique(changed[self._seen :])
        self._seen = len(changed)
        self._most[rows] = self._most_of(rows)
        for least in self._least.values():
            least.forget(rows)

    # --- Whether it can be done at all ----------------------------------------------------------------

    def most(self) -> Ints:
        """(tier nodes,) replicas if every victim left: the necessary condition, before any search. Read only."""
        self._sync()
        return self._most

    def _most_of(self, rows: Ints) -> Ints:
        """(rows,)"""
        ground = self._ground
        if self._cards.key == "whole":
            by_gpu = ground.whole[rows] // self._shape.gpus
        else:
            by_gpu = self._cards.replicas(self._cards.view(ground.slots[rows], rows), rows)
        fit = replicas_that_fit(self._shape, by_gpu, ground.cpu_m[rows], ground.memory_mib[rows])
        most: Ints = fit * self._open[rows]
        return most

    # --- The cheapest on each node --------------------------------------------------------------------

    def _learn(self, rows: Ints, counts: Sequence[int]) -> None:
        """Work out the least for so many replicas there."""
        choices = self._choices
        for count, weight, place in self._work_out(choices, rows, counts):
            least = self._least_of(count)
            least.weight[rows], least.place[rows], least.is_known[rows] = weight, place, True

    def _work_out(
        self, choices: Choices, rows: Ints, counts: Sequence[int]
    ) -> Iterator[tuple[int, Ints, Ints]]:
        """(count, (rows,) least weight for so many, (rows,) place of that choice), one after the other."""
        places, begins, sizes = choices.at(rows)
        fit = choices.replicas(self._shape, self._cards, places, np.repeat(rows, sizes))
        for count in counts:
            first = np.minimum.reduceat(np.where(fit >= count, places, _FAR), begins)
            able = first < _FAR
            place = np.where(able, first, 0)
            yield count, np.where(able, choices.weight[place], NEVER), place

    def _least_of(self, count: int) -> _Least:
        if count not in self._least:
            self._least[count] = _Least.unknown(self._open.size)
        return self._least[count]

    def _look_at(self, allowed: Bools) -> _Least:
        """The least for one replica on the allowed nodes, but for nodes that cannot be cheaper than the best known."""
        least = self._least_of(1)
        stale = np.flatnonzero(~least.is_known & allowed)
        if not stale.size:
            return least
        best = int(least.weight[allowed].min(initial=NEVER))
        bounds = self._bounds(stale)
        order = np.argsort(bounds, kind="stable")
        stale, bounds = stale[order], bounds[order]
        begin, step = 0, _FIRST_LOOK
        while begin < (end := int(np.searchsorted(bounds, min(best, NEVER - 1), side="right"))):
            rows = stale[begin : min(end, begin + step)]
            self._learn(rows, (1,))
            best = min(best, int(least.weight[rows].min()))
            begin, step = begin + rows.size, step * 4
        return least

    def _bounds(self, rows: Ints) -> Ints:
        """(rows,) one replica costs at least so much: each card that is missing costs the least of any there."""
        tier = self._tier
        if self._shape.is_share:
            missing = (self._cards.replicas(tier.slots[rows], rows) < 1).astype(np.int64)
        else:
            missing = np.maximum(self._shape.gpus - tier.usable[rows], 0)
        each = self._ground.least_each[rows]
        bounds: Ints = np.where(
            missing == 0, 0, np.where(each < NEVER, missing * np.minimum(each, NEVER >> 8), NEVER)
        )
        return np.where(self._most[rows] > 0, bounds, NEVER)

    def _standing(self, victims: Sequence[Victim], allowed: Bools) -> Ints:
        """The allowed rows on which any of them stands."""
        rows = sorted({row for victim in victims for row in self._ground.rows(victim)})
        found = np.array(rows, dtype=np.int64)
        return found[allowed[found]]

    def _best_node(
        self, allowed: Bools, prices: dict[Victim, int], banned: frozenset[Victim]
    ) -> tuple[Victim, ...] | None:
        """Who leaves on the one node where a single replica is cheapest."""
        anew = self._standing((*prices, *banned), allowed)
        as_known = allowed.copy()
        as_known[anew] = False
        first = np.where(as_known, self._look_at(as_known).weight, NEVER)
        other = self._anew(anew, (1,), prices, banned)
        if other is not None:
            first[anew] = other.least[1][0]
        row = int(first.argmin())
        if first[row] >= NEVER:
            return None
        return self._who(row, 1, other)

    def _anew(
        self, rows: Ints, counts: Sequence[int], prices: dict[Victim, int], banned: frozenset[Victim]
    ) -> "_Anew | None":
        """Nodes of victims with a price of their own, or of those who stay, are worked out for this once."""
        if not rows.size:
            return None
        choices = Choices(self._ground, self._cards, prices, banned)
        least = {count: (weight, place) for count, weight, place in self._work_out(choices, rows, counts)}
        return _Anew(choices, {row: at for at, row in enumerate(rows.tolist())}, least)

    def _who(self, row: int, count: int, other: "_Anew | None") -> tuple[Victim, ...]:
        if other is not None and row in other.at:
            return other.choices.who(row, int(other.least[count][1][other.at[row]]))
        return self._choices.who(row, int(self._least[count].place[row]))

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
        allowed = allowed & self._open
        if int((self.most() * allowed).sum()) < replicas:
            return None
        best: tuple[int, tuple[Victim, ...]] | None = None
        for prices, staying in self._pricings(allowed, replicas, given, banned):
            enough = self._solve(allowed, replicas, prices, staying | banned)
            if enough is None:
                continue
            found = self._minimal(enough, replicas, allowed, given)
            weight = sum(victim.weight for victim in found)
            if best is None or weight < best[0]:
                best = (weight, found)
        return None if best is None else best[1]

    def _pricings(
        self, allowed: Bools, replicas: int, given: frozenset[Victim], banned: frozenset[Victim]
    ) -> Iterator[tuple[dict[Victim, int], frozenset[Victim]]]:
        """How the loss of victims that stand on several nodes is to be counted on each, one way after another."""
        free = dict.fromkeys(given, 0)
        gangs = {} if replicas == 1 else self._gangs(allowed, given | banned)
        if len(gangs) <= _MOST_GANGS and (not gangs or int(allowed.sum()) <= _EXACT_ROWS):
            for leaves in product((True, False), repeat=len(gangs)):
                out = {gang: 0 for gang, gone in zip(gangs, leaves, strict=True) if gone}
                yield free | out, frozenset(gangs) - out.keys()
            return
        yield free, frozenset()
        yield free | {gang: gang.weight // nodes + 1 for gang, nodes in gangs.items()}, frozenset()

    def _gangs(self, allowed: Bools, settled: frozenset[Victim]) -> dict[Victim, int]:
        """Those that stand on several of the allowed nodes, and on how many."""
        found = {}
        for victim in self._ground.on_several:
            nodes = int(allowed[list(self._ground.rows(victim))].sum())
            if nodes > 1 and victim not in settled:
                found[victim] = nodes
        return found

    def _solve(
        self, allowed: Bools, replicas: int, prices: dict[Victim, int], banned: frozenset[Victim]
    ) -> list[Victim] | None:
        if replicas == 1:
            alone = self._best_node(allowed, prices, banned)
            return None if alone is None else list(alone)
        counts = range(1, min(replicas, int(self._most[allowed].max())) + 1)
        anew = self._standing((*prices, *banned), allowed)
        other = self._anew(anew, counts, prices, banned)
        as_known = allowed & (self._most > 0)
        as_known[anew] = False
        known = [self._least_of(count) for count in counts]
        stale = np.flatnonzero(as_known & ~np.all([least.is_known for least in known], axis=0))
        if stale.size:
            self._learn(stale, counts)
        able = np.where(as_known, [least.weight for least in known], NEVER)  # (counts, tier nodes)
        if other is not None:
            able[:, anew] = [other.least[count][0] for count in counts]
        picks = _knapsack(able, replicas)
        if picks is None:
            return None
        leaving = (victim for row, count in picks for victim in self._who(row, count, other))
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
        left: dict[int, Gives] = {}
        for victim in (*kept, *given):
            for row in self._ground.rows(victim):
                if row not in left:
                    left[row] = Gives(np.zeros(self._tier.slots.shape[1], dtype=np.int64), 0, 0)
                left[row].add(self._ground.on[row][victim], 1)
        fits = {row: self._fit(row, gives) if allowed[row] else 0 for row, gives in left.items()}
        spare = int(base.sum()) + sum(fits[row] - int(base[row]) for row in fits) - replicas
        for victim in sorted(kept, key=lambda victim: -victim.weight):
            fewer = {
                row: self._fit(row, left[row], but=self._ground.on[row][victim])
                for row in self._ground.rows(victim)
            }
            loss = sum(fits[row] - fit for row, fit in fewer.items() if allowed[row])
            if loss <= spare:
                del kept[victim]
                spare -= loss
                for row, fit in fewer.items():
                    fits[row] = fit if allowed[row] else 0
                    left[row].add(self._ground.on[row][victim], -1)
        return tuple(kept)

    def _fit(self, row: int, gives: Gives, but: Gives | None = None) -> int:
        """Replicas there once that is given back."""
        node = int(self._tier.nodes[row])
        slots = self._tier.slots[row] + gives.cards
        cpu_m = int(self._fleet.cpu_free[node]) + gives.cpu_m
        memory_mib = int(self._fleet.memory_free[node]) + gives.memory_mib
        if but is not None:
            slots, cpu_m, memory_mib = slots - but.cards, cpu_m - but.cpu_m, memory_mib - but.memory_mib
        rows = np.array((row,))
        view = self._cards.view(np.minimum(slots, WHOLE)[None, :], rows)
        by_gpu = int(self._cards.replicas(view, rows)[0])
        if self._shape.cpu_m:
            by_gpu = min(by_gpu, cpu_m // self._shape.cpu_m)
        if self._shape.memory_mib:
            by_gpu = min(by_gpu, memory_mib // self._shape.memory_mib)
        return max(0, by_gpu)


@dataclass(slots=True)
class _Anew:
    """Some nodes' choices at other prices, for one question."""

    choices: Choices
    at: dict[int, int]  # by row of the tier: where it stands in the arrays
    least: Mapping[int, tuple[Ints, Ints]]  # by count: (rows,) weights and places


def _knapsack(able: Ints, replicas: int) -> list[tuple[int, int]] | None:
    """(row, replicas there) of least weight in all; None if there is no room.

    `able`: (counts, tier nodes) the weight for 1, 2, … replicas there, NEVER where they do not fit.
    """
    kept = _not_outdone(able, replicas)
    best = np.full(replicas + 1, NEVER, dtype=np.int64)  # (replicas + 1,) weight of so many
    best[0] = 0
    picked = np.zeros((len(kept), replicas + 1), dtype=np.int32)
    for number, row in enumerate(kept):
        after = best.copy()
        for count, weight in enumerate(able[:, row].tolist(), 1):
            if weight >= NEVER:
                break
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


def _not_outdone(able: Ints, replicas: int) -> list[int]:
    """At most `replicas` nodes are used, so for each count of replicas the cheapest so many are enough."""
    kept: set[int] = set()
    for weights in able:
        rows = np.flatnonzero(weights < NEVER)
        if rows.size > replicas:
            rows = rows[weights[rows] <= np.partition(weights[rows], replicas - 1)[replicas - 1]]
            rows = rows[np.argsort(weights[rows], kind="stable")[:replicas]]
        kept.update(rows.tolist())
    return sorted(kept)
