"""What a request for quota says: in words for people, as facts for the rules, and as a digest of what matters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _

from gpuyard.core.money import UNITS_PER_GPU
from tenants.models import Grant, QuotaAsk, QuotaChange
from tenants.policies import Facts
from tenants.quotas import Amounts, amounts_of, quota_at
from tenants.selectors import company_of


def amounts_asked(change: QuotaChange) -> Amounts:
    """The values that a change asks for."""
    return Amounts(change.guaranteed, change.limit, change.lend_limit, change.weight)


def gpus_text(units: int | None) -> str:
    """Units as GPUs: whole ones without decimals; None: no limit."""
    if units is None:
        return _("none")
    return f"{units / UNITS_PER_GPU:.3f}".rstrip("0").rstrip(".")


def ask_label(ask: QuotaAsk) -> str:
    """How lists call it."""
    tier = ask.tier.name if ask.tier else _("all tiers")
    if isinstance(ask, Grant):
        words = _("%(gpus)s more GPUs of %(tier)s guaranteed to %(team)s until %(end)s")
        return words % {
            "gpus": gpus_text(ask.units),
            "tier": tier,
            "team": ask.team.name,
            "end": local_text(ask, ask.ends_at),
        }
    return _("another quota of %(tier)s for %(team)s") % {"tier": tier, "team": ask.team.name}


def local_text(ask: QuotaAsk, moment: datetime) -> str:
    """A moment as the clocks of the company show it."""
    zone = ZoneInfo(company_of(ask.team).time_zone)
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M}"


def ask_facts(ask: QuotaAsk) -> Facts:
    """What the rules see. More than the team has now is over its quota by its nature, however small."""
    tiers = (ask.tier.name,) if ask.tier else ()
    if isinstance(ask, Grant):
        hours = Decimal((ask.ends_at - ask.starts_at) // timedelta(seconds=36)) / 100
        return Facts("grant", tiers, _whole(ask.units), hours, over_quota=True, asked=ask_label(ask))
    assert isinstance(ask, QuotaChange)
    now = amounts_of(quota_at(ask.team, ask.tier))
    more = max(0, ask.guaranteed - now.guaranteed)
    raises = more > 0 or _beyond(ask.limit, now.limit) or ask.weight > now.weight
    lends_less = _beyond(now.lend_limit, ask.lend_limit)
    words = "; ".join(changes_text(now, amounts_asked(ask)))
    return Facts(
        "quota_change",
        tiers,
        _whole(more),
        over_quota=raises or lends_less,
        asked=f"{ask_label(ask)}: {words}",
    )


def _beyond(one: int | None, other: int | None) -> bool:
    """Whether the first limit allows more; None allows all."""
    return other is not None and (one is None or one > other)


def _whole(units: int) -> int:
    return -(-units // UNITS_PER_GPU)


def changes_text(old: Amounts, new: Amounts) -> list[str]:
    """ "guarantee from 4 to 8" for each value that differs."""
    names = {
        "guaranteed": _("guarantee"),
        "limit": _("limit"),
        "lend_limit": _("lent at most"),
        "weight": _("weight"),
    }
    before, after = asdict(old), asdict(new)
    return [
        _("%(name)s from %(old)s to %(new)s")
        % {"name": names[key], "old": _value(key, before[key]), "new": _value(key, after[key])}
        for key in names
        if before[key] != after[key]
    ]


def _value(key: str, value: int | None) -> str:
    return str(value) if key == "weight" else gpus_text(value)


def ask_values(ask: QuotaAsk) -> Mapping[str, Any]:
    """What approvers decide on. A team that moved has another parent, who did not agree to anything."""
    values: dict[str, Any] = {
        "team": str(ask.team_id),
        "parent": str(ask.team.parent_id),
        "tier": str(ask.tier_id),
        "starts_at": ask.starts_at.isoformat() if ask.starts_at else None,  # type: ignore[attr-defined]
    }
    if isinstance(ask, Grant):
        return {**values, "units": ask.units, "ends_at": ask.ends_at.isoformat()}
    assert isinstance(ask, QuotaChange)
    return {**values, **asdict(amounts_asked(ask))}


def ask_fingerprint(ask: QuotaAsk) -> str:
    """The digest of these values."""
    return hashlib.sha256(json.dumps(ask_values(ask), sort_keys=True).encode()).hexdigest()
