"""The cards of one tier, node by node: what is free of each, who shares it, what is taken and given back."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from scheduling.engine.snapshot import ISLAND, UNITS_PER_GPU, WHOLE, Gpu, Live, Request

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NOBODY, UNKNOWN = 0, -1  # who shares a card: nobody yet; somebody who must not be joined
_UNITS_PER_SLOT = UNITS_PER_GPU // WHOLE


@dataclass(frozen=True, slots=True)
class Shape:
    """All that placement asks of a request: equal shapes have equal answers.

    A share asks for `share` thousandths of one card, for `gpu_memory_mib`, or for both: then the larger counts,
    and how many slots that is depends on the tier. Whole GPUs have neither.
    """

    replicas: int
    gpus: int
    cpu_m: int
    memory_mib: int
    pool_ids: tuple[str, ...] | None
    share: int = 0
    gpu_memory_mib: int = 0
    sharer: str = ""  # of shares: whose cards it may join
    node_labels: tuple[str, ...] = ()
    not_labels: tuple[str, ...] = ()
    not_nodes: tuple[str, ...] = ()
    required_level: str | None = None
    preferred_level: str | None = None
    spread_level: str | None = None
    is_share: bool = field(init=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_share", bool(self.share or self.gpu_memory_mib))
        asked = (self.replicas, self.gpus, self.cpu_m, self.memory_mib, self.share, self.gpu_memory_mib)
        object.__setattr__(self, "_hash", hash((asked, self.sharer, self.required_level)))

    def __hash__(self) -> int:
        """Worked out once: shapes are looked up far oftener than made."""
        return self._hash

    @classmethod
    def of(cls, request: Request, sharer: str = "", level: str | None = None) -> "Shape":
        """`level`: that on which the request insists now."""
        is_share = bool(request.share or request.gpu_memory_mib)
        return cls(
            request.replicas_min,
            request.gpus_per_replica,
            request.cpu_m,
            request.memory_mib,
            None if request.pool_ids is None else tuple(sorted(request.pool_ids)),
            request.share or 0,
            request.gpu_memory_mib or 0,
            sharer if is_share else "",
            tuple(sorted(request.node_labels)),
            tuple(sorted(request.not_labels)),
            tuple(sorted(request.not_nodes)),
            level,
            request.preferred_level,
            request.spread_level,
        )

    @property
    def asks_topology(self) -> bool:
        return bool(self.required_level or self.preferred_level or self.spread_level)

    def with_replicas(self, replicas: int) -> "Shape":
        return replace(self, replicas=replicas)


class TierNodes:
    """The nodes that have GPUs of one tier, in order of name, and those GPUs.

    A MIG instance is a GPU of its own tier that counts for fewer units; it is held whole, never shared.
    """

    def __init__(
        self,
        tier_id: str,
        memory_mib: int,
        gpus: Iterable[Gpu],
        node_index: dict[str, int],
        sharer_code: Callable[[str | None], int],
    ) -> None:
        self.tier_id, self.memory_mib = tier_id, memory_mib
        by_node: dict[int, list[Gpu]] = {}
        for gpu in sorted(gpus, key=lambda gpu: (gpu.index, gpu.id)):
            by_node.setdefault(node_index[gpu.node_id], []).append(gpu)
        members = sorted(by_node)
        self.gpus = [by_node[node] for node in members]
        self.units = max((gpu.units for row in self.gpus for gpu in row), default=UNITS_PER_GPU)
        self.nodes: Ints = np.array(members, dtype=np.int64)  # (tier nodes,) rows of the fleet
        self.row_of = {node: row for row, node in enumerate(members)}
        self._code = sharer_code
        size = (len(members), max(map(len, self.gpus), default=0))
        self.exists = np.zeros(size, dtype=np.bool_)  # (tier nodes, cards)
        self.is_ready = np.zeros(size, dtype=np.bool_)  # (tier nodes, cards)
        self.held: Ints = np.zeros(size, dtype=np.int64)  # (tier nodes, cards) slots that somebody has
        self.sharer: Ints = np.zeros(
            size, dtype=np.int64
        )  # (tier nodes, cards) code of whose shares they are
        self.slots: Ints = np.zeros(size, dtype=np.int64)  # (tier nodes, cards) slots free on ready cards
        for row, cards in enumerate(self.gpus):
            self._enter(row, cards)
        self.slots[:] = np.where(self.is_ready, WHOLE - self.held, 0)
        is_free = self.exists & (self.held == 0)
        self.total: Ints = self.exists.sum(axis=1)  # (tier nodes,)
        self.ready: Ints = self.is_ready.sum(axis=1)  # (tier nodes,)
        self.free: Ints = is_free.sum(axis=1)  # (tier nodes,) cards with nothing on them, ready or not
        self.usable: Ints = (is_free & self.is_ready).sum(axis=1)  # (tier nodes,) ready and free
        self.island, self.by_island = self._islands()
        # How many nodes have so many usable cards: all of them, and the most on one node, without a look at each.
        self._with_usable: list[int] = np.bincount(self.usable, minlength=size[1] + 1).tolist()
        self.usable_in_all = int(self.usable.sum())
        self._largest_island: int | None = None

    @property
    def most_usable(self) -> int:
        """On one node."""
        return next((n for n in range(len(self._with_usable) - 1, 0, -1) if self._with_usable[n]), 0)

    def _enter(self, row: int, cards: list[Gpu]) -> None:
        count = len(cards)
        self.exists[row, :count] = True
        self.is_ready[row, :count] = [gpu.ready for gpu in cards]
        self.held[row, :count] = [0 if gpu.free else WHOLE - gpu.slots_free for gpu in cards]
        self.sharer[row, :count] = [
            NOBODY if gpu.free else self._code(gpu.shared_by) if gpu.slots_free else UNKNOWN for gpu in cards
        ]

    def _islands(self) -> tuple[Ints, Ints]:
        """(tier nodes, cards) island of each card, counted from 0 on its node; (tier nodes, islands) usable cards."""
        island = np.zeros_like(self.held)
        most = 1
        for row, cards in enumerate(self.gpus):
            known = {number: place for place, number in enumerate(sorted({gpu.island for gpu in cards}))}
            island[row, : len(cards)] = [known[gpu.island] for gpu in cards]
            most = max(most, len(known))
        usable = self.slots == WHOLE
        counts = [((island == number) & usable).sum(axis=1) for number in range(most)]
        return island, np.array(counts, dtype=np.int64).T.copy()

    def slots_of(self, shape: Shape) -> int:
        """What each card gives to a replica; more than WHOLE if no card of this tier could."""
        if not shape.is_share:
            return WHOLE
        if self.units < UNITS_PER_GPU or (shape.gpu_memory_mib and not self.memory_mib):
            return WHOLE + 1
        by_memory = -(-WHOLE * shape.gpu_memory_mib // self.memory_mib) if shape.gpu_memory_mib else 0
        return max(shape.share, by_memory)

    def units_each(self, shape: Shape) -> int:
        """What one replica counts for."""
        if shape.is_share:
            return _UNITS_PER_SLOT * self.slots_of(shape)
        return shape.gpus * self.units

    def units_of(self, shape: Shape) -> int:
        return shape.replicas * self.units_each(shape)

    def replicas_by_gpu(self, shape: Shape, *, all_ready: bool = False, all_free: bool = False) -> Ints:
        """(tier nodes,) replicas by the GPUs alone; also if all were ready, or nothing were held."""
        if not shape.is_share:
            counts = {
                (False, False): self.usable,
                (True, False): self.free,
                (False, True): self.ready,
                (True, True): self.total,
            }
            return counts[all_ready, all_free] // shape.gpus
        slots = self.slots_of(shape)
        if all_free:
            return (self.total if all_ready else self.ready) * (WHOLE // slots)
        free = np.where(self.exists, WHOLE - self.held, 0) if all_ready else self.slots
        replicas: Ints = (free // slots * self.may_join(shape.sharer)).sum(axis=1)
        return replicas

    def on_one_island(self, shape: Shape) -> bool:
        """Whether some island of the tier, were it empty, would hold all replicas of the shape."""
        if shape.is_share:
            return False
        if self._largest_island is None:
            counts = self._per_island(self.exists)
            self._largest_island = max((int(n.max(initial=0)) for n in counts), default=0)
        return shape.gpus * shape.replicas <= self._largest_island

    def replicas_on_islands(self, shape: Shape, *, all_ready: bool = False, all_free: bool = False) -> Ints:
        """(tier nodes,) like `replicas_by_gpu`, but no replica (or small gang) is divided between islands."""
        if shape.is_share:
            return self.replicas_by_gpu(shape, all_ready=all_ready, all_free=all_free)
        cards = self.exists if all_ready else self.is_ready
        counts = [
            free // shape.gpus for free in self._per_island(cards if all_free else cards & (self.held == 0))
        ]
        if not counts:
            return np.zeros(self.nodes.size, dtype=np.int64)
        together: Ints = np.max(counts, axis=0) if self.on_one_island(shape) else np.sum(counts, axis=0)
        return together

    def replicas_on(self, row: int, shape: Shape) -> int:
        """What `replicas_by_gpu` (or `replicas_on_islands` for who insists on that) says of one node."""
        if shape.is_share:
            slots, code = self.slots_of(shape), self._code(shape.sharer)
            cards = zip(
                self.slots[row].tolist(), self.held[row].tolist(), self.sharer[row].tolist(), strict=True
            )
            return sum(free // slots for free, held, sharer in cards if not held or sharer == code)
        if shape.required_level != ISLAND:
            return int(self.usable[row]) // shape.gpus
        counts = [free // shape.gpus for free in self.by_island[row].tolist()]
        return max(counts, default=0) if self.on_one_island(shape) else sum(counts)

    def _per_island(self, cards: Bools) -> list[Ints]:
        """For the first, second … island of each node: (tier nodes,) how many of these cards it has."""
        return [(cards & (self.island == number)).sum(axis=1) for number in range(self.by_island.shape[1])]

    def may_join(self, sharer: str) -> Bools:
        """(tier nodes, cards) without anything on them, or with shares of the same sharer."""
        joins: Bools = (self.held == 0) | (self.sharer == self._code(sharer))
        return joins

    def code_of(self, shape: Shape) -> int:
        """Of whose cards a share may join; NOBODY for whole GPUs."""
        return self._code(shape.sharer) if shape.is_share else NOBODY

    def islands_for(self, row: int, shape: Shape) -> int:
        """How many islands the GPUs of a replica there come from."""
        needed, count = shape.gpus, 0
        for free in sorted(self.by_island[row].tolist(), reverse=True):
            count += needed > 0
            needed -= free
        return count + (needed > 0)

    def pick(self, row: int, shape: Shape) -> tuple[int, ...]:
        """The columns of the cards that a replica gets there: for a share the fullest that holds it.

        Whole GPUs come from the fullest island that has them all, else from the emptiest islands first.
        """
        if shape.is_share:
            return (self._card_for(row, shape),)
        free = self.by_island[row].tolist()
        whole = [(count, island) for island, count in enumerate(free) if count >= shape.gpus]
        by_most_free = sorted(range(len(free)), key=lambda island: (-free[island], island))
        columns = [column for column, slots in enumerate(self.slots[row].tolist()) if slots == WHOLE]
        islands = self.island[row].tolist()
        taken: list[int] = []
        for island in [min(whole)[1]] if whole else by_most_free:
            here = [column for column in columns if islands[column] == island]
            taken += here[: shape.gpus - len(taken)]
        return tuple(sorted(taken))

    def _card_for(self, row: int, shape: Shape) -> int:
        slots, code = self.slots_of(shape), self._code(shape.sharer)
        cards = zip(self.slots[row].tolist(), self.held[row].tolist(), self.sharer[row].tolist(), strict=True)
        fits = [
            free if free >= slots and (not held or sharer == code) else WHOLE + 1
            for free, held, sharer in cards
        ]
        return fits.index(min(fits))

    def take(self, row: int, columns: Iterable[int], slots: int, sharer: str) -> None:
        code = UNKNOWN if slots == WHOLE else self._code(sharer)
        for column in columns:
            self.held[row, column] += slots
            self.sharer[row, column] = code
        self._recount(row)

    def give_back(self, row: int, live: Live) -> None:
        """What a live replica holds; without the ids of its cards, the last ones that are held whole."""
        for column in self._columns(row, live):
            left = max(0, int(self.held[row, column]) - live.slots)
            self.held[row, column] = left
            if not left:
                self.sharer[row, column] = NOBODY
        self._recount(row)

    def _columns(self, row: int, live: Live) -> list[int]:
        if live.gpu_ids:
            return [column for column, gpu in enumerate(self.gpus[row]) if gpu.id in live.gpu_ids]
        whole = np.flatnonzero(self.held[row] == WHOLE)
        columns: list[int] = whole[max(0, whole.size - live.units // self.units) :].tolist()
        return columns

    def state(self, row: int) -> tuple[Ints, Ints]:
        return self.held[row].copy(), self.sharer[row].copy()

    def restore(self, row: int, state: tuple[Ints, Ints]) -> None:
        self.held[row], self.sharer[row] = state
        self._recount(row)

    def list_card(self, row: int, column: int, *, shut: bool) -> None:
        """A card that somebody holds in another way (`CutCards`) is as if it were not there; or it is there again."""
        self.exists[row, column] = not shut
        self.is_ready[row, column] = not shut and self.gpus[row][column].ready
        self._largest_island = None
        self._recount(row)

    def _recount(self, row: int) -> None:
        held = self.held[row].tolist()
        slots = [
            WHOLE - h if ready else 0 for h, ready in zip(held, self.is_ready[row].tolist(), strict=True)
        ]
        self.slots[row] = slots
        self.free[row] = sum(e and not h for e, h in zip(self.exists[row].tolist(), held, strict=True))
        by_island = [0] * self.by_island.shape[1]
        for free, island in zip(slots, self.island[row].tolist(), strict=True):
            if free == WHOLE:
                by_island[island] += 1
        self.by_island[row] = by_island
        before, usable = int(self.usable[row]), sum(by_island)
        self.usable[row] = usable
        self.usable_in_all += usable - before
        self._with_usable[before] -= 1
        self._with_usable[usable] += 1
