"""What would help a waiting request: the smallest change that starts it, and when it may start by itself."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scheduling.engine import decisions as codes
from scheduling.engine.backfill import Held, Timeline
from scheduling.engine.blockers import clip
from scheduling.engine.decisions import BASIS_CLASS_DEFAULTS, BASIS_TIME_LIMITS, Blocker
from scheduling.engine.endings import Ending
from scheduling.engine.fairshare import GUARANTEE, HEADROOM, LENDING, LimitHit, QuotaTree
from scheduling.engine.gates import Gates
from scheduling.engine.order import Ask
from scheduling.engine.placement import Fleet, Ints, Shape
from scheduling.engine.snapshot import WHOLE, Live, Request, Tier
from scheduling.engine.topology import relaxes_us

_QUOTA_CODES = {codes.QUOTA_LIMIT, codes.QUOTA_LIMIT_TOTAL, codes.NOT_PREEMPTIBLE, codes.HEADROOM}
_MACHINE_USE = {
    codes.NOT_ENOUGH_FREE_GPUS,
    codes.SHARE,
    codes.GANG_SPLIT,
    codes.CPU,
    codes.MEMORY,
    codes.TOPOLOGY,
    codes.RESERVATION,
}
_GATES = {codes.NOT_BEFORE, codes.DEPENDENCY, codes.ARRAY_CAP, codes.SESSIONS}
# Waiting does not end these.
_HELPLESS = {
    codes.TIER_UNKNOWN,
    codes.POOL_NOT_ALLOWED,
    codes.NODE_SELECTION,
    codes.BUDGET,
    codes.NEVER_FITS_NODE,
}


class Changes:
    """The smallest change that starts a request now or, where it never fits, lets it ever start."""

    def __init__(self, fleet: Fleet, shares: QuotaTree, timeline: Timeline, tiers: Iterable[Tier]) -> None:
        self._fleet, self._shares, self._timeline = fleet, shares, timeline
        self._tiers = {tier.id: tier for tier in tiers}
        self._cheapest = sorted(self._tiers.values(), key=lambda tier: (tier.cost_rank, tier.id))
        self._most = {tier_id: int(tier.usable.max(initial=0)) for tier_id, tier in fleet.tiers.items()}
        self._fits: dict[tuple[str, Shape, int, str], bool] = {}
        self.has_asked_quotas = False

    def smallest(self, ask: Ask, blockers: tuple[Blocker, ...], never: bool) -> dict[str, Any] | None:
        if ask.request.budget_blocker is not None:
            only = all(blocker.code == codes.BUDGET for blocker in blockers)
            return {"kind": "budget"} if only else None
        if never:
            return self._level_ever(ask) or self._fewer_ever(ask) or self._other_tier(ask)
        gates = [blocker for blocker in blockers if blocker.code in _GATES]
        if gates:
            if any(_is_helpless(gate) for gate in gates):
                return None
            is_all = len(gates) == len(blockers) == 1
            return _gate_change(gates[0]) if is_all else self._wait(ask.request, blockers)
        found = self._level_now(ask) or self._other_tier(ask) or self._fewer_now(ask)
        return found or self._smaller_share(ask) or self._quota(ask) or self._wait(ask.request, blockers)

    def _would_start(self, ask: Ask, tier_id: str, shape: Shape) -> bool:
        """`has_asked_quotas` from then on, if machines alone did not say no."""
        if (not shape.is_share and self._most[tier_id] < shape.gpus) or not self._fits_now(
            ask, tier_id, shape
        ):
            return False
        units = self._fleet.tiers[tier_id].units_of(shape)
        self.has_asked_quotas = True
        return not self._shares.hits(ask.request.team_id, tier_id, units, bound=ask.bound, kind=ask.kind)

    def _fits_now(self, ask: Ask, tier_id: str, shape: Shape) -> bool:
        """Beside all reservations but its own: that would be gone with the start."""
        own: Held | None = self._timeline.held.get(ask.id)
        key = (tier_id, shape, ask.hold_us, ask.id if own else "")
        if key not in self._fits:
            self._fits[key] = self._timeline.fits_now(tier_id, shape, ask.hold_us, own)
        return self._fits[key]

    def _other_tier(self, ask: Ask) -> dict[str, Any] | None:
        """The cheapest tier not named that has at least the memory of the smallest one named."""
        memory = min((self._tiers[tier_id].memory_mib for tier_id in ask.tiers), default=0)
        for tier in self._cheapest:
            could = tier.memory_mib >= memory and tier.id not in ask.tiers
            if could and self._would_start(ask, tier.id, ask.shape):
                return {"kind": "other_tier", "tier": tier.id}
        return None

    def _level_now(self, ask: Ask) -> dict[str, Any] | None:
        """The next wider level of topology with which it would start now."""
        shape = ask.shape
        for tier_id in ask.tiers if shape.required_level else ():
            for level in self._fleet.topology.wider(shape):
                if self._would_start(ask, tier_id, replace(shape, required_level=level)):
                    return {"kind": "level", "level": level, "tier": tier_id, "when": "now"}
        return None

    def _level_ever(self, ask: Ask) -> dict[str, Any] | None:
        """The next wider level that empty nodes of a named tier would hold it in."""
        shape = ask.shape
        for tier_id in ask.tiers if shape.required_level else ():
            tier = self._fleet.tiers[tier_id]
            for level in self._fleet.topology.wider(shape):
                if not clip(self._fleet, tier, replace(shape, required_level=level))[1]:
                    now = self._would_start(ask, tier_id, replace(shape, required_level=level))
                    when = "now" if now else "later"
                    return {"kind": "level", "level": level, "tier": tier_id, "when": when}
        return None

    def _smaller_share(self, ask: Ask) -> dict[str, Any] | None:
        """The largest part of a card, smaller than asked, with which it would start now."""
        shape, best = ask.shape, (0, "")
        for tier_id in ask.tiers if shape.is_share else ():
            tier = self._fleet.tiers[tier_id]
            joins = tier.may_join(shape.sharer) & self._fleet.open_nodes(tier, shape)[:, None]
            free = tier.slots[joins]  # (cards that it may join,)
            for slots in np.unique(free[(free > best[0]) & (free < tier.slots_of(shape))])[::-1].tolist():
                if self._would_start(ask, tier_id, replace(shape, share=slots, gpu_memory_mib=0)):
                    best = (slots, tier_id)
                    break
        if not best[0]:
            return None
        memory_mib = self._tiers[best[1]].memory_mib * best[0] // WHOLE
        return {"kind": "smaller_share", "share": best[0], "gpu_memory_mib": memory_mib, "tier": best[1]}

    def _fewer_now(self, ask: Ask) -> dict[str, Any] | None:
        best = (0, "")
        for tier_id in ask.tiers:
            fewer = (
                n
                for n in range(min(ask.shape.gpus - 1, self._most[tier_id]), best[0], -1)
                if self._would_start(ask, tier_id, _with_gpus(ask.shape, n))
            )
            best = next(((gpus, tier_id) for gpus in fewer), best)
        if not best[0]:
            return None
        return {"kind": "fewer_gpus", "gpus_per_replica": best[0], "tier": best[1], "when": "now"}

    def _fewer_ever(self, ask: Ask) -> dict[str, Any] | None:
        """The most GPUs for each replica, less than asked, that empty nodes of a named tier would hold."""
        best, shape = (0, ""), ask.shape
        for tier_id in ask.tiers:
            tier = self._fleet.tiers[tier_id]
            most = min(shape.gpus - 1, int(tier.total.max(initial=0)))
            fewer = (
                n for n in range(most, best[0], -1) if not clip(self._fleet, tier, _with_gpus(shape, n))[1]
            )
            best = next(((gpus, tier_id) for gpus in fewer), best)
        if not best[0]:
            return None
        now = self._would_start(ask, best[1], _with_gpus(shape, best[0]))
        when = "now" if now else "later"
        return {"kind": "fewer_gpus", "gpus_per_replica": best[0], "tier": best[1], "when": when}

    def _quota(self, ask: Ask) -> dict[str, Any] | None:
        """Raising quotas is the change only where the machines would take the request at once."""
        for tier_id in ask.tiers:
            hits = self._shares.hits(
                ask.request.team_id, tier_id, ask.units_on(tier_id), bound=ask.bound, kind=ask.kind
            )
            if not hits or any(hit.rule in (LENDING, HEADROOM) for hit in hits):
                continue
            if self._fits_now(ask, tier_id, ask.shape):
                raises = [
                    {
                        "team_id": hit.team_id,
                        "tier_id": hit.tier_id,
                        "units": hit.used + hit.asked - hit.limit,
                    }
                    | ({"what": GUARANTEE} if hit.rule == GUARANTEE else {})
                    for hit in hits
                ]
                units = max(hit.used + hit.asked - hit.limit for hit in hits)
                return {"kind": "quota", "units": units, "raise": raises}
        return None

    def _wait(self, request: Request, blockers: tuple[Blocker, ...]) -> dict[str, Any] | None:
        """Waiting helps where use falls or machines come back, not against a limit below the request."""
        for tier_id in request.tiers:
            found = [b for b in blockers_of(blockers, tier_id) if not b.data.get("alternative")]
            too_low = any(b.code in _QUOTA_CODES and b.data["asked"] > b.data["limit"] for b in found)
            if not too_low and not any(_is_helpless(blocker) for blocker in found):
                return {"kind": "wait"}
        return None


def _is_helpless(blocker: Blocker) -> bool:
    return blocker.code in _HELPLESS or not blocker.data.get("ever", True)


def _gate_change(gate: Blocker) -> dict[str, Any]:
    if gate.code == codes.ARRAY_CAP:
        return {"kind": "array_cap", "cap": gate.data["running"] + 1}
    return {"kind": "start_time" if gate.code == codes.NOT_BEFORE else "wait"}


class Etas:
    """The earliest start once running work ends, beside all reserved starts, if nobody else goes first."""

    def __init__(
        self, timeline: Timeline, shares: QuotaTree, gates: Gates, live: Iterable[Live], shape_count: int
    ) -> None:
        self._timeline, self._shares, self._gates = timeline, shares, gates
        self.waiting: dict[str, tuple[int, str] | None] = {}  # when what waits itself will have ended
        self._endings = [e for e in timeline.endings(live) if e.ends_us is not None]
        self._found: dict[tuple[object, ...], int | None] = {}
        self._freed: dict[tuple[str, str | None, str], tuple[Ints, list[Ending]]] = {}
        self._by_workload: dict[str, Ending] | None = None
        self._left = shape_count

    def earliest(self, ask: Ask, blockers: tuple[Blocker, ...]) -> tuple[int, str] | None:
        """(when, what it rests on)."""
        gates = [self._gate_ends(ask, gate) for gate in blockers if gate.code in _GATES]
        if None in gates:
            return None
        times = []
        for tier_id in ask.tiers:
            if _pass_with_time(blockers_of(blockers, tier_id)):
                found = self._on_tier(ask, tier_id)
                times += [] if found is None else [found]
        if not times:
            return None
        return max([min(times), *(gate for gate in gates if gate is not None)], key=lambda found: found[0])

    def _gate_ends(self, ask: Ask, gate: Blocker) -> tuple[int, str] | None:
        """When a gate opens, if that is known; what it waits for may fail, then it does not."""
        if gate.code == codes.NOT_BEFORE:
            return gate.data["not_before_us"], BASIS_TIME_LIMITS
        if gate.code == codes.DEPENDENCY:
            return _last([self._ends_of(workload_id) for workload_id in ask.request.depends_on])
        return self._cap_ends(*self._gates.in_the_way(ask, gate)) if gate.data.get("ever", True) else None

    def _cap_ends(self, needed: int, counted: Mapping[str, int]) -> tuple[int, str] | None:
        """When so much of what counts will have ended; what waits beside it for the same cap is not asked."""
        ends = [(end, counted[workload_id]) for workload_id in counted if (end := self._ends_of(workload_id))]
        before: list[tuple[int, str] | None] = []
        for end, amount in sorted(ends):
            before.append(end)
            needed -= amount
            if needed <= 0:
                return _last(before)
        return None

    def _ends_of(self, workload_id: str) -> tuple[int, str] | None:
        """When the last of its replicas ends; None if nobody knows."""
        if self._by_workload is None:
            self._by_workload = {}
            for ending in self._endings:  # first end first
                self._by_workload[ending.live.workload_id] = ending
        if workload_id in self.waiting:
            return self.waiting[workload_id]
        found = self._by_workload.get(workload_id)
        return None if found is None else (found.ends_us or 0, _basis(found.is_estimate))

    def _on_tier(self, ask: Ask, tier_id: str) -> tuple[int, str] | None:
        room_us = self._when_room(ask, tier_id)
        if room_us is None:
            return None
        ends = [(room_us, self._timeline.tier(tier_id).is_estimate(room_us))]
        for hit in self._shares.hits(
            ask.request.team_id, tier_id, ask.units_on(tier_id), bound=ask.bound, kind=ask.kind
        ):
            ending = self._when_under(hit)
            if ending is None:
                return None
            ends.append((ending.ends_us or 0, ending.is_estimate))
        return max(end for end, _ in ends), _basis(any(is_estimate for _, is_estimate in ends))

    def _when_room(self, ask: Ask, tier_id: str) -> int | None:
        """With the level of topology that it insists on, or with less once it does not any more."""
        found = self._room_us(ask, tier_id, (tier_id, ask.shape_no, ask.hold_us))
        request = ask.request
        if ask.shape.required_level != request.required_level:
            relaxed = replace(ask, shape=replace(ask.shape, required_level=request.required_level))
            later = self._room_us(relaxed, tier_id, (tier_id, relaxed.shape, ask.hold_us))
            if later is not None:
                later = max(later, relaxes_us(request))
                found = later if found is None else min(found, later)
        return found

    def _room_us(self, ask: Ask, tier_id: str, key: tuple[object, ...]) -> int | None:
        if key not in self._found:
            if not self._left:
                return None
            self._left -= 1
            self._found[key] = self._timeline.earliest(tier_id, ask)
        return self._found[key]

    def _when_under(self, hit: LimitHit) -> Ending | None:
        """The one of the running, in order of their ends, with whose end the limit holds."""
        key = (hit.team_id, hit.tier_id, hit.rule)
        if key not in self._freed:
            counted = [e for e in self._endings if self._shares.counts_against(e.live, hit)]
            self._freed[key] = (np.cumsum(_array(e.live.units for e in counted)), counted)  # (counted,)
        freed, counted = self._freed[key]
        index = int(np.searchsorted(freed, hit.used + hit.asked - hit.limit))
        return counted[index] if index < len(counted) else None


def _basis(is_estimate: bool) -> str:
    return BASIS_CLASS_DEFAULTS if is_estimate else BASIS_TIME_LIMITS


def _last(ends: Sequence[tuple[int, str] | None]) -> tuple[int, str] | None:
    """When all have ended, an estimate if one of them is; None if of one nobody knows."""
    known = [end for end in ends if end is not None]
    if len(known) < len(ends) or not known:
        return None
    return max(end for end, _ in known), _basis(any(basis == BASIS_CLASS_DEFAULTS for _, basis in known))


def _pass_with_time(blockers: list[Blocker]) -> bool:
    """Whether all end by themselves; of alternatives one is enough."""
    either = [_passes_with_time(blocker) for blocker in blockers if blocker.data.get("alternative")]
    alone = [_passes_with_time(blocker) for blocker in blockers if not blocker.data.get("alternative")]
    return all(alone) and (any(either) or not either)


def _passes_with_time(blocker: Blocker) -> bool:
    if blocker.code in _QUOTA_CODES:
        return bool(blocker.data["asked"] <= blocker.data["limit"])
    return blocker.code in _GATES or (blocker.code in _MACHINE_USE and blocker.data.get("ever", True))


def blockers_of(blockers: tuple[Blocker, ...], tier_id: str) -> list[Blocker]:
    """What keeps the request off this tier: its own blockers and those of every tier (a budget, a total)."""
    return [blocker for blocker in blockers if blocker.data.get("tier_id") in (None, tier_id)]


def _with_gpus(shape: Shape, gpus: int) -> Shape:
    return replace(shape, gpus=gpus)


def _array(values: Iterable[int]) -> Ints:
    return np.fromiter(values, dtype=np.int64)
