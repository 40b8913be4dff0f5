"""Costs as their readers may see them. Every function takes the actor first.

A team's price is for everybody with a role on it or above it; what it costs the platform is for its managers,
finance, auditors and platform admins; the whole fleet's cost is for platform admins.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import DecimalField, F, Min, Q, QuerySet, Sum
from django.utils.translation import gettext as _

from billing.days import to_us
from billing.loading import rates_load
from billing.metering import currency
from billing.models import Bucket, CostRate, MeterMark, PriceRate, UsageLine
from billing.rates import NOTHING, PriceKey
from gpuyard.core.clock import YardNow, now
from gpuyard.core.errors import Forbidden, Invalid, NotFound
from gpuyard.core.hooks import Estimate
from gpuyard.core.hooks import estimate as estimate_hook
from gpuyard.core.models import User
from gpuyard.core.money import UNIT_US_PER_GPU_HOUR, gpu_hours, round_to_total
from scheduling.facts import estimate_request
from scheduling.models import Workload
from scheduling.sizes import sizes, tiers_of
from scheduling.specs import spec_parse
from tenants.models import Role
from tenants.selectors import ADMIN, company_of, team_get, team_ids_with, teams_visible

HOURS_PLACES = 4
PENDING_PLACES = 6
_US = timedelta(microseconds=1)
_SEES_COST = (Role.MANAGER, Role.FINANCE, Role.AUDITOR, ADMIN)
# unit-microseconds × rate outgrow the columns' own digits
_AMOUNT: DecimalField[Any, Any] = DecimalField(max_digits=60, decimal_places=6)


# --- By team and day ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CostFilters:
    """What to look at; empty means all. `team` is a public id and takes in the teams below it; days are inclusive."""

    team: str = ""
    since: date | None = None
    until: date | None = None
    tier: str = ""
    kind: str = ""


@dataclass(frozen=True)
class CostRow:
    """What one team used of one tier for one kind of work on one day of its company's calendar."""

    day: date
    team_id: str
    team_name: str
    tier: str
    kind: str
    gpu_hours: Decimal
    currency: str
    price: Decimal
    cost: Decimal | None
    """None: not for this reader."""
    has_price: bool = False
    """Not zero before rounding."""
    has_cost: bool = False


@dataclass(frozen=True)
class CostTotal:
    """The sum of the rows of one currency; no cost if the reader may not see that of every row."""

    currency: str
    gpu_hours: Decimal
    price: Decimal
    cost: Decimal | None


@dataclass(frozen=True)
class CostTable:
    """Rows that add up to their totals to the last digit. `metered_until`: before it, nothing is missing."""

    rows: tuple[CostRow, ...]
    totals: tuple[CostTotal, ...]
    filters: CostFilters
    cost_currency: str
    as_of: datetime
    metered_until: datetime | None


def cost_by_team_day(actor: User, filters: CostFilters | None = None) -> CostTable:
    """The charged usage that the actor may see."""
    wanted = filters or CostFilters()
    with_cost = set(team_ids_with(actor, *_SEES_COST))
    groups: dict[str, list[dict[str, Any]]] = {}
    for group in _groups(_lines_visible(actor, wanted)):
        groups.setdefault(group["currency"], []).append(group)
    rows = [row for same in groups.values() for row in _rounded(same, with_cost)]
    rows.sort(key=lambda row: (-row.day.toordinal(), row.team_name, row.team_id, row.tier, row.kind))
    return CostTable(
        rows=tuple(rows),
        totals=tuple(_total(name, [row for row in rows if row.currency == name]) for name in sorted(groups)),
        filters=wanted,
        cost_currency=currency(),
        as_of=now(),
        metered_until=metered_until(),
    )


def metered_until() -> datetime | None:
    """Up to when every GPU that is still there has been metered."""
    marks = MeterMark.objects.filter(gpu__retired_at__isnull=True)
    found: datetime | None = marks.aggregate(oldest=Min("metered_until"))["oldest"]
    return found


