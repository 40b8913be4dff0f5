"""Who may leave a node together: every choice among its victims, what it loses and what is free then.

The choices of one node stand together, the lightest first, so that the first that holds so many replicas is the
cheapest for them. They are made in batches, when first asked for, and made anew when the node has changed.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

from scheduling.engine.ground import NEVER, Ground
from scheduling.engine.machines import NOBODY
from scheduling.engine.placement import Bools, Ints, Shape, TierNodes, replicas_that_fit
from scheduling.engine.snapshot import ISLAND, WHOLE
from scheduling.engine.victims import Victim

_MOST_BUNDLES = 10  # for each node; what is more is taken together
_AT_ONCE = 1 << 20  # choices × choices compared in one batch
_MOST_COMPARED = 256  # with more choices on a node, none is sorted out; nor where they have more parts
_MOST_PARTS = 4

_Bundle = tuple[Victim, ...]


@cache
def _subsets(count: int) -> Ints:
    """(2^count, count) every choice of so many, as zeros and ones."""
    return (np.arange(1 << count)[:, None] >> np.arange(count)) & 1


class Cards:
    """How one shape counts the cards of a node: whole ones, whole ones by island, or slots of each for shares.

    What it looks at is the `view`, (…, parts): shapes with the same `key` have the same view.
    """

    def __init__(self, tier: TierNodes, shape: Shape) -> None:
        self._tier, self._shape = tier, shape
        on_islands = shape.required_level == ISLAND and not shape.is_share
        self._islands = 1 + int(tier.island.max(initial=-1)) if on_islands else 0
        self._is_on_one = on_islands and tier.on_one_island(shape)
        self._code, self._slots = tier.code_of(shape), tier.slots_of(shape)
        self.key = "slots" if shape.is_share else "islands" if on_islands else "whole"

    def view(self, slots: Ints, rows: Ints) -> Ints:
        """`slots`: (rows, …, cards), of rows of the tier."""
        if self._code != NOBODY:
            return slots
        is_free = slots == WHOLE
        if not self._islands:
            return np.asarray(is_free.sum(axis=-1, keepdims=True))
        island = self._tier.island[rows].reshape(len(rows), *(1,) * (slots.ndim - 2), -1)
        each = [(is_free & (island == number)).sum(axis=-1) for number in range(self._islands)]
        return np.stack(each, axis=-1)

    def replicas(self, view: Ints, rows: Ints) -> Ints:
        """(n,) by the cards alone. `view`: (n, parts), `rows`: (n,) of the tier."""
        if self._code != NOBODY:
            joins = (view == WHOLE) | (self._tier.sharer[rows] == self._code)
            return np.asarray((view // self._slots * joins).sum(axis=-1))
        each = view // self._shape.gpus
        if not self._islands:
            return each[:, 0]
        return np.asarray(each.max(axis=-1) if self._is_on_one else each.sum(axis=-1))


class Choices:
    """Of one ground, for shapes that look at the cards alike.

    With `prices` those victims count for less or more; `banned` stay. All choices of all nodes are in one table:
    a node's are those from its `first`, so many as its `size`.
    """

    def __init__(
        self,
        ground: Ground,
        cards: Cards,
        prices: dict[Victim, int] | None = None,
        banned: frozenset[Victim] = frozenset(),
    ) -> None:
        self._ground, self._cards = ground, cards
        self._prices, self._banned = prices or {}, banned
        rows = ground.tier.nodes.size
        self._first = np.zeros(rows, dtype=np.int64)  # (tier nodes,)
        self._size = np.zeros(rows, dtype=np.int64)  # (tier nodes,) 0: not known
        self._seen = len(ground.changed)
        self._bundles_of: dict[int, list[_Bundle]] = {}
        self._count = 0
        # (choices,) and what lies behind `_count` is not used yet. Grows by doubling.
        self.weight: Ints = np.zeros(64, dtype=np.int64)
        self._subset: Ints = np.zeros(64, dtype=np.int64)
        self._free: Ints = np.zeros((64, 2), dtype=np.int64)  # CPU, memory
        self._view: Ints = np.zeros((64, 0), dtype=np.int64)  # (choices, parts)

    def at(self, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """(their places in the table, in order; where each row's begin among them; how many each has)."""
        changed = self._ground.changed
        if self._seen < len(changed):
            self._size[changed[self._seen :]] = 0
            self._seen = len(changed)
        unknown = rows[self._size[rows] == 0]
        if unknown.size:
            self._learn(unknown.tolist())
        sizes = self._size[rows]
        begins = np.cumsum(sizes) - sizes
        places = np.repeat(self._first[rows] - begins, sizes) + np.arange(int(sizes.sum()))
        return places, begins, sizes

    def replicas(self, shape: Shape, cards: Cards, places: Ints, rows: Ints) -> Ints:
        """(places,) that fit with each of these choices. `rows`: (places,)."""
        free = self._free[places]
        return replicas_that_fit(shape, cards.replicas(self._view[places], rows), free[:, 0], free[:, 1])

    def who(self, row: int, place: int) -> tuple[Victim, ...]:
        subset = int(self._subset[place])
        bundles = self._bundles_of[row]
        return tuple(v for number, bundle in enumerate(bundles) if subset >> number & 1 for v in bundle)

    # --- Making them ----------------------------------------------------------------------------------

    def _learn(self, rows: Sequence[int]) -> None:
        by_count: dict[int, list[int]] = {}
        for row in rows:
            self._bundles_of[row] = bundles = self._bundles(row)
            by_count.setdefault(len(bundles), []).append(row)
        for count, alike in sorted(by_count.items()):
            step = max(1, _AT_ONCE >> 2 * count)
            for begin in range(0, len(alike), step):
                self._learn_alike(alike[begin : begin + step], count)

    def _learn_alike(self, alike: Sequence[int], count: int) -> None:
        """Rows that have equally many bundles."""
        rows, ground, tier = np.array(alike), self._ground, self._ground.tier
        weights, cards, beside = self._given(alike, count)
        chosen = _subsets(count)  # (subsets, bundles)
        slots = np.minimum(tier.slots[rows][:, None, :] + chosen @ cards, WHOLE)  # (rows, subsets, cards)
        nodes = tier.nodes[rows]
        now = np.stack([ground.fleet.cpu_free[nodes], ground.fleet.memory_free[nodes]], axis=-1)
        free = now[:, None, :] + chosen @ beside  # (rows, subsets, 2)
        view, total = self._cards.view(slots, rows), weights @ chosen.T
        order = np.argsort(total, axis=1, kind="stable")  # (rows, subsets) the lightest first
        along = order[:, :, None]
        view, free = np.take_along_axis(view, along, 1), np.take_along_axis(free, along, 1)
        kept = _not_outdone(view, free)
        sizes = kept.sum(axis=1)
        first = self._reserve(int(sizes.sum()), view.shape[-1])
        self._first[rows], self._size[rows] = first + np.cumsum(sizes) - sizes, sizes
        here = slice(first, self._count)
        self.weight[here] = np.take_along_axis(total, order, 1)[kept]
        self._subset[here], self._free[here], self._view[here] = order[kept], free[kept], view[kept]

    def _given(self, alike: Sequence[int], count: int) -> tuple[Ints, Ints, Ints]:
        """(rows, bundles) weights; (rows, bundles, cards) and (rows, bundles, 2) what each gives back."""
        tier, prices = self._ground.tier, self._prices
        weights = np.zeros((len(alike), count), dtype=np.int64)
        cards = np.zeros((len(alike), count, tier.slots.shape[1]), dtype=np.int64)
        beside = np.zeros((len(alike), count, 2), dtype=np.int64)
        for place, row in enumerate(alike):
            there = self._ground.on.get(row, {})
            for number, bundle in enumerate(self._bundles_of[row]):
                for victim in bundle:
                    gives = there[victim]
                    weights[place, number] += prices.get(victim, victim.weight)
                    cards[place, number] += gives.cards
                    beside[place, number] += (gives.cpu_m, gives.memory_mib)
        return weights, cards, beside

    def _reserve(self, count: int, parts: int) -> int:
        """The first of so many new places."""
        first, self._count = self._count, self._count + count
        size = self.weight.size
        while size < self._count:
            size *= 2
        if size > self.weight.size or self._view.shape[1] != parts:
            self.weight = _grown(self.weight, size, first)
            self._subset = _grown(self._subset, size, first)
            self._free = _grown(self._free, size, first)
            self._view = _grown(self._view if first else np.zeros((0, parts), dtype=np.int64), size, first)
        return first

    def _bundles(self, row: int) -> list[_Bundle]:
        """Who leaves together: each alone, or where they are too many, all that stand on one card."""
        there = self._ground.on.get(row, {})
        bundles: list[_Bundle] = [(victim,) for victim in there if victim not in self._banned]
        if len(bundles) <= _MOST_BUNDLES:
            return bundles
        if self._cards.key != "slots":
            together: dict[bytes, _Bundle] = {}
            for (victim,) in bundles:
                key = (there[victim].cards > 0).tobytes()
                together[key] = (*together.get(key, ()), victim)
            bundles = list(together.values())
        bundles.sort(key=lambda bundle: self._price_each(row, bundle))
        rest = [victim for bundle in bundles[_MOST_BUNDLES - 1 :] for victim in bundle]
        return [*bundles[: _MOST_BUNDLES - 1], tuple(rest)] if rest else bundles

    def _price_each(self, row: int, bundle: _Bundle) -> float:
        """The weight of each card that is free with it, or of each slot for a share."""
        now = self._ground.tier.slots[row]
        slots = now + sum(self._ground.on[row][victim].cards for victim in bundle)
        gained = int(slots.sum() - now.sum())
        if self._cards.key != "slots":
            gained = int((slots >= WHOLE).sum() - (now == WHOLE).sum())
        return sum(victim.weight for victim in bundle) / gained if gained else float(NEVER)


def _grown(table: Ints, size: int, used: int) -> Ints:
    """The same with room for so many."""
    grown = np.zeros((size, *table.shape[1:]), dtype=table.dtype)
    grown[:used] = table[:used]
    return grown


def _not_outdone(view: Ints, free: Ints) -> Bools:
    """(rows, choices) but for those that leave nothing more free than a lighter one does.

    `view`: (rows, choices, parts), `free`: (rows, choices, 2), both the lightest first.
    """
    rows, count, parts = view.shape
    if count <= 2 or count > _MOST_COMPARED or parts > _MOST_PARTS:
        return np.ones((rows, count), dtype=np.bool_)
    lighter = np.tri(count, k=-1, dtype=np.bool_)  # by [one, other]: whether the other is lighter
    outdone = np.broadcast_to(lighter, (rows, count, count)).copy()
    for left in (*np.moveaxis(view, -1, 0), *np.moveaxis(free, -1, 0)):  # (rows, choices)
        outdone &= left[:, None, :] >= left[:, :, None]
    return np.asarray(~outdone.any(axis=2))
