"""What a request would cost its team: the provider of `core.hooks.estimate`."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from uuid import UUID

from billing.days import to_us
from billing.loading import rates_load
from billing.models import CostRate, ServiceClass
from billing.rates import PriceKey
from gpuyard.core.clock import now
from gpuyard.core.hooks import Estimate, EstimateRequest
from gpuyard.core.money import UNITS_PER_GPU
from tenants.models import Team

_US = timedelta(microseconds=1)
_HOUR_S = 3600


def estimate(request: EstimateRequest) -> Estimate | None:
    """The price of the request on the dearest of its tiers, at the rates of now; None: no rate covers any of them."""
    team = Team.objects.select_related("company").get(pk=request.team_id)
    at = now()
    rates = rates_load(request.tier_ids, (at, at + _US))
    found = [
        rates.price(PriceKey(tuple(team.path), tier, request.kind, its_class), to_us(at))
        for tier in request.tier_ids
        for its_class in (ServiceClass.GUARANTEED, ServiceClass.BORROWED)
    ]
    dearest = max((rate for rate in found if rate is not None), default=None)
    if dearest is None:
        return None
    per_hour = dearest * request.units
    seconds = request.time_limit_s
    return Estimate(
        currency=team.company.currency,
        hourly=per_hour / UNITS_PER_GPU,
        total=None if seconds is None else per_hour * seconds / (UNITS_PER_GPU * Decimal(_HOUR_S)),
    )


def tier_costs() -> dict[UUID, Decimal]:
    """What a GPU-hour of each tier costs at the rates of now."""
    return dict(CostRate.objects.filter(span__contains=now()).values_list("tier_id", "rate"))
