"""Loads what metering needs of a batch of GPUs, in a handful of queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import connection

from billing.days import HOUR_US, from_us, midnights, to_us
from billing.rates import CostSpan, PriceKey, PriceSpan, RateBook
from billing.segments import Claim, ConditionSpan, Holding, Range, Timeline, minute_buckets
from tenants.models import Team

# Further away than any time we can store; open ends inside a multirange.
_FOREVER = 2**62


@dataclass(frozen=True)
class Owner:
    """Whose an allocation is, and what its price depends on."""

    allocation_id: UUID
    company_id: UUID
    team_id: UUID
    workload_id: UUID
    price: PriceKey


@dataclass(frozen=True)
class Company:
    """What a company's lines need of it."""

    currency: str
    zone: ZoneInfo


@dataclass(frozen=True)
class Loaded:
    """The facts of one batch: timelines by GPU, owners by allocation."""

    timelines: dict[UUID, Timeline]
    owners: dict[UUID, Owner]
    companies: dict[UUID, Company]
    rates: RateBook


def load(windows: dict[UUID, Range], capacities: dict[UUID, int]) -> Loaded:
    """Loads the GPUs of `windows` (GPU → window to be metered)."""
    start, end = min(w[0] for w in windows.values()), max(w[1] for w in windows.values())
    gpu_ids, span = list(windows), (from_us(start), from_us(end))
    conditions = _conditions(gpu_ids, span)
    allocations = _allocations(gpu_ids, span)
    companies = _companies({row[2] for row in allocations})
    tiers = {c.tier for spans in conditions.values() for c in spans} | {row[5] for row in allocations}
    rates = rates_load(tiers, span)
    owners = {row[1]: _owner(row) for row in allocations}
    cuts = _Cuts(rates, companies, (start, end))
    holdings: dict[UUID, list[Holding]] = defaultdict(list)
    claims: dict[UUID, list[Claim]] = defaultdict(list)
    for row in allocations:
        _sort_in(row, cuts.of(owners[row[1]]), holdings[row[0]], claims[row[0]])
    minutes = _minutes(gpu_ids, start, end)
    timelines = {
        gpu: Timeline(
            capacity=capacities[gpu],
            conditions=conditions[gpu],
            holdings=holdings[gpu],
            claims=claims[gpu],
            cuts=rates.cost_changes({c.tier for c in conditions[gpu]}),
            minutes=minutes[gpu],
        )
        for gpu in gpu_ids
    }
    return Loaded(timelines, owners, companies, rates)


class _Cuts:
    """Where an owner's lines split beside the GPU's own: local midnights and changes of price."""

    def __init__(self, rates: RateBook, companies: dict[UUID, Company], window: Range) -> None:
        self._rates, self._companies, self._window = rates, companies, window
        self._midnights: dict[UUID, list[int]] = {}

    def of(self, owner: Owner) -> tuple[int, ...]:
        company = owner.company_id
        if company not in self._midnights:
            self._midnights[company] = midnights(*self._window, self._companies[company].zone)
        return (*self._midnights[company], *self._rates.price_changes(owner.price))


def _rows(statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall())


def _us(moment: datetime | None) -> int | None:
    return None if moment is None else to_us(moment)


_CONDITIONS = """
SELECT gpu_id, lower(span), upper(span), condition, tier_id FROM fleet_gpucondition
WHERE gpu_id = ANY(%s) AND span && tstzrange(%s, %s)
"""


def _conditions(gpu_ids: list[UUID], span: tuple[datetime, datetime]) -> dict[UUID, list[ConditionSpan]]:
    found: dict[UUID, list[ConditionSpan]] = defaultdict(list)
    for gpu_id, start, end, condition, tier_id in _rows(_CONDITIONS, [gpu_ids, *span]):
        found[gpu_id].append(ConditionSpan(to_us(start), _us(end), condition, tier_id))
    return found


