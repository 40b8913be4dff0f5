"""Which nodes of the fabric a gang stands on: few domains, close together, or spread on purpose.

Levels are data, widest first (zone, block, rack …), and the node itself is the last. Everything here counts
replicas: how many of them each node has room for is the caller's knowledge.

A gang goes to the lowest domain that holds all of it; among domains of one level to that with the least room. If
it needs several, the largest are filled first and what is left goes to the smallest that holds it (Kueue's best
fit: room for 3, 3, 2, 1 and a gang of 7 give 3 + 3 + 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduling.engine.machines import Ints, Shape, TierNodes
from scheduling.engine.snapshot import ISLAND, NODE, Node, Request

NO_SUCH_LEVEL = -1


class Fabric:
    """The domain of each node at each level. Ids are in order of the names on the way down, so ties are stable.

    A node without a domain at some level and all below is alone there: nothing says that it is near any other.
    """

    def __init__(self, levels: Sequence[str], nodes: Sequence[Node]) -> None:
        self.levels = (*levels, NODE)
        self.names: list[list[str]] = []
        ids = [self._ids(level, nodes) for level in range(len(levels))]
        ids.append(np.arange(len(nodes), dtype=np.int64))
        self.names.append([node.name for node in nodes])
        self.ids = np.array(ids).reshape(len(self.levels), len(nodes))  # (levels, nodes)
        along = np.lexsort(self.ids[::-1])
        self.rank = np.empty(
            len(nodes), dtype=np.int64
        )  # (nodes,) neighbours in the fabric are neighbours here
        self.rank[along] = np.arange(len(nodes))

    def _ids(self, level: int, nodes: Sequence[Node]) -> Ints:
        """(nodes,) A name counts below the names of the wider levels only: each zone may have its own rack 1.

        Without a name there, nodes are together that share the next lower domain that has one.
        """
        paths: list[tuple[object, ...]] = []
        for row, node in enumerate(nodes):
            depth = next((lower for lower in range(level, len(node.domains)) if node.domains[lower]), None)
            paths.append(("", row) if depth is None else (*node.domains[: depth + 1], -1))
        known = {path: number for number, path in enumerate(sorted(set(paths), key=_by_name))}
        self.names.append([str(path[level]) if int(str(path[-1])) < 0 else "" for path in known])
        return np.fromiter((known[path] for path in paths), dtype=np.int64, count=len(nodes))

    def depth(self, level: str | None) -> int | None:
        """Which of the levels it is, from 0; None for no level and for one that is not known."""
        return self.levels.index(level) if level in self.levels else None

    def shared_level(self, nodes: Ints) -> tuple[str, str] | None:
        """(level, domain) of the lowest domain that all these nodes (rows of the fleet) are in."""
        for depth in range(len(self.levels) - 1, -1, -1):
            ids = self.ids[depth, nodes]
            if ids.size and (ids == ids[0]).all():
                return self.levels[depth], self.names[depth][int(ids[0])]
        return None


def _by_name(path: tuple[object, ...]) -> tuple[bool, tuple[str, ...], int]:
    """Named domains first, in the order of their names; then the nodes that have none."""
    names = tuple(str(part) for part in path[:-1])
    return (names == ("",), names, int(str(path[-1])))


@dataclass(frozen=True, slots=True)
class Wish:
    """What of a gang's topology holds now, as depths in the fabric; None: no such wish.

    `within` may be NO_SUCH_LEVEL: then nothing holds the gang.
    """

    within: int | None = None  # all replicas in one domain of this level
    spread: int | None = None  # evenly over its domains


def level_now(request: Request, now_us: int, levels: Sequence[str]) -> str | None:
    """The level that the request insists on: for a while the one it prefers, then the one that it requires."""
    known = (*levels, NODE, ISLAND)
    required, preferred = request.required_level, request.preferred_level
    if preferred not in known or now_us >= relaxes_us(request):
        return required
    if required is not None and (required not in known or known.index(required) > known.index(preferred)):
        return required
    return preferred


def relaxes_us(request: Request) -> int:
    """From when on it takes what there is inside the level that it requires."""
    return request.queued_us + request.level_wait_s * 1_000_000


def most_in_a_domain(fit: Ints, ids: Ints) -> int:
    """The most replicas that one domain holds. `fit`, `ids`: (nodes,)."""
    return int(_sums(fit, ids).max(initial=0))


def holds(fit: Ints, domains: Ints, wish: Wish, wanted: int) -> bool:
    """Whether there is room for all. `fit`: (nodes,), `domains`: (levels, nodes)."""
    if wish.within is None:
        return int(fit.sum()) >= wanted
    if wish.within == NO_SUCH_LEVEL:
        return False
    return most_in_a_domain(fit, domains[wish.within]) >= wanted


def assign(fit: Ints, free: Ints, domains: Ints, wanted: int, wish: Wish) -> Ints | None:
    """(nodes,) replicas for each node, or None without room for all.

    `fit`: (nodes,) replicas that each node has room for; `free`: (nodes,) its free GPUs, which decide between
    equal rooms; `domains`: (levels, nodes), the nodes themselves in its last row.
    """
    if wish.within == NO_SUCH_LEVEL:
        return None
    rows = np.flatnonzero(fit > 0)
    packing = _Packing(fit, free, domains)
    if wish.spread is not None and (wish.within is None or wish.spread > wish.within):
        if wish.within is not None:
            chosen = packing.best(rows, wish.within, wanted)
            if chosen is None:
                return None
            rows = chosen
        return packing.spread(rows, wish.spread, wanted)
    return packing.pack(rows, 0 if wish.within is None else wish.within, wanted, must=wish.within is not None)


class _Packing:
    def __init__(self, fit: Ints, free: Ints, domains: Ints) -> None:
        self._fit, self._free, self._domains = fit, free, domains
        self._counts = np.zeros_like(fit)

    def pack(self, rows: Ints, depth: int, wanted: int, *, must: bool = False) -> Ints | None:
        """The lowest domain, not above `depth`, that holds all; else, unless it must be one, several of that depth."""
        if int(self._fit[rows].sum()) < wanted:
            return None
        for lower in range(len(self._domains) - 1, depth - 1, -1):
            chosen = self.best(rows, lower, wanted)
            if chosen is not None:
                self._fill(chosen, lower + 1, wanted)
                return self._counts
        if must:
            return None
        self._fill(rows, depth, wanted)
        return self._counts

    def best(self, rows: Ints, depth: int, wanted: int) -> Ints | None:
        """The nodes of the domain with the least room that holds all; then the least free GPUs, then by name."""
        ids = self._domains[depth, rows]
        room, free = _sums(self._fit[rows], ids), _sums(self._free[rows], ids)
        able = np.flatnonzero(room >= max(wanted, 1))
        if not able.size:
            return None
        first = able[np.lexsort((able, free[able], room[able]))[0]]
        found: Ints = rows[ids == first]
        return found

    def _fill(self, rows: Ints, depth: int, wanted: int) -> None:
        """Largest domains of this depth first, whole; what is left goes where it fits with the least to spare."""
        if depth == len(self._domains):
            self._counts[rows] += wanted  # one node
            return
        ids = self._domains[depth, rows]
        room, free = _sums(self._fit[rows], ids), _sums(self._free[rows], ids)
        present = np.unique(ids)
        largest_first = present[np.lexsort((present, free[present], -room[present]))]
        filled = np.cumsum(room[largest_first])
        whole = largest_first[: np.searchsorted(filled, wanted)]
        is_whole = np.isin(ids, whole)
        self._counts[rows[is_whole]] += self._fit[rows[is_whole]]
        wanted -= int(room[whole].sum())
        last = self.best(rows[~is_whole], depth, wanted) if wanted else None
        if last is not None:
            self.pack(last, depth + 1, wanted)

    def spread(self, rows: Ints, depth: int, wanted: int) -> Ints | None:
        """As even as there is room: nobody could have one more without one who has no more than that."""
        ids = self._domains[depth, rows]
        room = _sums(self._fit[rows], ids)
        if int(room.sum()) < wanted:
            return None
        smallest_first = sorted(np.unique(ids).tolist(), key=lambda domain: (int(room[domain]), -domain))
        for place, domain in enumerate(smallest_first):
            count = min(int(room[domain]), wanted // (len(smallest_first) - place))
            wanted -= count
            if count:
                self.pack(rows[ids == domain], depth, count)
        return self._counts


def _sums(values: Ints, ids: Ints) -> Ints:
    """(ids,) the sum of the values for each id."""
    sums: Ints = np.bincount(ids, weights=values, minlength=1).astype(np.int64)
    return sums


class Topology:
    """The fabric of one fleet, as placement, timeline and explanations ask for it."""

    def __init__(self, levels: Sequence[str], nodes: Sequence[Node]) -> None:
        self.has_levels = bool(levels)
        self._levels, self._nodes = levels, nodes
        self._fabric: Fabric | None = None
        self._domains: dict[str, Ints] = {}

    @property
    def fabric(self) -> Fabric:
        if self._fabric is None:
            self._fabric = Fabric(self._levels, self._nodes)
        return self._fabric

    def domains(self, tier: TierNodes) -> Ints:
        """(levels, tier nodes)"""
        if tier.tier_id not in self._domains:
            self._domains[tier.tier_id] = self.fabric.ids[:, tier.nodes]
        return self._domains[tier.tier_id]

    def wish(self, tier: TierNodes, shape: Shape) -> Wish:
        return Wish(self._within(tier, shape), self._spread(shape))

    def _within(self, tier: TierNodes, shape: Shape) -> int | None:
        """Each replica stands on one island; a gang that an island of the tier could hold, all of it on one."""
        level = shape.required_level
        if level is None:
            return None
        if level == ISLAND:
            return len(self._levels) if tier.on_one_island(shape) else None
        depth = self.fabric.depth(level)
        return NO_SUCH_LEVEL if depth is None else depth

    def _spread(self, shape: Shape) -> int | None:
        return None if shape.spread_level is None else self.fabric.depth(shape.spread_level)

    def holds(self, tier: TierNodes, shape: Shape, fit: Ints) -> bool:
        """Whether there is room for the whole gang. `fit`: (tier nodes,) replicas by everything else."""
        if shape.required_level is None:
            return int(fit.sum()) >= shape.replicas
        return holds(fit, self.domains(tier), self.wish(tier, shape), shape.replicas)

    def knows(self, level: str | None) -> bool:
        return level is None or level == ISLAND or self.fabric.depth(level) is not None

    def largest(self, tier: TierNodes, shape: Shape, fit: Ints) -> tuple[str | None, int]:
        """(name, replicas) of the domain of the required level that holds most of the gang."""
        within = self._within(tier, shape)
        if within == NO_SUCH_LEVEL or not fit.size:
            return None, 0
        if within is None:
            return None, int(fit.sum())
        room = _sums(fit, self.domains(tier)[within])
        domain = int(room.argmax())
        return (self.fabric.names[within][domain], int(room[domain])) if room[domain] else (None, 0)

    def wider(self, shape: Shape) -> list[str | None]:
        """The levels above the one that it insists on, the next one first; at last none."""
        known = (*self._levels, NODE, ISLAND)
        if shape.required_level not in known:
            return [None]
        return [*known[: known.index(shape.required_level)][::-1], None]

    def narrow(self, tier: TierNodes, shape: Shape, fit: Ints) -> Ints:
        """(tier nodes,) `fit` inside the one domain that the gang goes to; unchanged where it need not be one."""
        within = self._within(tier, shape)
        if within is None or within == NO_SUCH_LEVEL:
            return fit
        rows = _Packing(fit, tier.usable, self.domains(tier)).best(
            np.flatnonzero(fit > 0), within, shape.replicas
        )
        inside = np.zeros_like(fit)
        if rows is not None:
            inside[rows] = fit[rows]
        return inside

    def beside(self, tier: TierNodes, shape: Shape, nodes: Sequence[int]) -> Ints | None:
        """(tier nodes,) 1 where a gang that stands on these nodes (rows of the fleet) may grow, else 0.

        None: anywhere.
        """
        within = self._within(tier, shape)
        if within is None or not nodes:
            return None
        if within == NO_SUCH_LEVEL:
            return np.zeros(tier.nodes.size, dtype=np.int64)
        return np.isin(self.domains(tier)[within], self.fabric.ids[within, list(nodes)]).astype(np.int64)

    def counts(self, tier: TierNodes, shape: Shape, fit: Ints) -> Ints:
        """(tier nodes,) replicas for each node. The caller knows that there is room for all."""
        found = assign(fit, tier.usable, self.domains(tier), shape.replicas, self.wish(tier, shape))
        if found is None:
            raise ValueError("there is no room for this gang")
        return found

    def rooms(self, tiers: Sequence[tuple[TierNodes, Ints, int]], shape: Shape) -> list[list[Ints]]:
        """For a gang over several tiers, each with (tier nodes,) room and its most replicas: all ways to try.

        Each way is the room of each tier inside one domain, that with the least room first.
        """
        within = self._within(tiers[0][0], shape)
        if within is None:
            return [[fit for _, fit, _ in tiers]]
        ways: dict[int, list[Ints]] = {}
        if within != NO_SUCH_LEVEL:
            for domain in sorted(
                {int(d) for tier, fit, _ in tiers for d in self.domains(tier)[within, fit > 0]}
            ):
                ways[domain] = [fit * (self.domains(tier)[within] == domain) for tier, fit, _ in tiers]
        most = [most for _, _, most in tiers]
        room = {
            domain: sum(min(int(fit.sum()), cap) for fit, cap in zip(fits, most, strict=True))
            for domain, fits in ways.items()
        }
        able = [domain for domain in ways if room[domain] >= shape.replicas]
        return [ways[domain] for domain in sorted(able, key=lambda domain: (room[domain], domain))]

    def reached(self, tier: TierNodes, rows: Sequence[int]) -> dict[str, str] | None:
        """The lowest domain that all these nodes (rows of the tier) share; None without one."""
        found = self.fabric.shared_level(tier.nodes[list(rows)])
        return None if found is None else {"level": found[0], "domain": found[1]}

    def in_rank(self, tier: TierNodes, rows: Sequence[int]) -> list[int]:
        """Rows of the tier so that neighbours in the list are neighbours in the fabric."""
        return sorted(rows, key=lambda row: int(self.fabric.rank[tier.nodes[row]]))
