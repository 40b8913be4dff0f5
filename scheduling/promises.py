"""Whether what the companies are guaranteed together is there: if not, pages say so and it is served in proportion."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Count, Sum
from django.utils.translation import gettext as _

from gpuyard.core.money import UNITS_PER_GPU, units_for
from gpuyard.fleet.models import Condition, Gpu, Tier
from tenants.models import Quota


@dataclass(frozen=True)
class TierPromise:
    """Of one tier, in units: what all companies together are guaranteed, and what is ready for it."""

    tier: Tier
    guaranteed: int
    ready: int

    @property
    def is_short(self) -> bool:
        return self.guaranteed > self.ready

    @property
    def text(self) -> str:
        """What is wrong, for people; empty if nothing is."""
        if not self.is_short:
            return ""
        return _("%(tier)s: guarantees of %(guaranteed)s GPUs, %(ready)s ready: served in proportion.") % {
            "tier": self.tier.name,
            "guaranteed": _gpus(self.guaranteed),
            "ready": _gpus(self.ready),
        }


def _gpus(units: int) -> str:
    return f"{units / UNITS_PER_GPU:.2f}".rstrip("0").rstrip(".")


def tier_promises() -> dict[UUID, TierPromise]:
    """Tier → its promise, for each tier of which something is guaranteed; in three queries."""
    roots = Quota.objects.in_force().filter(team__parent=None, tier__isnull=False, guaranteed__gt=0)
    promised = dict(roots.values_list("tier_id").annotate(sum=Sum("guaranteed")))
    ready: dict[UUID, int] = defaultdict(int)
    gpus = Gpu.objects.filter(
        retired_at=None,
        tier__in=promised,
        conditions__span__upper_inf=True,
        conditions__condition=Condition.READY,
    )
    counted = gpus.values_list("tier_id", "compute_slices", "card_slices").annotate(count=Count("pk"))
    for tier_id, compute_slices, card_slices, count in counted:
        ready[tier_id] += count * units_for(compute_slices=compute_slices, card_slices=card_slices)
    tiers = Tier.objects.in_bulk(promised.keys())
    return {key: TierPromise(tiers[key], units, ready[key]) for key, units in promised.items() if key}


def promises_short() -> list[str]:
    """The sentences about tiers whose guarantees are more than there is, by tier."""
    found = sorted(tier_promises().values(), key=lambda promise: promise.tier.name)
    return [promise.text for promise in found if promise.is_short]