_ALLOCATIONS = """
SELECT a.gpu_id, a.id, a.company_id, a.team_id, a.workload_id, a.tier_id, a.units, a.slots, a.state,
       lower(a.span), upper(a.span), a.claimed_at, a.running_at, a.stopping_at, a.uncharged,
       w.kind, attempt.borrowed, team.path
FROM scheduling_allocation a
JOIN scheduling_workload w ON w.id = a.workload_id
JOIN scheduling_attempt attempt ON attempt.id = a.attempt_id
JOIN tenants_team team ON team.id = a.team_id
WHERE a.gpu_id = ANY(%s) AND (upper_inf(a.span) OR upper(a.span) > %s)
  AND coalesce(a.claimed_at, lower(a.span)) < %s
ORDER BY a.gpu_id, lower(a.span), a.id
"""


def _allocations(gpu_ids: list[UUID], span: tuple[datetime, datetime]) -> list[tuple[Any, ...]]:
    return _rows(_ALLOCATIONS, [gpu_ids, *span])


def _owner(row: tuple[Any, ...]) -> Owner:
    _gpu, allocation_id, company_id, team_id, workload_id, tier_id = row[:6]
    kind, is_borrowed, path = row[15:18]
    price = PriceKey(tuple(path), tier_id, kind, "borrowed" if is_borrowed else "guaranteed")
    return Owner(allocation_id, company_id, team_id, workload_id, price)


def _sort_in(
    row: tuple[Any, ...], cuts: tuple[int, ...], holdings: list[Holding], claims: list[Claim]
) -> None:
    """An allocation is a claim, a holding, or first the one and then the other."""
    key, units, state = row[1], row[6], row[8]
    slots = tuple((piece.lower, piece.upper) for piece in row[7])
    start, end, claimed, running, stopping = (_us(moment) for moment in row[9:14])
    assert start is not None
    if state in ("claimed", "dropped"):
        claims.append(Claim(key, units, start, end, slots, cuts))
        return
    if claimed is not None and claimed < start:
        claims.append(Claim(key, units, claimed, start, slots, cuts))
    uncharged = tuple(
        (to_us(piece.lower), _FOREVER if piece.upper is None else to_us(piece.upper)) for piece in row[14]
    )
    holdings.append(Holding(key, units, start, end, slots, running, stopping, uncharged, cuts))


def _companies(company_ids: set[UUID]) -> dict[UUID, Company]:
    rows = Team.objects.filter(id__in=company_ids).values_list("id", "currency", "time_zone")
    return {key: Company(currency, ZoneInfo(zone)) for key, currency, zone in rows}


_MINUTES = """
SELECT gpu_id, hour, seconds, busy FROM fleet_gputelemetry WHERE gpu_id = ANY(%s) AND hour >= %s AND hour < %s
"""


def _minutes(gpu_ids: list[UUID], start: int, end: int) -> dict[UUID, dict[int, str]]:
    found: dict[UUID, dict[int, str]] = defaultdict(dict)
    first_hour = from_us(start - start % HOUR_US)
    for gpu_id, hour, seconds, busy in _rows(_MINUTES, [gpu_ids, first_hour, from_us(end)]):
        found[gpu_id].update(minute_buckets(to_us(hour), seconds, busy))
    return found


_COSTS = """
SELECT tier_id, rate, lower(span), upper(span) FROM billing_costrate
WHERE tier_id = ANY(%s) AND span && tstzrange(%s, %s)
"""
_PRICES = """
SELECT team_id, tier_id, kind, service_class, rate, lower(span), upper(span) FROM billing_pricerate
WHERE tier_id = ANY(%s) AND span && tstzrange(%s, %s)
"""


def rates_load(tiers: Iterable[UUID], span: tuple[datetime, datetime]) -> RateBook:
    """All rates of the tiers that apply somewhere in the span."""
    parameters = [list(tiers), *span]
    costs = [
        CostSpan(tier, rate, to_us(start), _us(end)) for tier, rate, start, end in _rows(_COSTS, parameters)
    ]
    prices = [
        PriceSpan(team, tier, kind, service_class, rate, to_us(start), _us(end))
        for team, tier, kind, service_class, rate, start, end in _rows(_PRICES, parameters)
    ]
    return RateBook(costs, prices)
