"""Which cost and price applies when: pure lookups over loaded rates. Times are microseconds since 1970."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

ANY = "any"
NOTHING = Decimal(0)


@dataclass(frozen=True)
class CostSpan:
    """What a GPU-hour of a tier costs from `start` to `end` (None: until changed)."""

    tier: UUID
    rate: Decimal
    start: int
    end: int | None


@dataclass(frozen=True)
class PriceSpan:
    """What a team and those below it pay for a GPU-hour of a tier."""

    team: UUID
    tier: UUID
    kind: str
    service_class: str
    rate: Decimal
    start: int
    end: int | None


@dataclass(frozen=True)
class PriceKey:
    """What a price is asked for. `path`: the team's ids from its company down to itself."""

    path: tuple[UUID, ...]
    tier: UUID
    kind: str
    service_class: str


class RateBook:
    """Answers for one batch; remembers what each key matched."""

    def __init__(self, costs: Iterable[CostSpan], prices: Iterable[PriceSpan]) -> None:
        self._costs: dict[UUID, list[CostSpan]] = {}
        for cost in costs:
            self._costs.setdefault(cost.tier, []).append(cost)
        self._prices: dict[tuple[UUID, UUID], list[PriceSpan]] = {}
        for price in prices:
            self._prices.setdefault((price.team, price.tier), []).append(price)
        self._candidates: dict[PriceKey, list[PriceSpan]] = {}

    def cost(self, tier: UUID, moment: int) -> Decimal | None:
        """The cost rate of a tier at a moment, if one is set."""
        return next((one.rate for one in self._costs.get(tier, ()) if _applies(one, moment)), None)

    def cost_changes(self, tiers: Iterable[UUID]) -> list[int]:
        """When the cost of any of the tiers changes."""
        return [edge for tier in tiers for one in self._costs.get(tier, ()) for edge in _edges(one)]

    def price(self, key: PriceKey, moment: int) -> Decimal | None:
        """The price that applies at a moment: the nearest team's, then the kind's, then the class's."""
        return next((one.rate for one in self._matching(key) if _applies(one, moment)), None)

    def price_changes(self, key: PriceKey) -> list[int]:
        """When the price for this key may change."""
        return [edge for one in self._matching(key) for edge in _edges(one)]

    def _matching(self, key: PriceKey) -> list[PriceSpan]:
        """All that could apply, the most specific first."""
        if key not in self._candidates:
            found = [
                price
                for team in reversed(key.path)
                for price in sorted(self._prices.get((team, key.tier), ()), key=_is_general)
                if price.kind in (key.kind, ANY) and price.service_class in (key.service_class, ANY)
            ]
            self._candidates[key] = found
        return self._candidates[key]


def _is_general(price: PriceSpan) -> tuple[bool, bool]:
    return price.kind == ANY, price.service_class == ANY


def _applies(span: CostSpan | PriceSpan, moment: int) -> bool:
    return span.start <= moment and (span.end is None or moment < span.end)


def _edges(span: CostSpan | PriceSpan) -> list[int]:
    return [span.start] if span.end is None else [span.start, span.end]
