"""Where each microsecond of a GPU goes: a pure function over integers, without Django, clock or database.

A GPU's window of time is swept once. At each moment every unit of its capacity falls into exactly one bucket: the
first that holds of unconfirmed (down), allocated, claimed, then the GPU's condition. Units are 1/7000 GPU, times are
microseconds since 1970, so nothing is ever rounded: the segments of any window sum to capacity × its length, and
cutting a window anywhere changes no sum.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, TypeVar
from uuid import UUID

from billing.days import MINUTE_US, hour_starts

Range = tuple[int, int]

ACTIVE = "active"
IDLE_HELD = "idle_held"
UNKNOWN = "unknown"
TRANSITION = "transition"
RESERVED = "reserved"
UNALLOCATED = "unallocated"
MAINTENANCE = "maintenance"
DOWN = "down"

BUCKET_OF_CONDITION = {
    "ready": UNALLOCATED,
    "maintenance": MAINTENANCE,
    "cordoned": MAINTENANCE,
    "down": DOWN,
}
IDLE_BELOW_PCT = 5.0
"""A minute whose mean utilisation is below this was held idle."""

_FOREVER = 2**63 - 1
_H = TypeVar("_H", "Holding", "Claim")
_S = TypeVar("_S", "Holding", "Claim", "ConditionSpan")


class TimelineBroken(Exception):
    """The stored facts contradict one another: a condition is missing, or more is held than the GPU has."""


@dataclass(frozen=True)
class ConditionSpan:
    """The GPU's condition and tier from `start` to `end` (None: still)."""

    start: int
    end: int | None
    condition: str
    tier: UUID


@dataclass(frozen=True)
class Holding:
    """Slots held from `start` to `end` (None: still). `cuts`: where its lines must split beside the GPU's own."""

    key: UUID
    units: int
    start: int
    end: int | None
    slots: tuple[Range, ...] = ((0, 1000),)
    running_from: int | None = None
    stopping_from: int | None = None
    uncharged: tuple[Range, ...] = ()
    cuts: tuple[int, ...] = ()

    def bucket_at(self, moment: int) -> str | None:
        """The bucket that needs no telemetry, else None."""
        if any(start <= moment < end for start, end in self.uncharged):
            return DOWN
        if self.running_from is None or moment < self.running_from:
            return TRANSITION
        if self.stopping_from is not None and moment >= self.stopping_from:
            return TRANSITION
        return None

    def edges(self) -> Iterator[int]:
        """Every moment at which its bucket may change but for telemetry."""
        yield from self.cuts
        yield from (edge for pair in self.uncharged for edge in pair)
        yield from (
            edge for edge in (self.start, self.end, self.running_from, self.stopping_from) if edge is not None
        )


@dataclass(frozen=True)
class Claim:
    """Slots promised from `start` to `end` (None: still); what a holder still has of them counts as the holder's."""

    key: UUID
    units: int
    start: int
    end: int | None
    slots: tuple[Range, ...] = ((0, 1000),)
    cuts: tuple[int, ...] = ()

    def edges(self) -> Iterator[int]:
        """Every moment at which it may count differently."""
        yield from self.cuts
        yield from (edge for edge in (self.start, self.end) if edge is not None)


@dataclass(frozen=True)
class Timeline:
    """What is known of one GPU. `cuts`: changes of its cost rate. `minutes`: minute number since 1970 → bucket."""

    capacity: int
    conditions: Sequence[ConditionSpan]
    holdings: Sequence[Holding] = ()
    claims: Sequence[Claim] = ()
    cuts: Sequence[int] = ()
    minutes: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Segment:
    """`unit_us` of one bucket inside [start, end), of one holding or claim (`key`) or of nobody."""

    start: int
    end: int
    bucket: str
    unit_us: int
    tier: UUID
    key: UUID | None = None


def minute_buckets(
    hour_us: int, seconds: Sequence[float], busy: Sequence[float]
) -> Iterator[tuple[int, str]]:
    """The observed minutes of an hour: held idle or active. Unobserved ones are left out: unknown is never idle."""
    for index, (observed_s, busy_sum) in enumerate(zip(seconds, busy, strict=True)):
        if observed_s > 0:
            minute = hour_us // MINUTE_US + index
            yield minute, IDLE_HELD if busy_sum < IDLE_BELOW_PCT * observed_s else ACTIVE


def segments(timeline: Timeline, window: Range) -> list[Segment]:
    """Splits the window into segments. They sum to capacity × its length exactly, or `TimelineBroken` is raised."""
    if window[0] >= window[1]:
        return []
    return _Sweep(timeline, window).run()


