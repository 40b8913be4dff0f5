"""What would help a waiting request: the smallest change that starts it, and when it may start by itself."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from scheduling.engine import decisions as codes
from scheduling.engine.blockers import clip
from scheduling.engine.decisions import Blocker
from scheduling.engine.fairshare import LimitHit, QuotaTree
from scheduling.engine.order import units_asked
from scheduling.engine.placement import Fleet, Ints, Shape, TierNodes, replicas_that_fit
from scheduling.engine.snapshot import UNITS_PER_GPU, Live, Request, Tier

BASIS_TIME_LIMITS = "time_limits"

_QUOTA_CODES = {codes.QUOTA_LIMIT, codes.QUOTA_LIMIT_TOTAL}
_MACHINE_USE = {codes.NOT_ENOUGH_FREE_GPUS, codes.GANG_SPLIT, codes.CPU, codes.MEMORY}


class Changes:
    """The smallest change that starts a request now or, where it never fits, lets it ever start."""

    def __init__(self, fleet: Fleet, shares: QuotaTree, tiers: Iterable[Tier]) -> None:
        self._fleet, self._shares = fleet, shares
        self._tiers = {tier.id: tier for tier in tiers}
        self._fits: dict[tuple[str, Shape], bool] = {}

    def smallest(self, request: Request, blockers: tuple[Blocker, ...], never: bool) -> dict[str, Any] | None:
        shape = Shape.of(request)
        if request.budget_blocker is not None:
            only = all(blocker.code == codes.BUDGET for blocker in blockers)
            return {"kind": "budget"} if only else None
        if never:
            return self._fewer_ever(request, shape) or self._other_tier(request, shape)
        found = (
            self._other_tier(request, shape) or self._fewer_now(request, shape) or self._quota(request, shape)
        )
        return found or self._wait(request, blockers)

    def _would_start(self, request: Request, tier_id: str, shape: Shape) -> bool:
        units = shape.replicas * shape.gpus * UNITS_PER_GPU
        if self._shares.limit_hits(request.team_id, tier_id, units):
            return False
        return self._fits_now(tier_id, shape)

    def _fits_now(self, tier_id: str, shape: Shape) -> bool:
        key = (tier_id, shape)
        if key not in self._fits:
            self._fits[key] = self._fleet.fits_now(self._fleet.tiers[tier_id], shape)
        return self._fits[key]

    def _known(self, request: Request) -> list[str]:
        return [tier_id for tier_id in request.tiers if tier_id in self._tiers]

    def _other_tier(self, request: Request, shape: Shape) -> dict[str, Any] | None:
        """The cheapest tier not named that has at least the memory of the smallest one named."""
        known = self._known(request)
        memory = min((self._tiers[tier_id].memory_mib for tier_id in known), default=0)
        others = sorted(
            (tier for tier in self._tiers.values() if tier.id not in known and tier.memory_mib >= memory),
            key=lambda tier: (tier.cost_rank, tier.id),
        )
        for tier in others:
            if self._would_start(request, tier.id, shape):
                return {"kind": "other_tier", "tier": tier.id}
        return None

    def _fewer_now(self, request: Request, shape: Shape) -> dict[str, Any] | None:
        best = (0, "")
        for tier_id in self._known(request):
            usable = self._fleet.tiers[tier_id].usable
            most = min(shape.gpus - 1, int(usable.max(initial=0)))
            fewer = (
                n
                for n in range(most, best[0], -1)
                if self._would_start(request, tier_id, _with_gpus(shape, n))
            )
            best = next(((gpus, tier_id) for gpus in fewer), best)
        if not best[0]:
            return None
        return {"kind": "fewer_gpus", "gpus_per_replica": best[0], "tier": best[1], "when": "now"}

    def _fewer_ever(self, request: Request, shape: Shape) -> dict[str, Any] | None:
        """The most GPUs for each replica, less than asked, that empty nodes of a named tier would hold."""
        best = (0, "")
        for tier_id in self._known(request):
            tier = self._fleet.tiers[tier_id]
            most = min(shape.gpus - 1, int(tier.total.max(initial=0)))
            fewer = (
                n for n in range(most, best[0], -1) if not clip(self._fleet, tier, _with_gpus(shape, n))[1]
            )
            best = next(((gpus, tier_id) for gpus in fewer), best)
        if not best[0]:
            return None
        now = self._would_start(request, best[1], _with_gpus(shape, best[0]))
        when = "now" if now else "later"
        return {"kind": "fewer_gpus", "gpus_per_replica": best[0], "tier": best[1], "when": when}

    def _quota(self, request: Request, shape: Shape) -> dict[str, Any] | None:
        """Raising limits is the change only where the machines would take the request at once."""
        for tier_id in self._known(request):
            hits = self._shares.limit_hits(request.team_id, tier_id, units_asked(request))
            if hits and self._fits_now(tier_id, shape):
                raises = [
                    {
                        "team_id": hit.team_id,
                        "tier_id": hit.tier_id,
                        "units": hit.used + hit.asked - hit.limit,
                    }
                    for hit in hits
                ]
                units = max(hit.used + hit.asked - hit.limit for hit in hits)
                return {"kind": "quota", "units": units, "raise": raises}
        return None

    def _wait(self, request: Request, blockers: tuple[Blocker, ...]) -> dict[str, Any] | None:
        """Waiting helps where use falls or machines come back, not against a limit below the request."""
        helpless = {codes.TIER_UNKNOWN, codes.POOL_NOT_ALLOWED, codes.BUDGET, codes.NEVER_FITS_NODE}
        for tier_id in request.tiers:
            found = blockers_of(blockers, tier_id)
            too_low = any(b.code in _QUOTA_CODES and b.data["asked"] > b.data["limit"] for b in found)
            if not too_low and not any(blocker.code in helpless for blocker in found):
                return {"kind": "wait"}
        return None


class Etas:
    """The earliest start if all running work ends at its time limit and nobody goes first."""

    def __init__(
        self, fleet: Fleet, shares: QuotaTree, live: Iterable[Live], now_us: int, shape_count: int
    ) -> None:
        self._fleet, self._shares, self._now_us = fleet, shares, now_us
        timed = [held for held in live if held.ends_us is not None]
        self._live = sorted(
            timed, key=lambda held: (held.ends_us or 0, held.workload_id, held.node_id, held.tier_id)
        )
        self._row = {node.id: row for row, node in enumerate(fleet.nodes)}
        self._nodes = _array(self._row.get(held.node_id, -1) for held in self._live)  # (live,)
        self._cpu = _array(held.cpu_m for held in self._live)  # (live,)
        self._memory = _array(held.memory_mib for held in self._live)  # (live,)
        self._gpus: dict[str, Ints] = {}
        self._freed: dict[tuple[str, str | None], Ints] = {}
        self._capacity: dict[tuple[str, Shape], int | None] = {}
        self._left = shape_count

    def earliest(self, request: Request, blockers: tuple[Blocker, ...]) -> int | None:
        times = []
        for tier_id in request.tiers:
            if all(_passes_with_time(blocker) for blocker in blockers_of(blockers, tier_id)):
                times.append(self._on_tier(request, tier_id))
        return min((time_us for time_us in times if time_us is not None), default=None)

    def _on_tier(self, request: Request, tier_id: str) -> int | None:
        ends = [self._when_room(tier_id, Shape.of(request))]
        for hit in self._shares.limit_hits(request.team_id, tier_id, units_asked(request)):
            ends.append(self._when_under(hit))
        known = [end for end in ends if end is not None]
        if len(known) < len(ends) or max(known) == 0:
            return None
        return max(self._now_us, self._live[max(known) - 1].ends_us or 0)

    def _when_under(self, hit: LimitHit) -> int | None:
        """How many of the running, in order of their ends, must have ended for the limit to hold."""
        key = (hit.team_id, hit.tier_id)
        if key not in self._freed:
            units = (held.units if self._shares.counts_against(held, hit) else 0 for held in self._live)
            self._freed[key] = np.cumsum(_array(units))  # (live,)
        excess = hit.used + hit.asked - hit.limit
        index = int(np.searchsorted(self._freed[key], excess))
        return index + 1 if index < len(self._live) else None

    def _when_room(self, tier_id: str, shape: Shape) -> int | None:
        key = (tier_id, shape)
        if key not in self._capacity:
            if not self._left:
                return None
            self._left -= 1
            self._capacity[key] = self._search(self._fleet.tiers[tier_id], shape)
        return self._capacity[key]

    def _search(self, tier: TierNodes, shape: Shape) -> int | None:
        if not self._fits_after(tier, shape, len(self._live)):
            return None
        low, high = 0, len(self._live)
        while low < high:
            middle = (low + high) // 2
            if self._fits_after(tier, shape, middle):
                high = middle
            else:
                low = middle + 1
        return low

    def _fits_after(self, tier: TierNodes, shape: Shape, count: int) -> bool:
        # GPUs that are held but not ready may be among those given back: count them out, rather late than wrong.
        unready = tier.total - tier.free - (tier.ready - tier.usable)  # (tier nodes,)
        released = self._released(self._tier_gpus(tier.tier_id), tier, count)
        gpus = tier.usable + np.maximum(0, released - unready)
        cpu = self._fleet.cpu_free[tier.nodes] + self._released(self._cpu, tier, count)
        memory = self._fleet.memory_free[tier.nodes] + self._released(self._memory, tier, count)
        fit = replicas_that_fit(shape, gpus, cpu, memory) * self._fleet.open_nodes(tier, shape.pool_ids)
        return int(fit.sum()) >= shape.replicas

    def _released(self, amounts: Ints, tier: TierNodes, count: int) -> Ints:
        """What the first `count` to end give back on each node of the tier."""
        given = np.zeros(
            len(self._fleet.nodes) + 1, dtype=np.int64
        )  # (nodes + 1,) the last for nodes unknown
        np.add.at(given, self._nodes[:count], amounts[:count])
        return given[tier.nodes]

    def _tier_gpus(self, tier_id: str) -> Ints:
        if tier_id not in self._gpus:
            whole = (held.units // UNITS_PER_GPU if held.tier_id == tier_id else 0 for held in self._live)
            self._gpus[tier_id] = _array(whole)  # (live,)
        return self._gpus[tier_id]


def _passes_with_time(blocker: Blocker) -> bool:
    if blocker.code in _QUOTA_CODES:
        return bool(blocker.data["asked"] <= blocker.data["limit"])
    return blocker.code in _MACHINE_USE and blocker.data.get("ever", True)


def blockers_of(blockers: tuple[Blocker, ...], tier_id: str) -> list[Blocker]:
    """What keeps the request off this tier: its own blockers and those of every tier (a budget, a total)."""
    return [blocker for blocker in blockers if blocker.data.get("tier_id") in (None, tier_id)]


def _with_gpus(shape: Shape, gpus: int) -> Shape:
    return replace(shape, gpus=gpus)


def _array(values: Iterable[int]) -> Ints:
    return np.fromiter(values, dtype=np.int64)
