"""What is asked for: the shapes of single replicas, and how often each comes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduling.engine.snapshot import WHOLE

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_MOST_UNIONS = 2048  # sets of tiers looked at for scarcity; real fleets have a handful


@dataclass(frozen=True, slots=True, order=True)
class Ask:
    """One replica as placement sees it: CPU beside so many whole GPUs, or one share, or no GPU at all.

    `slots` is asked of each GPU: 1000 for whole ones, less for a share (then `gpus` is 1), 0 without GPUs.
    An empty `tiers` accepts every tier.
    """

    cpu_m: int
    gpus: int
    slots: int
    tiers: tuple[str, ...] = ()

    @property
    def total_slots(self) -> int:
        return self.gpus * self.slots

    @property
    def is_share(self) -> bool:
        return self.gpus == 1 and self.slots < WHOLE

    @property
    def size(self) -> "Ask":
        """The same without the tiers: asks of one size score alike wherever both may go."""
        return Ask(self.cpu_m, self.gpus, self.slots) if self.tiers else self


@dataclass(frozen=True)
class Mix:
    """Asks and their weights: counts, or counts that fade with age."""

    asks: tuple[Ask, ...]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, asks: Iterable[Ask] | Mapping[Ask, float]) -> "Mix":
        weights: dict[Ask, float] = {}
        for ask, weight in asks.items() if isinstance(asks, Mapping) else ((ask, 1.0) for ask in asks):
            weights[ask] = weights.get(ask, 0.0) + weight
        kept = sorted(ask for ask, weight in weights.items() if weight > 0)
        return cls(tuple(kept), tuple(weights[ask] for ask in kept))

    def popular(self, part: float, most: int | None = None) -> "Mix":
        """The most frequent asks that together make up `part` of all, at most so many."""
        order = sorted(range(len(self.asks)), key=lambda i: (-self.weights[i], i))
        reached = np.cumsum([self.weights[i] for i in order])
        enough = int(np.searchsorted(reached, part * reached[-1])) + 1 if order else 0
        chosen = order[: enough if most is None else min(enough, most)]
        return Mix(tuple(self.asks[i] for i in chosen), tuple(self.weights[i] for i in chosen))

    def frequencies(self) -> Floats:
        """(asks,) that sum to 1."""
        return _normalised(np.array(self.weights, dtype=np.float64))

    def gpu_demand(self) -> Floats:
        """(asks,) the part of all GPU demand that each makes up."""
        slots = np.array([ask.total_slots for ask in self.asks], dtype=np.float64)
        return _normalised(slots * np.array(self.weights, dtype=np.float64))

    def share_counts(self) -> tuple[list[int], list[float]]:
        """The sizes of shares, ascending, and the weight of each."""
        counts: dict[int, float] = {}
        for ask, weight in zip(self.asks, self.weights, strict=True):
            if ask.is_share:
                counts[ask.slots] = counts.get(ask.slots, 0.0) + weight
        sizes = sorted(counts)
        return sizes, [counts[size] for size in sizes]


def accepts(asks: Iterable[Ask], tiers: tuple[str, ...]) -> Bools:
    """(asks, tiers): may the ask go there, as far as the tier decides."""
    table = [[not ask.tiers or tier in ask.tiers for tier in tiers] for ask in asks]
    return np.array(table, dtype=np.bool_).reshape(len(table), len(tiers))


def scarcity(mix: Mix, tiers: tuple[str, ...], supply: Floats, enough: float = 1.0) -> Floats:
    """(tiers,) by how much the demand that cannot go elsewhere exceeds the GPUs, once the fleet is full.

    For each set of tiers: the demand of asks that accept nothing outside the set, scaled so that all demand
    equals all supply, over the set's supply, less `enough`. A tier is as scarce as the worst set it belongs to,
    but a set of all supply is never scarce.
    """
    demand, allowed = mix.gpu_demand(), accepts(mix.asks, tiers)
    masks = [_as_bits(row) for row in allowed]
    scarce = np.zeros(len(tiers))
    for union in _unions({mask for mask, part in zip(masks, demand, strict=True) if part > 0}):
        inside = np.array([union >> i & 1 for i in range(len(tiers))], dtype=np.bool_)  # (tiers,)
        bound = sum(part for mask, part in zip(masks, demand, strict=True) if mask | union == union)
        held = float(supply[inside].sum())
        if 0 < held < supply.sum():
            excess = bound * float(supply.sum()) / held - enough
            scarce[inside] = np.maximum(scarce[inside], excess)
    return np.round(scarce, 9)


def _unions(masks: set[int]) -> list[int]:
    """All unions of accepted sets: no other set can be the worst one."""
    unions: dict[int, None] = {}
    for mask in sorted(masks, key=lambda mask: (mask.bit_count(), mask)):
        for union in [mask, *(known | mask for known in list(unions))]:
            if len(unions) < _MOST_UNIONS:
                unions[union] = None
    return list(unions)


def _as_bits(row: Bools) -> int:
    return sum(1 << i for i, allowed in enumerate(row.tolist()) if allowed)


def _normalised(values: Floats) -> Floats:
    total = float(values.sum())
    return values / total if total > 0 else values