class _Sweep:
    def __init__(self, timeline: Timeline, window: Range) -> None:
        self.timeline = timeline
        self.window = window
        condition_edges = (edge for c in timeline.conditions for edge in (c.start, c.end) if edge is not None)
        self.base_cuts = _clipped([*hour_starts(*window), *timeline.cuts, *condition_edges], window)
        self.holdings = _inside(timeline.holdings, window)
        self.claims = _inside(timeline.claims, window)
        # a started claim and the holding it became share a key, hence the type
        self.pieces: dict[tuple[type, UUID], list[int]] = {}
        self.totals: dict[tuple[int, int, str, UUID, UUID | None], int] = defaultdict(int)

    def run(self) -> list[Segment]:
        edges = [edge for holding in self.holdings for edge in holding.edges()]
        edges += [edge for claim in self.claims for edge in claim.edges()]
        points = _clipped([*self.base_cuts, *edges], self.window)
        conditions = iter(_inside(self.timeline.conditions, self.window))
        condition = next(conditions, None)
        holdings, claims = _Active(self.holdings), _Active(self.claims)
        for start, end in pairwise(points):
            while condition is not None and condition.end is not None and condition.end <= start:
                condition = next(conditions, None)
            if condition is None or condition.start > start:
                raise TimelineBroken(f"no condition at {start}")
            self._interval(start, end, condition, holdings.at(start), claims.at(start))
        found = [
            Segment(start, end, bucket, unit_us, tier, key)
            for (start, end, bucket, tier, key), unit_us in self.totals.items()
        ]
        return sorted(found, key=lambda s: (s.start, s.end, s.bucket, str(s.key)))

    def _interval(
        self, start: int, end: int, condition: ConditionSpan, holdings: list[Holding], claims: list[Claim]
    ) -> None:
        free = self.timeline.capacity
        for holding in holdings:
            free -= holding.units
            piece = self._piece(holding, start)
            for bucket, duration_us in self._buckets(holding, start, end):
                self._add(piece, bucket, condition.tier, holding.key, holding.units * duration_us)
        for claim in claims:
            units = _unheld_units(claim, holdings)
            free -= units
            self._add(self._piece(claim, start), RESERVED, condition.tier, claim.key, units * (end - start))
        if free < 0:
            raise TimelineBroken(f"{-free} units more than the GPU has at {start}")
        bucket = BUCKET_OF_CONDITION[condition.condition]
        self._add(_around(self.base_cuts, start), bucket, condition.tier, None, free * (end - start))

    def _add(self, piece: Range, bucket: str, tier: UUID, key: UUID | None, unit_us: int) -> None:
        if unit_us:
            self.totals[(*piece, bucket, tier, key)] += unit_us

    def _buckets(self, holding: Holding, start: int, end: int) -> Iterator[tuple[str, int]]:
        bucket = holding.bucket_at(start)
        if bucket is not None:
            yield bucket, end - start
            return
        while start < end:
            minute = start // MINUTE_US
            until = min(end, (minute + 1) * MINUTE_US)
            yield self.timeline.minutes.get(minute, UNKNOWN), until - start
            start = until

    def _piece(self, held: Holding | Claim, moment: int) -> Range:
        """The segment that a moment of a holder falls into: between the GPU's cuts and its own."""
        name = (type(held), held.key)
        if name not in self.pieces:
            end = _FOREVER if held.end is None else held.end
            self.pieces[name] = _clipped([*self.base_cuts, *held.cuts, held.start, end], self.window)
        return _around(self.pieces[name], moment)


class _Active(Generic[_H]):
    """Hands out who holds at each of a growing series of moments, in one walk."""

    def __init__(self, ordered: Sequence[_H]) -> None:
        self._coming: Iterator[_H] = iter(ordered)
        self._next: _H | None = next(self._coming, None)
        self._active: list[_H] = []

    def at(self, moment: int) -> list[_H]:
        while self._next is not None and self._next.start <= moment:
            self._active.append(self._next)
            self._next = next(self._coming, None)
        self._active = [held for held in self._active if held.end is None or held.end > moment]
        return self._active


def _unheld_units(claim: Claim, holdings: Iterable[Holding]) -> int:
    """What of a claim nobody holds yet. Units of a share are a whole multiple of its slots."""
    slots = sum(high - low for low, high in claim.slots)
    held = sum(
        max(0, min(high, held_high) - max(low, held_low))
        for low, high in claim.slots
        for holding in holdings
        for held_low, held_high in holding.slots
    )
    return claim.units * (slots - held) // slots


def _inside(spans: Sequence[_S], window: Range) -> list[_S]:
    """Those that touch the window, by their start."""
    touching = [s for s in spans if s.start < window[1] and (s.end is None or s.end > window[0])]
    return sorted(touching, key=lambda s: (s.start, _FOREVER if s.end is None else s.end))


def _clipped(edges: Iterable[int], window: Range) -> list[int]:
    """The window's own edges and those strictly inside it, in order, each once."""
    return sorted({*window, *(edge for edge in edges if window[0] < edge < window[1])})


def _around(cuts: list[int], moment: int) -> Range:
    index = bisect_right(cuts, moment)
    return cuts[index - 1], cuts[index]