def _lines_visible(actor: User, filters: CostFilters) -> QuerySet[UsageLine]:
    if filters.since and filters.until and filters.since > filters.until:
        raise Invalid(
            "range_reversed",
            _("The first day is after the last."),
            field="since",
            remedy=_("Choose an earlier first day or a later last day."),
        )
    lines = UsageLine.objects.filter(
        charge__isnull=False, team__in=teams_visible(actor).order_by().values("id")
    )
    if filters.team:
        lines = lines.filter(team__path__contains=[team_get(actor, filters.team).pk])
    if filters.since:
        lines = lines.filter(day__gte=filters.since)
    if filters.until:
        lines = lines.filter(day__lte=filters.until)
    if filters.tier:
        lines = lines.filter(tier__name=filters.tier)
    if filters.kind:
        lines = lines.filter(workload__kind=filters.kind)
    return lines


def _groups(lines: QuerySet[UsageLine]) -> list[dict[str, Any]]:
    names = ("day", "team", "team__public_id", "team__name", "tier__name", "workload__kind", "currency")
    sums = lines.values(*names).annotate(
        units=Sum("unit_us"),
        price=Sum(F("unit_us") * F("price_rate"), output_field=_AMOUNT),
        cost=Sum(F("unit_us") * F("cost_rate"), output_field=_AMOUNT),
    )
    return list(sums.order_by(*names))


def _money(unit_us_times_rate: Decimal) -> Fraction:
    return Fraction(unit_us_times_rate) / UNIT_US_PER_GPU_HOUR


def _rounded(groups: list[dict[str, Any]], with_cost: set[UUID]) -> Iterator[CostRow]:
    """Rounds the rows of one currency so that they add up to their rounded total."""
    hours = round_to_total(
        [Fraction(int(group["units"]), UNIT_US_PER_GPU_HOUR) for group in groups], places=HOURS_PLACES
    )
    prices = round_to_total([_money(group["price"]) for group in groups])
    open_groups = [index for index, group in enumerate(groups) if group["team"] in with_cost]
    open_costs = round_to_total([_money(groups[index]["cost"]) for index in open_groups])
    costs = dict(zip(open_groups, open_costs, strict=True))
    for index, group in enumerate(groups):
        yield CostRow(
            day=group["day"],
            team_id=group["team__public_id"],
            team_name=group["team__name"],
            tier=group["tier__name"],
            kind=group["workload__kind"],
            gpu_hours=hours[index],
            currency=group["currency"],
            price=prices[index],
            cost=costs.get(index),
            has_price=bool(group["price"]),
            has_cost=bool(group["cost"]) and index in costs,
        )


def _total(name: str, rows: list[CostRow]) -> CostTotal:
    costs = [row.cost for row in rows if row.cost is not None]
    return CostTotal(
        currency=name,
        gpu_hours=sum((row.gpu_hours for row in rows), Decimal(0)),
        price=sum((row.price for row in rows), Decimal(0)),
        cost=sum(costs, Decimal(0)) if len(costs) == len(rows) else None,
    )


# --- CSV ---------------------------------------------------------------------------------------------------

CSV_COLUMNS = (
    "day",
    "team",
    "team_id",
    "tier",
    "kind",
    "gpu_hours",
    "price",
    "currency",
    "cost",
    "cost_currency",
)


class _Line:
    """A file of one line: what was written is what `write` returns."""

    def write(self, text: str) -> str:
        return text


def cost_csv(actor: User, filters: CostFilters | None = None) -> Iterator[str]:
    """Exactly the rows of `cost_by_team_day` as lines of CSV, the heading first."""
    table = cost_by_team_day(actor, filters)  # before the first line: a refusal must not come mid-file
    return _csv_lines(table)


def _csv_lines(table: CostTable) -> Iterator[str]:
    writer = csv.writer(_Line())
    yield writer.writerow(CSV_COLUMNS)
    for row in table.rows:
        cost = ("", "") if row.cost is None else (str(row.cost), table.cost_currency)
        yield writer.writerow(
            (
                row.day.isoformat(),
                _harmless(row.team_name),
                row.team_id,
                _harmless(row.tier),
                row.kind,
                str(row.gpu_hours),
                str(row.price),
                row.currency,
                *cost,
            )
        )


