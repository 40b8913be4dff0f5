"""What the approval rules, the request form and the approver's card see of a request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.utils.translation import gettext as _

from gpuyard.core import hooks
from gpuyard.core.errors import Invalid
from gpuyard.fleet.models import Tier
from scheduling.models import Kind
from scheduling.specs import Request, Spec
from scheduling.usage import QuotaCheck, quota_checks
from tenants.models import Team
from tenants.policies import Facts


@dataclass(frozen=True)
class RequestFacts:
    """A request set against quota, price and time."""

    tiers: tuple[Tier, ...]
    quota: tuple[QuotaCheck, ...]
    estimate: hooks.Estimate | None
    facts: Facts


def tiers_named(names: Iterable[str], *, field: str = "spec.request.tiers") -> tuple[Tier, ...]:
    """The tiers in the given order; `Invalid` says which one there is not, and which there are."""
    wanted = list(names)
    known = {tier.name: tier for tier in Tier.objects.filter(name__in=wanted)}
    if unknown := [name for name in wanted if name not in known]:
        choices = ", ".join(Tier.objects.order_by("name").values_list("name", flat=True)[:20])
        raise Invalid(
            "tier_unknown",
            _("There is no tier %(tier)s.") % {"tier": unknown[0]},
            field=field,
            remedy=_("Choose from: %(choices)s.") % {"choices": choices or "–"},
        )
    return tuple(known[name] for name in wanted)


def request_facts(
    team: Team, kind: str, spec: Spec, *, priority: int = 0, tiers: Sequence[Tier] | None = None
) -> RequestFacts:
    """Reads all of it as of now. It is over quota if any of its tiers would take it beyond the guarantee."""
    named = tuple(tiers) if tiers is not None else tiers_named(spec.request.tiers)
    quota = quota_checks(team, named, spec.request)
    estimate = hooks.estimate.get()(
        hooks.EstimateRequest(
            team_id=team.pk,
            kind=kind,
            tier_ids=tuple(tier.pk for tier in named),
            units=spec.request.units,
            time_limit_s=spec.time_limit_s,
        )
    )
    facts = Facts(
        kind=kind,
        tiers=tuple(tier.name for tier in named),
        gpu_count=spec.request.gpu_count,
        hours=_hours(spec.time_limit_s),
        estimated_cost=estimate.total.quantize(Decimal("0.01"))
        if estimate and estimate.total is not None
        else None,
        currency=estimate.currency if estimate else "",
        over_quota=not all(check.is_within_guarantee for check in quota),
        priority=priority,
    )
    return RequestFacts(named, quota, estimate, facts)


def kind_check(kind: Any) -> str:
    """The kind, or `Invalid`."""
    if kind in Kind.values:
        return str(kind)
    remedy = _("Choose one of %(kinds)s.") % {"kinds": ", ".join(Kind.values)}
    raise Invalid("kind_unknown", _("There is no such kind of workload."), field="kind", remedy=remedy)


def _hours(time_limit_s: int | None) -> Decimal | None:
    return None if time_limit_s is None else (Decimal(time_limit_s) / 3600).quantize(Decimal("0.01"))


def asked_text(request: Request) -> str:
    """`2 × 8 × h100-80g`, as people say it; tiers in their order of preference."""
    tiers = _(" or ").join(request.tiers)
    each = f"{request.gpus_per_replica} × {tiers}"
    if request.replicas_max == 1:
        return each
    least, most = request.replicas_min, request.replicas_max
    count = str(most) if least == most else f"{least}–{most}"
    return _("%(count)s replicas of %(each)s") % {"count": count, "each": each}
