"""What the approval rules, the request form and the approver's card see of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _

from gpuyard.core import hooks
from gpuyard.core.errors import Invalid
from gpuyard.fleet.models import Tier
from scheduling.asked import asked_text
from scheduling.models import Kind
from scheduling.sizes import Size, members_at_once, sizes, tiers_of
from scheduling.specs import Spec
from scheduling.usage import QuotaCheck, quota_checks
from tenants.models import Team
from tenants.policies import Facts


@dataclass(frozen=True)
class RequestFacts:
    """A request set against quota, price and time."""

    size: tuple[Size, ...]
    quota: tuple[QuotaCheck, ...]
    estimate: hooks.Estimate | None
    facts: Facts


def request_facts(
    team: Team,
    kind: str,
    spec: Spec,
    *,
    priority: int = 0,
    band: int = 0,
    tiers: Sequence[Tier] | None = None,
) -> RequestFacts:
    """Reads all of it as of now. It is over quota if any of its tiers would take it beyond the guarantee.

    For an array: what it may hold at once, and the cost of all of it.
    """
    named = tuple(tiers) if tiers is not None else tiers_of(spec.request)
    size = sizes(spec.request, named)
    quota = quota_checks(team, size)
    estimate = _of_all(hooks.estimate.get()(estimate_request(team.pk, kind, spec, size)), spec)
    facts = Facts(
        kind=kind,
        tiers=tuple(tier.name for tier in named),
        gpu_count=max(one.gpu_count for one in size),
        hours=_hours(spec.time_limit_s),
        estimated_cost=estimate.total.quantize(Decimal("0.01"))
        if estimate and estimate.total is not None
        else None,
        currency=estimate.currency if estimate else "",
        over_quota=not all(check.is_within_guarantee for check in quota),
        priority=priority,
        band=band,
        asked=asked_text(spec.request),
    )
    return RequestFacts(size, quota, estimate, facts)


def estimate_request(team_id: UUID, kind: str, spec: Spec, size: Sequence[Size]) -> hooks.EstimateRequest:
    """What one workload (a member, of an array) is to be priced at, on the tier where it is largest."""
    return hooks.EstimateRequest(
        team_id=team_id,
        kind=kind,
        tier_ids=tuple(one.tier.pk for one in size),
        units=max((one.most for one in size), default=0),
        time_limit_s=spec.time_limit_s,
    )


def _of_all(estimate: hooks.Estimate | None, spec: Spec) -> hooks.Estimate | None:
    array = spec.request.array
    if estimate is None or array is None:
        return estimate
    return hooks.Estimate(
        currency=estimate.currency,
        hourly=estimate.hourly * members_at_once(spec.request),
        total=None if estimate.total is None else estimate.total * array.count,
    )


def kind_check(kind: Any) -> str:
    """The kind, or `Invalid`."""
    if kind in Kind.values:
        return str(kind)
    remedy = _("Choose one of %(kinds)s.") % {"kinds": ", ".join(Kind.values)}
    raise Invalid("kind_unknown", _("There is no such kind of workload."), field="kind", remedy=remedy)


def _hours(time_limit_s: int | None) -> Decimal | None:
    return None if time_limit_s is None else (Decimal(time_limit_s) / 3600).quantize(Decimal("0.01"))