def _harmless(text: str) -> str:
    """A name that a spreadsheet would run as a formula gets an apostrophe in front."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


# --- One workload --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BucketCost:
    """GPU time of a workload in one bucket, as metered."""

    bucket: str
    label: str
    gpu_hours: Decimal
    price: Decimal
    has_price: bool = False
    """Not zero before rounding."""


@dataclass(frozen=True)
class WorkloadCost:
    """What a workload has cost. `price` = metered (the buckets' sum) + `pending`, held but not metered yet."""

    currency: str
    price: Decimal
    pending: Decimal
    pending_gpu_hours: Decimal
    gpu_hours: Decimal
    buckets: tuple[BucketCost, ...]
    cost: Decimal | None
    """What it cost the platform, as metered. None: not for this reader."""
    estimate: Estimate | None
    as_of: datetime
    has_pending: bool
    """Not zero before rounding; so is `has_cost`."""
    has_cost: bool


def workload_cost(actor: User, workload: Workload) -> WorkloadCost:
    """The cost of a workload so far, beside what its request was estimated at."""
    if not teams_visible(actor).filter(pk=workload.team_id).exists():
        raise NotFound()
    at = now()
    rows = list(
        UsageLine.objects.filter(workload=workload, charge__isnull=False)
        .values("bucket")
        .annotate(
            units=Sum("unit_us"),
            price=Sum(F("unit_us") * F("price_rate"), output_field=_AMOUNT),
            cost=Sum(F("unit_us") * F("cost_rate"), output_field=_AMOUNT),
        )
        .order_by("bucket")
    )
    pending_units, pending_price = _pending([workload], at).get(workload.pk, (0, Fraction(0)))
    *prices, pending = round_to_total([*(_money(row["price"]) for row in rows), pending_price])
    labels = dict(Bucket.choices)
    buckets = tuple(
        BucketCost(
            row["bucket"], str(labels[row["bucket"]]), gpu_hours(int(row["units"])), price, bool(row["price"])
        )
        for row, price in zip(rows, prices, strict=True)
    )
    (cost,) = round_to_total([sum((_money(row["cost"]) for row in rows), Fraction(0))])
    return WorkloadCost(
        currency=company_of(workload.team).currency,
        price=sum(prices, pending),
        pending=pending,
        pending_gpu_hours=gpu_hours(pending_units),
        gpu_hours=gpu_hours(sum(int(row["units"]) for row in rows) + pending_units),
        buckets=buckets,
        cost=cost if workload.team_id in team_ids_with(actor, *_SEES_COST) else None,
        estimate=_estimate_of(workload),
        as_of=at,
        has_pending=bool(pending_price),
        has_cost=any(row["cost"] for row in rows),
    )


_PENDING = """
SELECT a.workload_id, a.tier_id, attempt.borrowed, sum(a.units * billing_us(
    tstzmultirange(a.span * tstzrange(m.metered_until, %(now)s)) - a.uncharged))
FROM scheduling_allocation a
JOIN scheduling_attempt attempt ON attempt.id = a.attempt_id
LEFT JOIN billing_metermark m ON m.gpu_id = a.gpu_id
WHERE a.workload_id = ANY(%(workloads)s) AND a.state IN ('held', 'stopping', 'unconfirmed', 'ended')
  AND lower(a.span) < %(now)s AND (m.metered_until IS NULL OR m.metered_until < %(now)s)
GROUP BY a.workload_id, a.tier_id, attempt.borrowed
"""


def workloads_pending(workloads: Sequence[Workload]) -> dict[UUID, Decimal]:
    """What each of these, which a selector gave to the reader, held that is not metered yet; in a few queries."""
    found = _pending(workloads, now()) if workloads else {}
    return {
        key: round_to_total([price], places=PENDING_PLACES)[0]
        for key, (_units, price) in found.items()
        if price
    }


def _pending(workloads: Sequence[Workload], at: datetime) -> dict[UUID, tuple[int, Fraction]]:
    """What each held that is not metered yet: unit-microseconds, and their price at the prices of now."""
    by_id = {workload.pk: workload for workload in workloads}
    with connection.cursor() as cursor:
        cursor.execute(_PENDING, {"workloads": list(by_id), "now": at})
        rows = [(key, tier, borrowed, int(unit_us)) for key, tier, borrowed, unit_us in cursor.fetchall()]
    rates = rates_load({tier for _key, tier, _borrowed, _unit_us in rows}, (at, at + _US))
    found: dict[UUID, tuple[int, Fraction]] = {}
    for workload_id, tier, borrowed, unit_us in rows:
        workload = by_id[workload_id]
        its_class = "borrowed" if borrowed else "guaranteed"
        key = PriceKey(tuple(workload.team.path), tier, workload.kind, its_class)
        units, price = found.get(workload_id, (0, Fraction(0)))
        added = _money((rates.price(key, to_us(at)) or NOTHING) * unit_us)
        found[workload_id] = (units + unit_us, price + added)
    return {key: held for key, held in found.items() if held[0]}


def _estimate_of(workload: Workload) -> Estimate | None:
    assert workload.spec is not None
    spec = spec_parse(workload.spec.document)
    try:
        tiers = tiers_of(spec.request)
    except Invalid:  # a tier that is gone meanwhile
        return None
    ask = estimate_request(workload.team_id, workload.kind, spec, sizes(spec.request, tiers))
    return estimate_hook.get()(ask)


# --- The fleet and the rates -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FleetBucket:
    """Where a part of the fleet's time went, and what it cost."""

    bucket: str
    label: str
    gpu_hours: Decimal
    cost: Decimal
    has_cost: bool = False
    """Not zero before rounding."""


@dataclass(frozen=True)
class FleetCost:
    """The whole fleet: the buckets' costs add up to `cost`; what was charged above what was allocated is margin."""

    currency: str
    buckets: tuple[FleetBucket, ...]
    gpu_hours: Decimal
    cost: Decimal
    charged: Decimal
    as_of: datetime
    metered_until: datetime | None


def sees_fleet_cost(actor: User) -> bool:
    """Whether `fleet_cost` is for this reader."""
    return actor.is_platform_admin


def fleet_cost(actor: User, *, since: date | None = None, until: date | None = None) -> FleetCost:
    """What the fleet cost over the given UTC days, by where its time went."""
    if not sees_fleet_cost(actor):
        raise Forbidden("admin_needed", _("Only a platform admin sees the cost of the fleet."))
    lines = UsageLine.objects.all()
    if since:
        lines = lines.filter(hour__gte=datetime.combine(since, time.min, UTC))
    if until:
        lines = lines.filter(hour__lte=datetime.combine(until, time.max, UTC))
    rows = list(
        lines.values("bucket")
        .annotate(
            units=Sum("unit_us"),
            cost=Sum(F("unit_us") * F("cost_rate"), output_field=_AMOUNT),
            price=Sum(F("unit_us") * F("price_rate"), output_field=_AMOUNT),
        )
        .order_by("bucket")
    )
    labels = dict(Bucket.choices)
    costs = round_to_total([_money(row["cost"]) for row in rows])
    (charged,) = round_to_total([sum((_money(row["price"]) for row in rows), Fraction(0))])
    buckets = tuple(
        FleetBucket(
            row["bucket"], str(labels[row["bucket"]]), gpu_hours(int(row["units"])), cost, bool(row["cost"])
        )
        for row, cost in zip(rows, costs, strict=True)
    )
    return FleetCost(
        currency=currency(),
        buckets=buckets,
        gpu_hours=gpu_hours(sum(int(row["units"]) for row in rows)),
        cost=sum(costs, Decimal(0)),
        charged=charged,
        as_of=now(),
        metered_until=metered_until(),
    )


_NOT_OVER = Q(span__endswith__isnull=True) | Q(span__endswith__gt=YardNow())


def price_rate_list(actor: User) -> QuerySet[PriceRate]:
    """The prices of now and later, of the teams that the actor sees and of those above them."""
    paths = teams_visible(actor).order_by().values_list("path", flat=True)
    above = {team_id for path in paths for team_id in path}
    rates = PriceRate.objects.filter(_NOT_OVER, team__in=above)
    return rates.select_related("team", "tier").order_by("team__name", "tier__name", "kind", "service_class")


def cost_rate_list(actor: User) -> QuerySet[CostRate]:
    """What each tier costs the platform, now and later; for platform admins."""
    if not sees_fleet_cost(actor):
        raise Forbidden("admin_needed", _("Only a platform admin sees cost rates."))
    rates = CostRate.objects.filter(_NOT_OVER)
    return rates.select_related("tier").order_by("tier__name")
