"""What is free, as blocks that a request could take."""

from __future__ import annotations

from collections.abc import Sequence

from gpuyard.fleet.models import Tier
from gpuyard.web.contexts import FreeTier, TierChoice
from gpuyard.web.pages.money import hourly_price
from scheduling.selectors import TierSupply, tier_supply
from tenants.models import Team


def free_tiers(team: Team | None) -> list[FreeTier]:
    """Each tier that has a GPU; the dearest class first."""
    return [_free_tier(one, team) for one in _supplies(team) if one.total]


def _supplies(team: Team | None) -> Sequence[TierSupply]:
    return tier_supply(team, Tier.objects.order_by("-cost_rank", "-memory_mib", "name"))


def _free_tier(supply: TierSupply, team: Team | None) -> FreeTier:
    counts = {8: 0, 4: 0, 1: 0}
    for free in supply.blocks:
        for size in counts:
            taken, free = divmod(free, size)
            counts[size] += taken
    return FreeTier(
        tier=supply.tier.name,
        free=supply.free,
        total=supply.total,
        eights=counts[8],
        fours=counts[4],
        singles=counts[1],
        price=hourly_price(team, supply.tier),
    )


def tier_choices(team: Team | None, kind: str, selected: str) -> list[TierChoice]:
    """For the request form: with memory, architecture, what is free and the price."""
    supplies = [one for one in _supplies(team) if one.total] or list(_supplies(team))
    names = {one.tier.name for one in supplies}
    chosen = selected if selected in names else ""
    if not chosen and not selected and supplies:
        chosen = next((one.tier.name for one in reversed(supplies) if one.free), supplies[-1].tier.name)
    return [
        TierChoice(
            name=one.tier.name,
            detail=f"{one.tier.memory_mib / 1024:.1f} GiB · {one.tier.architecture}",
            free=one.free,
            largest_block=one.largest_block,
            price=hourly_price(team, one.tier, kind),
            selected=one.tier.name == chosen,
        )
        for one in supplies
    ]
