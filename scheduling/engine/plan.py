"""One pass: admit, order, place, grow, explain. Same snapshot, policy and time: same plan, to the byte."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scheduling.engine import decisions as codes
from scheduling.engine.blockers import Diagnosis, quota_blockers
from scheduling.engine.decisions import (
    Blocker,
    Plan,
    Policy,
    ReplicaPlacement,
    Start,
    Verdict,
    plan_to_json,
)
from scheduling.engine.fairshare import QuotaTree
from scheduling.engine.order import Lanes, in_line, units_asked
from scheduling.engine.outlook import BASIS_TIME_LIMITS, Changes, Etas
from scheduling.engine.placement import Fleet, Placed, Shape, renumbered
from scheduling.engine.snapshot import UNITS_PER_GPU, Live, Request, Snapshot

__all__ = ["Blocker", "Plan", "Policy", "ReplicaPlacement", "Start", "Verdict", "plan", "plan_to_json"]


def plan(snapshot: Snapshot, policy: Policy, now_us: int) -> Plan:
    current = _Pass(snapshot, policy, now_us)
    known = set(current.fleet.tiers)
    asking = sorted(snapshot.requests, key=lambda request: request.workload_id)
    ready = [r for r in asking if r.budget_blocker is None and not known.isdisjoint(r.tiers)]
    waiting = current.serve(ready, within_guarantee=True)
    waiting = current.serve(waiting, within_guarantee=False)
    waiting = current.mix(waiting)
    started = {start.request.workload_id for start in current.starts}
    if policy.grow_gangs:
        current.grow(waiting)
    left = [request for request in asking if request.workload_id not in started]
    return Plan(starts=tuple(start.decided() for start in current.starts), verdicts=current.verdicts(left))


@dataclass(slots=True)
class _Start:
    """A start under way: growing may still add replicas."""

    request: Request
    tier_id: str
    borrowed: bool
    placed: Placed
    why_now: dict[str, Any]
    why_here: dict[str, Any]

    def decided(self) -> Start:
        nodes = dict.fromkeys(replica.node_id for replica in self.placed.replicas)
        why_here = self.why_here | {"nodes": list(nodes)} | self.placed.why
        return Start(
            self.request.workload_id,
            self.tier_id,
            self.borrowed,
            self.placed.replicas,
            self.why_now,
            why_here,
        )

    def live(self, now_us: int) -> list[Live]:
        """The start as what others see of it: somebody who holds GPUs."""
        request = self.request
        ends_us = None if request.time_limit_s is None else now_us + request.time_limit_s * 1_000_000
        return [
            Live(
                request.workload_id,
                request.team_id,
                replica.tier_id,
                len(replica.gpu_ids) * UNITS_PER_GPU,
                "held",
                replica.node_id,
                self.borrowed,
                now_us,
                ends_us,
                replica.cpu_m,
                replica.memory_mib,
            )
            for replica in self.placed.replicas
        ]


class _Pass:
    def __init__(self, snapshot: Snapshot, policy: Policy, now_us: int) -> None:
        self.snapshot, self.policy, self.now_us = snapshot, policy, now_us
        self.fleet = Fleet(snapshot)
        self.shares = QuotaTree(snapshot)
        self.names = {tier.id: tier.name for tier in snapshot.tiers}
        self.starts: list[_Start] = []
        # Room only shrinks during a pass: what did not fit once needs no second look, nor do its equals.
        self._hopeless: set[tuple[str, Shape]] = set()

    def serve(self, requests: Sequence[Request], *, within_guarantee: bool) -> list[Request]:
        """Start what can be started, in order; the rest comes back."""
        lanes = Lanes(self.shares, map(self._known_only, requests))
        originals = {r.workload_id: r for r in requests}
        unserved = []
        while (turn := lanes.pop()) is not None:
            asking, choice = turn
            request = originals[asking.workload_id]
            if self._try(request, asking.tiers[choice], within_guarantee):
                continue
            if choice + 1 < len(asking.tiers):
                lanes.push(asking, choice + 1)
            else:
                unserved.append(request)
        return unserved

    def _known_only(self, request: Request) -> Request:
        known = self._known_tiers(request)
        return request if known == request.tiers else replace(request, tiers=known)

    def _known_tiers(self, request: Request) -> tuple[str, ...]:
        return tuple(dict.fromkeys(tier_id for tier_id in request.tiers if tier_id in self.fleet.tiers))

    def _try(self, request: Request, tier_id: str, within_guarantee: bool) -> bool:
        team_id, units, shape = request.team_id, units_asked(request), Shape.of(request)
        is_within = self.shares.within_guarantee(team_id, tier_id, units)
        if within_guarantee and not is_within:
            return False
        if (tier_id, shape) in self._hopeless or self.shares.limit_hits(team_id, tier_id, units):
            return False
        placed = self.fleet.place(self.fleet.tiers[tier_id], shape, self.policy)
        if placed is None:
            self._hopeless.add((tier_id, shape))
            return False
        self._start(request, tier_id, placed, borrowed=not is_within)
        return True

    def _start(self, request: Request, tier_id: str, placed: Placed, *, borrowed: bool) -> None:
        team_id = request.team_id
        why_now = {
            "rule": "borrowed" if borrowed else "guaranteed",
            "rank": len(self.starts) + 1,
            "team_id": team_id,
            "guarantor_id": self.shares.guarantor(team_id, tier_id),
            "used_before": self.shares.share_used(team_id, tier_id),
            "guaranteed": self.shares.share(team_id, tier_id),
            "asked": len(placed.replicas) * request.gpus_per_replica * UNITS_PER_GPU,
            "priority": request.priority,
            "waited_us": max(0, self.now_us - request.queued_us),
        }
        why_here = {
            "tier_id": tier_id,
            "tier_name": self.names[tier_id],
            "tier_choice": request.tiers.index(tier_id) + 1,
            "tier_choices": len(request.tiers),
        }
        self._book(request, placed.replicas)
        self.starts.append(_Start(request, tier_id, borrowed, placed, why_now, why_here))

    def _book(self, request: Request, replicas: Iterable[ReplicaPlacement]) -> None:
        for tier_id, count in Counter(replica.tier_id for replica in replicas).items():
            self.shares.book(request.team_id, tier_id, count * request.gpus_per_replica * UNITS_PER_GPU)

    def mix(self, requests: list[Request]) -> list[Request]:
        """Gangs that accept it and that no single tier holds start over several tiers."""
        return [request for request in requests if not (request.mix_tiers and self._try_mixed(request))]

    def _try_mixed(self, request: Request) -> bool:
        each = request.gpus_per_replica * UNITS_PER_GPU
        tiers = []
        for tier_id in self._known_tiers(request):
            room = self.shares.limit_room(request.team_id, tier_id)
            at_most = request.replicas_min if room is None else max(0, room) // each
            tiers.append((self.fleet.tiers[tier_id], at_most))
        total = self.shares.total_room(request.team_id)
        if total is not None and total < units_asked(request):
            return False
        placed = self.fleet.place_mixed(tiers, Shape.of(request), self.policy)
        if placed is None:
            return False
        counts = Counter(replica.tier_id for replica in placed.replicas)
        within = all(self.shares.within_guarantee(request.team_id, t, n * each) for t, n in counts.items())
        self._start(request, placed.replicas[0].tier_id, placed, borrowed=not within)
        return True

    def grow(self, waiting: Iterable[Request]) -> None:
        """More than `replicas_min`, but only of tiers that nobody waits for."""
        wanted = {tier_id for request in waiting for tier_id in request.tiers}
        for start in self.starts:
            extra = start.request.replicas_max - start.request.replicas_min
            if extra > 0 and start.tier_id not in wanted:
                self._grow(start, extra)

    def _grow(self, start: _Start, extra: int) -> None:
        request, tier = start.request, self.fleet.tiers[start.tier_id]
        each = request.gpus_per_replica * UNITS_PER_GPU
        rooms = [self.shares.limit_room(request.team_id, start.tier_id)]
        if not start.borrowed:  # growing must not turn a guaranteed start into a borrowed one
            share = self.shares.share(request.team_id, start.tier_id)
            rooms.append(share - self.shares.share_used(request.team_id, start.tier_id))
        by_quota = min((max(0, room) // each for room in rooms if room is not None), default=extra)
        shape = Shape.of(request)
        count = min(extra, by_quota, int(self.fleet.fit_per_node(tier, shape).sum()))
        more = self.fleet.place(tier, shape.with_replicas(count), self.policy) if count > 0 else None
        if more is not None:
            added = renumbered(more.replicas, len(start.placed.replicas))
            self._book(request, added)
            start.placed = Placed((*start.placed.replicas, *added), start.placed.why)
            start.why_now["asked"] += count * each

    def verdicts(self, requests: Iterable[Request]) -> tuple[Verdict, ...]:
        """Judged by the state at the end of the pass, in the order of the line; equals share the work."""
        live = [*self.snapshot.live, *(held for start in self.starts for held in start.live(self.now_us))]
        explainer = _Explainer(self, live)
        positions: Counter[str] = Counter()
        found = []
        for request in in_line(self.shares, requests):
            first = request.tiers[0] if request.tiers else ""
            positions[first] += 1
            found.append(explainer.verdict(request, positions[first]))
        return tuple(found)


class _Explainer:
    def __init__(self, current: _Pass, live: list[Live]) -> None:
        self._fleet, self._shares = current.fleet, current.shares
        self._diagnosis = Diagnosis(current.fleet, current.shares, live)
        self._changes = Changes(current.fleet, current.shares, current.snapshot.tiers)
        self._etas = Etas(current.fleet, current.shares, live, current.now_us, current.policy.eta_shapes)
        self._answers: dict[tuple[Any, ...], Verdict] = {}

    def verdict(self, request: Request, position: int) -> Verdict:
        key = (request.team_id, Shape.of(request), request.tiers, request.budget_blocker)
        if key not in self._answers:
            self._answers[key] = self._work_out(request)
        return replace(self._answers[key], workload_id=request.workload_id, position=position)

    def _work_out(self, request: Request) -> Verdict:
        blockers, never = self._blockers(request)
        eta_us = self._etas.earliest(request, blockers)
        change = self._changes.smallest(request, blockers, never)
        return Verdict(
            request.workload_id, blockers, change, eta_us, 0, None if eta_us is None else BASIS_TIME_LIMITS
        )

    def _blockers(self, request: Request) -> tuple[tuple[Blocker, ...], bool]:
        """(all blockers, whether no tier named can ever hold the request)."""
        found: list[Blocker] = []
        if request.budget_blocker is not None:
            found.append(Blocker(codes.BUDGET, {"reason": request.budget_blocker}))
        if not request.tiers:
            found.append(Blocker(codes.TIER_UNKNOWN, {"tier_id": None}))
        never = bool(request.tiers)
        for tier_id in dict.fromkeys(request.tiers):
            if tier_id not in self._fleet.tiers:
                found.append(Blocker(codes.TIER_UNKNOWN, {"tier_id": tier_id}))
                continue
            hits = self._shares.limit_hits(request.team_id, tier_id, units_asked(request))
            # A limit over all tiers is one cause, however many tiers the request names.
            found += [blocker for blocker in quota_blockers(request, hits) if blocker not in found]
            answer = self._diagnosis.tier_answer(tier_id, Shape.of(request), request.team_id)
            found += answer.blockers
            never = never and answer.never
        return tuple(found), never
