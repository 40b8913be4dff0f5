"""Serving those who wait, in order: start what can be started, reserve for the first that cannot."""

from collections import Counter
from collections.abc import Iterable, Sequence

from scheduling.engine.backfill import Timeline
from scheduling.engine.blockers import clip
from scheduling.engine.claims import settled
from scheduling.engine.decisions import Policy, ReplicaPlacement
from scheduling.engine.fairshare import Bands, QuotaTree
from scheduling.engine.gates import Gates
from scheduling.engine.order import Ask, Asks, Lanes
from scheduling.engine.placement import Fleet, Placed
from scheduling.engine.placings import Placing, units_of
from scheduling.engine.snapshot import Live, Snapshot
from scheduling.engine.standing import Standing


class Pass:
    """The state of one pass: what is free, who uses what, what has been decided."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now_us: int) -> None:
        self.snapshot, self.policy, self.now_us = snapshot, policy, now_us
        self.fleet = Fleet(snapshot, policy)
        self.shares = QuotaTree(snapshot, policy)
        self.names = {tier.id: tier.name for tier in snapshot.tiers}
        self.starts: list[Placing] = []
        self.asks_of = Asks(snapshot, policy, now_us, self.fleet)
        self.asks = self.asks_of.all
        self._never: dict[tuple[str, int], bool] = {}
        self.gates = Gates(snapshot, policy, now_us)
        self.ready = [ask for ask in self.asks if self._is_ready(ask)]
        self.standing = Standing(self.shares, self._wanted(self.ready), snapshot.usage, policy)
        self.live = list(snapshot.live)  # with what claims and stops of this pass have changed
        self.timeline = Timeline(self.fleet, settled(self.live), policy, now_us)
        self.bands = Bands(self.shares, snapshot)
        # Room only shrinks during a pass: what did not fit once needs no second look, nor do its equals.
        self._hopeless: set[tuple[str, int]] = set()
        self._held_back: set[tuple[str, int, int]] = set()  # by reservations, for so long a hold
        self._barred: set[tuple[str, str, int, bool, str]] = set()  # by quotas
        self._unreserved: set[tuple[str, tuple[str, ...], int, int, bool]] = set()
        self._within, self._band = False, 0

    def _is_ready(self, ask: Ask) -> bool:
        return ask.request.budget_blocker is None and not self.gates.blockers(ask) and self._could_ever(ask)

    def _could_ever(self, ask: Ask) -> bool:
        """Whether empty machines of some named tier (or of several) would hold it; equal shapes share the answer."""
        if ask.request.mix_tiers and ask.tiers:
            return True
        return not all(self.is_never(ask, tier_id) for tier_id in ask.tiers)

    def is_never(self, ask: Ask, tier_id: str) -> bool:
        key = (tier_id, ask.shape_no)
        if key not in self._never:
            tier = self.fleet.tiers[tier_id]
            self._never[key] = not tier.nodes.size or bool(clip(self.fleet, tier, ask.shape)[1])
        return self._never[key]

    def _wanted(self, asks: Iterable[Ask]) -> dict[tuple[str, str], int]:
        wanted: Counter[tuple[str, str]] = Counter()
        for ask in asks:
            for tier_id in ask.tiers:
                if not self.is_never(ask, tier_id):
                    wanted[ask.request.team_id, tier_id] += ask.units_on(tier_id)
        return wanted

    def may_use_band(self, ask: Ask) -> bool:
        return self.bands.allowed(ask.request.team_id, ask.request.band, ask.most_units)

    def serve(self, asks: Iterable[Ask], *, within_guarantee: bool, band: int = 0) -> list[Ask]:
        """Start what can be started, in order, and reserve for the first that cannot; the rest comes back."""
        self._within, self._band = within_guarantee, band
        self._barred.clear()
        self._unreserved.clear()
        asks = list(asks)
        if within_guarantee and not self._is_any_within(asks):
            return sorted(asks, key=lambda ask: ask.id)  # no turn would change anything
        dead: list[Ask] = []
        alive: list[Ask] = []
        for ask in asks:
            (dead if all(self._is_dead(ask, tier_id) for tier_id in ask.tiers) else alive).append(ask)
        lanes = Lanes(self.shares, self.standing, alive, self._is_dead)
        while (turn := lanes.pop()) is not None:
            ask, choice = turn
            if band and not self.may_use_band(ask):
                lanes.push(ask, len(ask.tiers))
            elif not self._try(ask, ask.tiers[choice], band):
                if not self.is_unreserved(ask) and not self._is_alive_on(ask, ask.tiers[choice + 1 :]):
                    self.reserve(ask)
                lanes.push(ask, choice + 1)
        return sorted([*dead, *lanes.unserved], key=lambda ask: ask.id)

    def _is_any_within(self, asks: Iterable[Ask]) -> bool:
        claims = {(ask.request.team_id, *claim) for ask in asks for claim in ask.units.items()}
        return any(self.shares.within_guarantee(*claim) for claim in claims)

    def _is_dead(self, ask: Ask, tier_id: str) -> bool:
        """Whether a turn would change nothing: it can neither start there now nor get a reservation."""
        request, shape_no = ask.request, ask.shape_no
        if self.gates.is_capped(ask, tier_id):
            return True
        if (
            self._barred
            and (request.team_id, tier_id, ask.units[tier_id], ask.bound, request.kind) in self._barred
        ):
            return True
        if (tier_id, shape_no) in self._hopeless or (tier_id, shape_no, ask.hold_us) in self._held_back:
            return self.is_unreserved(ask)
        return False

    def is_unreserved(self, ask: Ask) -> bool:
        """Whether it gets no reservation, or none any more. A promise is kept whatever the number."""
        if self.gates.is_capped(ask):
            return True
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

    def is_barred(self, ask: Ask, tier_id: str) -> bool:
        """Whether quotas keep it out whatever the turn."""
        units = ask.units_on(tier_id)
        return bool(self.shares.hits(ask.request.team_id, tier_id, units, bound=ask.bound, kind=ask.kind))

    def _out(self, ask: Ask, tier_id: str, *, ahead: bool = False) -> bool:
        """Whether quotas keep it out at this turn; `ahead` counts reserved starts."""
        team_id, units = ask.request.team_id, ask.units_on(tier_id)
        if self._within and not self.shares.within_guarantee(team_id, tier_id, units, ahead=ahead):
            return True
        kind = "" if self._band else ask.request.kind
        return bool(self.shares.hits(team_id, tier_id, units, bound=ask.bound, ahead=ahead, kind=kind))

    def _try(self, ask: Ask, tier_id: str, band: int) -> bool:
        team_id, units = ask.request.team_id, ask.units_on(tier_id)
        if self.gates.is_capped(ask, tier_id):
            return False
        if self._out(ask, tier_id):
            self._barred.add((team_id, tier_id, units, ask.bound, ask.request.kind))
            return False
        placed = self._place(ask, tier_id)
        if placed is not None:
            is_within = self.shares.within_guarantee(team_id, tier_id, units)
            self.start(ask, tier_id, placed, borrowed=not is_within, band=band)
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

    def reserve(self, ask: Ask) -> None:
        """Its first possible start on any of its tiers, for the first `policy.reservations` of the line."""
        if self.is_unreserved(ask):
            return
        found = [
            (start_us, choice)
            for choice, tier_id in enumerate(ask.tiers)
            if not self.is_never(ask, tier_id)
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

    def cancel_reservation(self, ask: Ask) -> bool:
        held = self.timeline.held.get(ask.id)
        if held is not None:
            self.timeline.cancel(ask.id)
            self.shares.plan_ahead(ask.request.team_id, held.tier_id, -ask.units_on(held.tier_id))
        return held is not None

    def start(self, ask: Ask, tier_id: str, placed: Placed, *, borrowed: bool, band: int = 0) -> None:
        self.decide(ask, tier_id, placed, borrowed=borrowed, band=band)
        self.timeline.start(ask, placed.replicas)

    def decide(self, ask: Ask, tier_id: str, placed: Placed, *, borrowed: bool, band: int = 0) -> Placing:
        """Write down and book a start or claim; the machines have been taken, the timeline is not told."""
        request, team_id = ask.request, ask.request.team_id
        self.cancel_reservation(ask)  # it starts on another tier, by another right
        why_now = {
            "rule": "band" if band else "borrowed" if borrowed else "guaranteed",
            "rank": len(self.starts) + 1,
            "team_id": team_id,
            "guarantor_id": self.shares.guarantor(team_id, tier_id),
            "used_before": self.shares.share_used(team_id, tier_id),
            "guaranteed": self.shares.share(team_id, tier_id),
            "fair_share": self.standing.allowed(team_id, tier_id),
            "asked": units_of(placed.replicas),
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
        self.book(ask, placed.replicas)
        self.bands.book(team_id, band, units_of(placed.replicas))
        self.gates.join(request)
        self.starts.append(Placing(ask, tier_id, borrowed, placed, why_now, why_here, band))
        return self.starts[-1]

    def book(self, ask: Ask, replicas: Sequence[ReplicaPlacement], *, is_surplus: bool = False) -> None:
        self.gates.hold(ask.request, units_of(replicas))
        for tier_id in dict.fromkeys(replica.tier_id for replica in replicas):
            units = units_of(replica for replica in replicas if replica.tier_id == tier_id)
            team_id, kind = ask.request.team_id, ask.request.kind
            bound = ask.bound and not is_surplus
            self.shares.book(team_id, tier_id, units, preemptible=not bound, is_surplus=is_surplus, kind=kind)

    def renew_timeline(self, live: Sequence[Live], started: Iterable[Placing]) -> None:
        """What runs has changed: what was reserved stays so, and all starts are entered again."""
        old = self.timeline
        self.timeline = Timeline(self.fleet, live, self.policy, self.now_us)
        self.timeline.adopt(old)
        for placing in started:
            self.timeline.start(placing.ask, placing.placed.replicas)

    def clear_answers(self) -> None:
        """Room has grown, or quotas have: what did not fit may fit now."""
        for answers in (self._hopeless, self._held_back, self._barred, self._unreserved):
            answers.clear()
