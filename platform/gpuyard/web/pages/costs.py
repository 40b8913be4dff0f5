"""What teams were charged by day, and where the fleet's cost went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from django.utils import timezone
from django.utils.translation import gettext as _

from billing.selectors import CostFilters, CostTable, cost_by_team_day, fleet_cost, sees_fleet_cost
from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.web.contexts import CostBucket, CostLine, CostsPage, CostSum, Money
from tenants.models import Team

DAYS = 30
FILLS = {
    "active": "active",
    "idle_held": "idle",
    "unknown": "unknown",
    "transition": "stop",
    "reserved": "claimed",
    "unallocated": "free",
    "maintenance": "cordon",
    "down": "fault",
}


@dataclass(frozen=True)
class Asked:
    """The days as the URL asks for them; `error` where they make no sense, and then the last 30 are shown."""

    filters: CostFilters
    first_day: str
    last_day: str
    error: str


def asked_of(query: Mapping[str, str], team: Team | None) -> Asked:
    today = timezone.localtime(clock.now()).date()
    first, last = query.get("from") or "", query.get("to") or ""
    since, until, error = _day(first), _day(last), ""
    if (first and since is None) or (last and until is None):
        error = _("This is no date. Give one such as 2026-11-26.")
    elif since and until and since > until:
        error = _("The first day is after the last. Exchange them.")
    if error:
        since = until = None
    until = until or max(today, since or today)
    since = since or max(until, date.min + timedelta(days=DAYS)) - timedelta(days=DAYS - 1)
    since = min(since, until)
    return Asked(
        filters=CostFilters(team=team.public_id if team else "", since=since, until=until),
        first_day=first or since.isoformat(),
        last_day=last or until.isoformat(),
        error=error,
    )


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def build(actor: User, asked: Asked) -> CostsPage:
    table = cost_by_team_day(actor, asked.filters)
    rows = [_line(table, index) for index in range(len(table.rows))]
    shows_fleet = sees_fleet_cost(actor) and not asked.filters.team
    fleet = fleet_cost(actor, since=asked.filters.since, until=asked.filters.until) if shows_fleet else None
    return CostsPage(
        as_of=table.as_of,
        first_day=asked.first_day,
        last_day=asked.last_day,
        rows=rows,
        totals=[
            CostSum(
                gpu_hours=one.gpu_hours,
                price=Money(one.price, one.currency),
                cost=Money(one.cost, table.cost_currency) if one.cost is not None else None,
            )
            for one in table.totals
        ],
        shows_cost=any(row.cost is not None for row in rows),
        metered_until=table.metered_until,
        buckets=[
            CostBucket(
                fill=FILLS.get(one.bucket, "ink"),
                label=one.label,
                hours=one.gpu_hours,
                cost=Money(one.cost, fleet.currency, one.has_cost),
            )
            for one in fleet.buckets
        ]
        if fleet
        else (),
        fleet_cost=Money(fleet.cost, fleet.currency) if fleet else None,
        error=asked.error,
    )


def _line(table: CostTable, index: int) -> CostLine:
    row = table.rows[index]
    return CostLine(
        day=row.day,
        team=row.team_name,
        team_id=row.team_id,
        tier=row.tier,
        kind=row.kind,
        gpu_hours=row.gpu_hours,
        price=Money(row.price, row.currency, row.has_price),
        cost=Money(row.cost, table.cost_currency, row.has_cost) if row.cost is not None else None,
    )
