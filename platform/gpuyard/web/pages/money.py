"""Amounts for rows and cards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from uuid import UUID

from django.db.models import Sum

from billing.models import Charge
from billing.selectors import workloads_pending
from gpuyard.core import hooks
from gpuyard.core.money import UNITS_PER_GPU, amount_total
from gpuyard.fleet.models import Tier
from gpuyard.web.contexts import Money
from scheduling.models import Workload
from tenants.models import Team


def charged(workloads: Iterable[Workload]) -> dict[UUID, Money]:
    """What each of these workloads, which a selector gave to this reader, was charged so far."""
    rows = (
        Charge.objects.filter(workload__in=[one.pk for one in workloads])
        .values_list("workload_id", "currency", "price_rate")
        .annotate(unit_us=Sum("unit_us"))
    )
    lines: dict[tuple[UUID, str], list[tuple[int, Decimal]]] = defaultdict(list)
    for workload_id, currency, rate, unit_us in rows:
        lines[workload_id, currency].append((unit_us, rate))
    return {key: Money(amount_total(parts, places=6), currency) for (key, currency), parts in lines.items()}


def pending(workloads: Sequence[Workload]) -> dict[UUID, Money]:
    """What each of these, which a selector gave to this reader, held that is not metered yet."""
    amounts = workloads_pending(workloads)
    return {one.pk: Money(amounts[one.pk], one.company.currency) for one in workloads if one.pk in amounts}


def hourly_price(team: Team | None, tier: Tier, kind: str = "training") -> Money | None:
    """What one GPU of a tier costs a team for an hour."""
    if team is None:
        return None
    asked = hooks.EstimateRequest(
        team_id=team.pk, kind=kind, tier_ids=(tier.pk,), units=UNITS_PER_GPU, time_limit_s=None
    )
    known = hooks.estimate.get()(asked)
    return Money(known.hourly, known.currency) if known else None
