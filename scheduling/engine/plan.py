"""One pass: admit, order, place, grow, explain. Same snapshot, policy and time: same plan, to the byte."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from scheduling.engine.backfill import Timeline
from scheduling.engine.blockers import clip
from scheduling.engine.decisions import (
    Blocker,
    Plan,
    Policy,
    ReplicaPlacement,
    Reservation,
    Start,
    Verdict,
    plan_to_json,
)
from scheduling.engine.fairshare import Bands, QuotaTree
from scheduling.engine.order import Ask, Asks, Lanes, Line
from scheduling.engine.placement import Fleet, Ints, Placed, renumbered
from scheduling.engine.snapshot import Live, Snapshot
from scheduling.engine.standing import Standing
from scheduling.engine.verdicts import Explainer

__all__ = [
    "Blocker",
    "Plan",
    "Policy",
    "ReplicaPlacement",
    "Reservation",
    "Start",
    "Verdict",
    "plan",
    "plan_to_json",
]


def plan(snapshot: Snapshot, policy: Policy, now_us: int) -> Plan:
    current = _Pass(snapshot, policy, now_us)
    waiting = current.serve_bands(current.ready)
    waiting = current.serve(waiting, within_guarantee=True)
    waiting = current.serve(waiting, within_guarantee=False)
    waiting = current.mix(waiting)
    started = {start.ask.id for start in current.starts}
    if policy.grow_gangs:
        current.grow([ask for ask in current.ready if ask.id not in started])
    left = [ask for ask in current.asks if ask.id not in started]
    current.fleet.finish_reasons()
    return Plan(
        starts=tuple(start.decided() for start in current.starts),
        verdicts=current.verdicts(left),
        reservations=current.timeline.reservations(),
        shares=current.standing.fair_shares(),
    )


@dataclass(slots=True)
class _Start:
    """A start under way: growing may still add replicas."""

    ask: Ask
    tier_id: str
    borrowed: bool
    placed: Placed
    why_now: dict[str, Any]
    why_here: dict[str, Any]

    def decided(self) -> Start:
        nodes = dict.fromkeys(replica.node_id for replica in self.placed.replicas)
        why_here = self.why_here | {"nodes": list(nodes)} | self.placed.why
        return Start(
            self.ask.id,
            self.tier_id,
            self.borrowed,
            self.placed.replicas,
            self.why_now,
            why_here,
        )

    def live(self, now_us: int) -> list[Live]:
        """The start as what others see of it: somebody who holds GPUs."""
        request = self.ask.request
        ends_us = None if request.time_limit_s is None else now_us + request.time_limit_s * 1_000_000
        return [
            Live(
                request.workload_id,
                request.team_id,
                replica.tier_id,
                len(replica.gpu_ids) * replica.units_per_gpu,
                "held",
                replica.node_id,
                self.borrowed,
                now_us,
                ends_us,
                replica.cpu_m,
                replica.memory_mib,
                request.kind,
                request.preemptible,
                replica=replica.index,
                gpu_ids=replica.gpu_ids,
                slots=replica.slots,
            )
            for replica in self.placed.replicas
        ]


class _Pass:
    def __init__(self, snapshot: Snapshot, policy: Policy, now_us: int) -> None:
        self.snapshot, self.policy, self.now_us = snapshot, policy, now_us
        self.fleet = Fleet(snapshot, policy)
        self.shares = QuotaTree(snapshot)
        self.names = {tier.id: tier.name for tier in snapshot.tiers}
        self.starts: list[_Start] = []
        self.asks = Asks(snapshot, policy, now_us, self.fleet).all
        self._never: dict[tuple[str, int], bool] = {}
        able = [ask for ask in self.asks if ask.request.budget_blocker is None and self._could_ever(ask)]
        self.standing = Standing(self.shares, self._wanted(able), snapshot.usage, policy)
        self.timeline = Timeline(self.fleet, snapshot.live, policy, now_us)
        self.ready = able
        self._bands = Bands(self.shares, snapshot)
        # Room only shrinks during a pass: what did not fit once needs no second look, nor do its equals.
        self._hopeless: set[tuple[str, int]] = set()
        self._held_back: set[tuple[str, int, int]] = set()  # by reservations, for so long a hold
        self._barred: set[tuple[str, str, int, bool]] = set()  # by quotas
        self._unreserved: set[tuple[str, tuple[str, ...], int, int, bool]] = set()
        self._within = False

    def _could_ever(self, ask: Ask) -> bool:
        """Whether empty machines of some named tier (or of several) would hold it; equal shapes share the answer."""
        if ask.request.mix_tiers and ask.tiers:
            return True
        return not all(self._is_never(ask, tier_id) for tier_id in ask.tiers)

    def _is_never(self, ask: Ask, tier_id: str) -> bool:
        key = (tier_id, ask.shape_no)
        if key not in self._never:
            tier = self.fleet.tiers[tier_id]
            self._never[key] = not tier.nodes.size or bool(clip(self.fleet, tier, ask.shape)[1])
        return self._never[key]

    def _wanted(self, asks: Iterable[Ask]) -> dict[tuple[str, str], int]:
        wanted: Counter[tuple[str, str]] = Counter()
        for ask in asks:
            for tier_id in ask.tiers:
                if not self._is_never(ask, tier_id):
                    wanted[ask.request.team_id, tier_id] += ask.units_on(tier_id)
        return wanted

    def serve_bands(self, asks: Sequence[Ask]) -> list[Ask]:
        """The highest band first; who has no grant for it, or none with room, stands in line like all others."""
        left = list(asks)
        for band in sorted({ask.request.band for ask in asks if ask.request.band > 0}, reverse=True):
            members = [ask for ask in left if ask.request.band == band and self._may_use_band(ask)]
            ids = {ask.id for ask in members}
            left = [ask for ask in left if ask.id not in ids]
            left += self.serve(members, within_guarantee=False, band=band)
        return left

    def _may_use_band(self, ask: Ask) -> bool:
        return self._bands.allowed(ask.request.team_id, ask.request.band, ask.most_units)

    def serve(self, asks: Iterable[Ask], *, within_guarantee: bool, band: int = 0) -> list[Ask]:
        """Start what can be started, in order, and reserve for the first that cannot; the rest comes back."""
        self._within = within_guarantee
        self._barred.clear()
        self._unreserved.clear()
        dead: list[Ask] = []
        alive: list[Ask] = []
        for ask in asks:
            (dead if all(self._is_dead(ask, tier_id) for tier_id in ask.tiers) else alive).append(ask)
        lanes = Lanes(self.shares, self.standing, alive, self._is_dead)
        while (turn := lanes.pop()) is not None:
            ask, choice = turn
            if band and not self._may_use_band(ask):
                lanes.push(ask, len(ask.tiers))
            elif not self._try(ask, ask.tiers[choice], band):
                if not self._is_alive_on(ask, ask.tiers[choice + 1 :]):
                    self._reserve(ask)
                lanes.push(ask, choice + 1)
        return sorted([*dead, *lanes.unserved], key=lambda ask: ask.id)

    def _is_dead(self, ask: Ask, tier_id: str) -> bool:
        """Whether a turn would change nothing: it can neither start there now nor get a reservation."""
        shape_no = ask.shape_no
        if (ask.request.team_id, tier_id, ask.units_on(tier_id), ask.bound) in self._barred:
            return True
        if (tier_id, shape_no) in self._hopeless or (tier_id, shape_no, ask.hold_us) in self._held_back:
            return self._is_unreserved(ask)
        return False

    def _is_unreserved(self, ask: Ask) -> bool:
        """Whether it gets no reservation, or none any more. A promise is kept whatever the number."""
        full = len(self.timeline.held) >= self.policy.reservations
        if full and (ask.request.promised_us is None or not self.policy.reservations):
            return True
        return ask.id in self.timeline.held or self._like(ask) in self._unreserved

    def _like(self, ask: Ask) -> tuple[str, tuple[str, ...], int, int, bool]:
        return (ask.request.team_id, ask.tiers, ask.shape_no, ask.hold_us, ask.bound)

    def _is_alive_on(self, ask: Ask, tiers: Iterable[str]) -> bool:
        return any(
            (tier_id, ask.shape_no) not in self._hopeless
            and (tier_id, ask.shape_no, ask.hold_us) not in self._held_back
            and not self._out(ask, tier_id)
            and self.timeline.fits_now(tier_id, ask.shape, ask.hold_us)
            for tier_id in tiers
        )

    def _out(self, ask: Ask, tier_id: str, *, ahead: bool = False) -> bool:
        """Whether quotas keep it out at this turn; `ahead` counts reserved starts."""
        team_id, units = ask.request.team_id, ask.units_on(tier_id)
        if self._within and not self.shares.within_guarantee(team_id, tier_id, units, ahead=ahead):
            return True
        return bool(self.shares.hits(team_id, tier_id, units, bound=ask.bound, ahead=ahead))

    def _try(self, ask: Ask, tier_id: str, band: int) -> bool:
        team_id, units = ask.request.team_id, ask.units_on(tier_id)
        if self._out(ask, tier_id):
            self._barred.add((team_id, tier_id, units, ask.bound))
            return False
        placed = self._place(ask, tier_id)
        if placed is not None:
            is_within = self.shares.within_guarantee(team_id, tier_id, units)
            self._start(ask, tier_id, placed, borrowed=not is_within, band=band)
        return placed is not None

    def _place(self, ask: Ask, tier_id: str) -> Placed | None:
        key, tier = (tier_id, ask.shape_no), self.fleet.tiers[tier_id]
        if key in self._hopeless or (*key, ask.hold_us) in self._held_back:
            return None
        if not self.fleet.fits_now(tier, ask.shape):
            self._hopeless.add(key)
            return None
        room = self.timeline.room(tier_id, ask.shape, ask.hold_us, self.timeline.held.get(ask.id))
        placed = self.fleet.place(tier, ask.shape, room)
        if placed is None:
            self._held_back.add((*key, ask.hold_us))
        return placed

    def _reserve(self, ask: Ask) -> None:
        """Its first possible start on any of its tiers, for the first `policy.reservations` of the line."""
        if self._is_unreserved(ask):
            return
        found = [
            (start_us, choice)
            for choice, tier_id in enumerate(ask.tiers)
            if not self._is_never(ask, tier_id)
            and not self._out(ask, tier_id, ahead=True)
            and (start_us := self.timeline.earliest(tier_id, ask)) is not None
        ]
        if not found:
            self._unreserved.add(self._like(ask))
            return
        start_us, choice = min(found)
        tier_id = ask.tiers[choice]
        self.timeline.reserve(tier_id, ask, start_us)
        self.shares.plan_ahead(ask.request.team_id, tier_id, ask.units_on(tier_id))

    def _start(self, ask: Ask, tier_id: str, placed: Placed, *, borrowed: bool, band: int = 0) -> None:
        request, team_id = ask.request, ask.request.team_id
        held = self.timeline.held.get(ask.id)
        if held is not None:  # it starts on another tier, by another right
            self.timeline.cancel(ask.id)
            self.shares.plan_ahead(team_id, held.tier_id, -ask.units_on(held.tier_id))
        why_now = {
            "rule": "band" if band else "borrowed" if borrowed else "guaranteed",
            "rank": len(self.starts) + 1,
            "team_id": team_id,
            "guarantor_id": self.shares.guarantor(team_id, tier_id),
            "used_before": self.shares.share_used(team_id, tier_id),
            "guaranteed": self.shares.share(team_id, tier_id),
            "fair_share": self.standing.allowed(team_id, tier_id),
            "asked": _units(placed.replicas),
            "priority": request.priority,
            "waited_us": max(0, self.now_us - request.queued_us),
            "reserved_before": len(self.timeline.held),
        }
        why_here = {
            "tier_id": tier_id,
            "tier_name": self.names[tier_id],
            "tier_choice": ask.tiers.index(tier_id) + 1,
            "tier_choices": len(ask.tiers),
            "by_value": request.by_value,
        }
        self._book(ask, placed.replicas)
        self._bands.book(team_id, band, _units(placed.replicas))
        self.starts.append(_Start(ask, tier_id, borrowed, placed, why_now, why_here))

    def _book(self, ask: Ask, replicas: Sequence[ReplicaPlacement]) -> None:
        request = ask.request
        for tier_id in dict.fromkeys(replica.tier_id for replica in replicas):
            units = _units(replica for replica in replicas if replica.tier_id == tier_id)
            self.shares.book(request.team_id, tier_id, units, preemptible=not ask.bound)
        self.timeline.start(ask, tuple(replicas))

    def mix(self, asks: list[Ask]) -> list[Ask]:
        """Gangs that accept it and that no single tier holds start over several tiers."""
        in_order = sorted(asks, key=lambda ask: ask.order)
        return [ask for ask in in_order if not (ask.request.mix_tiers and self._try_mixed(ask))]

    def _try_mixed(self, ask: Ask) -> bool:
        request = ask.request
        tiers = [
            (
                self.fleet.tiers[tier_id],
                self._most_replicas(ask, tier_id),
                self._unreserved_nodes(ask, tier_id),
            )
            for tier_id in ask.tiers
        ]
        total = self.shares.total_room(request.team_id)
        if total is not None and total < ask.most_units:
            return False
        placed = self.fleet.place_mixed(tiers, ask.shape)
        if placed is None:
            return False
        within = all(
            self.shares.within_guarantee(
                request.team_id, t, _units(replica for replica in placed.replicas if replica.tier_id == t)
            )
            for t in {replica.tier_id for replica in placed.replicas}
        )
        self._start(ask, placed.replicas[0].tier_id, placed, borrowed=not within)
        return True

    def _most_replicas(self, ask: Ask, tier_id: str) -> int:
        """How many of its replicas the quotas allow on this tier."""
        team_id, each = ask.request.team_id, self.fleet.tiers[tier_id].units_each(ask.shape)
        rooms = [self.shares.limit_room(team_id, tier_id)]
        inside = self.shares.share(team_id, tier_id) - self.shares.share_used(team_id, tier_id)
        lent = self.shares.lend_room(tier_id)
        if ask.bound:
            rooms.append(inside)
        elif lent is not None:
            rooms.append(max(lent, inside) if inside >= ask.units_on(tier_id) else lent)
        return min((max(0, room) // each for room in rooms if room is not None), default=ask.shape.replicas)

    def _unreserved_nodes(self, ask: Ask, tier_id: str) -> Ints | None:
        """Nodes on which nothing is reserved: on one of several tiers, a count for each tier would not be safe."""
        room = self.timeline.room(tier_id, ask.shape, ask.hold_us)
        return None if room is None else room * self.timeline.tier(tier_id).unreserved_nodes()

    def grow(self, waiting: Iterable[Ask]) -> None:
        """More than `replicas_min`, but only of tiers that nobody waits for."""
        wanted = {tier_id for ask in waiting for tier_id in ask.tiers}
        for start in self.starts:
            request = start.ask.request
            extra = request.replicas_max - request.replicas_min
            if extra > 0 and start.tier_id not in wanted:
                self._grow(start, extra)

    def _grow(self, start: _Start, extra: int) -> None:
        ask, tier = start.ask, self.fleet.tiers[start.tier_id]
        request, each = ask.request, tier.units_each(ask.shape)
        rooms = [self.shares.limit_room(request.team_id, start.tier_id)]
        if start.borrowed:
            rooms.append(self.shares.lend_room(start.tier_id))
        else:  # growing must not turn a guaranteed start into a borrowed one
            share = self.shares.share(request.team_id, start.tier_id)
            rooms.append(share - self.shares.share_used(request.team_id, start.tier_id))
        by_quota = min((max(0, room) // each for room in rooms if room is not None), default=extra)
        fit = self.fleet.fit_per_node(tier, ask.shape)
        room = self.timeline.room(start.tier_id, ask.shape, ask.hold_us)
        fit = fit if room is None else fit.clip(max=room)
        near = self.fleet.beside(tier, ask.shape, start.placed.replicas)
        fit = fit if near is None else fit * near
        count = min(extra, by_quota, int(fit.sum()))
        more = self.fleet.place(tier, ask.shape.with_replicas(count), fit) if count > 0 else None
        if more is not None:
            added = renumbered(more.replicas, len(start.placed.replicas))
            self._book(ask, added)
            start.placed = Placed((*start.placed.replicas, *added), start.placed.why)
            start.why_now["asked"] += count * each

    def verdicts(self, asks: Iterable[Ask]) -> tuple[Verdict, ...]:
        """Judged by the state at the end of the pass."""
        live = [*self.snapshot.live, *(held for start in self.starts for held in start.live(self.now_us))]
        self.shares.forget_plans()
        waiting = list(asks)
        for ask in waiting:
            if ask.band and not self._may_use_band(ask):
                ask.band = 0
        explainer = Explainer(
            self.fleet, self.shares, self.timeline, self.snapshot.tiers, live, self.policy.eta_shapes
        )
        return explainer.verdicts(waiting, Line(self.shares, self.standing))


def _units(replicas: Iterable[ReplicaPlacement]) -> int:
    return sum(len(replica.gpu_ids) * replica.units_per_gpu for replica in replicas)
