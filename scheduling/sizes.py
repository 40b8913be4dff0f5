"""What a request comes to on each tier, and which tiers it means: in units, as quota and money count.

A share counts 7 units for each of its slots, a whole GPU 7000, a MIG instance its part of the card. GPU memory is as
many slots as it is of the tier's memory, so that the same request is another size on another tier.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.utils.translation import gettext as _

from gpuyard.core.errors import Invalid
from gpuyard.core.money import SLOTS_PER_GPU, UNITS_PER_GPU, units_for
from gpuyard.fleet.architectures import is_at_least
from gpuyard.fleet.models import Gpu, Tier
from scheduling.asked import capabilities_text
from scheduling.specs import Capabilities, Request

_TIERS = "spec.request.tiers"
_CAPABILITIES = "spec.request.capabilities"


# --- Which tiers -------------------------------------------------------------------------------------------


def tiers_able(capabilities: Capabilities, tiers: Iterable[Tier]) -> list[Tier]:
    """Those that have all of it, the cheapest first."""
    able = [tier for tier in tiers if _has(tier, capabilities)]
    return sorted(able, key=lambda tier: (tier.cost_rank, tier.memory_mib, tier.name))


def _has(tier: Tier, wanted: Capabilities) -> bool:
    return (
        tier.memory_mib >= (wanted.memory_mib or 0)
        and (wanted.architecture is None or is_at_least(tier.architecture, wanted.architecture))
        and set(wanted.labels) <= set(tier.capabilities)
    )


def tiers_of(request: Request) -> tuple[Tier, ...]:
    """The tiers that a request names or means, in their order; `Invalid` says which there is not."""
    if request.capabilities is not None:
        able = tiers_able(request.capabilities, Tier.objects.all())
        if not able:
            raise Invalid(
                "capabilities_nowhere",
                _("No tier has that: %(what)s.") % {"what": capabilities_text(request.capabilities)},
                field=_CAPABILITIES,
                remedy=_("Ask for less. There are: %(tiers)s.") % {"tiers": _tier_names()},
            )
        return tuple(able)
    return tiers_named(request.tiers)


def tiers_named(names: Iterable[str], *, field: str = _TIERS) -> tuple[Tier, ...]:
    """The tiers in the given order; `Invalid` says which one there is not, and which there are."""
    wanted = list(names)
    known = {tier.name: tier for tier in Tier.objects.filter(name__in=wanted)}
    if unknown := [name for name in wanted if name not in known]:
        raise Invalid(
            "tier_unknown",
            _("There is no tier %(tier)s.") % {"tier": unknown[0]},
            field=field,
            remedy=_("Choose from: %(choices)s.") % {"choices": _tier_names()},
        )
    return tuple(known[name] for name in wanted)


def _tier_names() -> str:
    return ", ".join(Tier.objects.order_by("name").values_list("name", flat=True)[:20]) or "–"


# --- How much of them ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """A request on one tier, in units: what a member of the array needs to start, may grow to; and all at once."""

    tier: Tier
    least: int
    most: int
    at_once: int

    @property
    def gpu_count(self) -> int:
        """In GPUs, at once, begun ones counted."""
        return -(-self.at_once // UNITS_PER_GPU)


def sizes(request: Request, tiers: Sequence[Tier]) -> tuple[Size, ...]:
    """In the order of the tiers; one query."""
    units = units_by_tier()
    return tuple(_size(request, tier, units.get(tier.pk, UNITS_PER_GPU)) for tier in tiers)


def _size(request: Request, tier: Tier, gpu_units: int) -> Size:
    slots = min(request.slots_on(tier.memory_mib), SLOTS_PER_GPU)
    each = units_for(slots=slots) if request.is_part else gpu_units * request.gpus_per_replica
    most = request.replicas_max * each
    return Size(tier, request.replicas_min * each, most, most * members_at_once(request))


def members_at_once(request: Request) -> int:
    """So many workloads of an array hold something at once; 1 without an array."""
    if request.array is None:
        return 1
    return min(request.array.count, request.array.parallel or request.array.count)


def units_by_tier() -> dict[UUID, int]:
    """What one GPU of each tier of MIG instances counts for: less than a card."""
    gpus = Gpu.objects.filter(retired_at=None, is_instance=1).order_by()
    slices = gpus.values_list("tier_id", "compute_slices", "card_slices").distinct()
    return {tier_id: units_for(compute_slices=own, card_slices=all_) for tier_id, own, all_ in slices}
