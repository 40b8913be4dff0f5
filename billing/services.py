"""Setting rates. A rate applies from now on, or from a later moment: what is metered is never priced again."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import connection, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from billing.metering import RATES_LOCK, MeterRun, meter
from billing.models import CostRate, PriceRate, ServiceClass
from gpuyard.audit.services import event_record
from gpuyard.core.clock import now
from gpuyard.core.errors import Conflict, Forbidden, Invalid
from gpuyard.core.models import User
from gpuyard.fleet.models import Tier
from scheduling.models import Kind
from tenants.models import Team

__all__ = ["MeterRun", "cost_rate_set", "meter", "price_rate_set"]

_RATE_PLACES = 6
_RATE_LIMIT = Decimal(10**8)


@transaction.atomic
def cost_rate_set(
    *, actor: User, tier: Tier, rate: Decimal, starts_at: datetime | None = None, reason: str = ""
) -> CostRate:
    """Sets what a GPU-hour of a tier costs the platform, from `starts_at` (now) on."""
    _require_admin(actor)
    _require_rate(rate)
    start = _start(starts_at)
    old = _close(CostRate.objects.filter(tier=tier), start)
    made = CostRate.objects.create(tier=tier, rate=rate, span=DateTimeTZRange(start, None))
    event_record(
        company_id=None,
        actor=actor,
        action="cost_rate.set",
        subject=made,
        old=old,
        new={"tier": tier.name, "rate": str(rate), "from": start.isoformat()},
        reason=reason,
    )
    return made


@transaction.atomic
def price_rate_set(
    *,
    actor: User,
    team: Team,
    tier: Tier,
    rate: Decimal,
    kind: str = "any",
    service_class: str = ServiceClass.ANY,
    starts_at: datetime | None = None,
    reason: str = "",
) -> PriceRate:
    """Sets what a team, or a company and all below it, pays for a GPU-hour of a tier, from `starts_at` (now) on."""
    _require_admin(actor)
    _require_rate(rate)
    _require_choice("kind", kind, ("any", *Kind.values))
    _require_choice("service_class", service_class, tuple(ServiceClass.values))
    start = _start(starts_at)
    same = {"team": team, "tier": tier, "kind": kind, "service_class": service_class}
    old = _close(PriceRate.objects.filter(**same), start)
    made = PriceRate.objects.create(**same, rate=rate, span=DateTimeTZRange(start, None))
    event_record(
        company_id=team.company_id,
        actor=actor,
        action="price_rate.set",
        subject=made,
        old=old,
        new={
            "team": team.name,
            "tier": tier.name,
            "kind": kind,
            "class": service_class,
            "rate": str(rate),
            "from": start.isoformat(),
        },
        reason=reason,
    )
    return made


def _require_admin(actor: User) -> None:
    if not actor.is_platform_admin:
        raise Forbidden(
            "admin_needed", _("Only a platform admin sets rates."), remedy=_("Ask a platform admin.")
        )


def _require_rate(rate: Decimal) -> None:
    exponent = rate.as_tuple().exponent
    is_valid = isinstance(exponent, int) and exponent >= -_RATE_PLACES and 0 <= rate < _RATE_LIMIT
    if not is_valid:
        raise Invalid(
            "rate_invalid",
            _("The rate must be 0 or more, with at most 6 decimals."),
            field="rate",
            remedy=_("Give an amount per GPU-hour, such as 2.50."),
        )


def _require_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise Invalid(
            f"{field}_unknown",
            _("“%(value)s” is not known here.") % {"value": value},
            field=field,
            remedy=_("Choose one of: %(choices)s.") % {"choices": ", ".join(choices)},
        )


def _start(starts_at: datetime | None) -> datetime:
    """When the rate begins. Under the lock no metering runs, so that none can have priced a moment after it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [RATES_LOCK])
    at = now()
    if starts_at is None:
        return at
    if starts_at < at:
        raise Invalid(
            "rate_in_the_past",
            _("A rate cannot begin in the past: that time may be metered already."),
            field="starts_at",
            remedy=_("Leave it empty to begin now, or choose a later moment."),
        )
    return starts_at


def _close(same_key: QuerySet[Any], start: datetime) -> dict[str, str] | None:
    """Ends the rate of this key that applies at `start`; returns it for the log."""
    if same_key.filter(span__startswith__gte=start).exists():
        raise Conflict(
            "rate_later_exists",
            _("A later rate is set already."),
            field="starts_at",
            remedy=_("Choose a moment after it."),
        )
    current = same_key.filter(span__contains=start).first()
    if current is None:
        return None
    same_key.filter(pk=current.pk).update(span=DateTimeTZRange(current.span.lower, start))
    return {"rate": str(current.rate), "from": current.span.lower.isoformat()}
