"""What each waiting request is told: all that blocks it, what would help, and when it may start."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from scheduling.engine import decisions as codes
from scheduling.engine.backfill import Timeline
from scheduling.engine.blockers import Diagnosis, quota_blockers, reservation_blocker
from scheduling.engine.decisions import Blocker, Verdict
from scheduling.engine.endings import run_on
from scheduling.engine.fairshare import LimitHit, QuotaTree
from scheduling.engine.gates import Gates
from scheduling.engine.order import FOREVER_US, Ask, Line
from scheduling.engine.outlook import Changes, Etas
from scheduling.engine.placement import Fleet
from scheduling.engine.snapshot import Live, Tier
from scheduling.engine.topology import relaxes_us


def _promises(timeline: Timeline) -> set[str]:
    """One for each team and tier: that promised before, else the largest, so that size never makes it slip."""
    best: dict[tuple[str, str], Ask] = {}
    for held in timeline.held.values():
        key = (held.ask.request.team_id, held.tier_id)
        best[key] = max(best.get(key, held.ask), held.ask, key=_promise_rank)
    return {ask.id for ask in best.values()}


def _promise_rank(ask: Ask) -> tuple[bool, int]:
    return (ask.request.promised_us is not None, ask.most_units)


def _awaited_first(rows: Sequence[tuple[Ask, int]]) -> Iterator[tuple[Ask, int]]:
    """Those first who wait for nobody here, then those who wait for them, and so on; each with its position."""
    waiting = {ask.id for ask, _ in rows}
    missing: dict[str, int] = {}
    followers: dict[str, list[tuple[Ask, int]]] = {}
    ready: deque[tuple[Ask, int]] = deque()
    for row in rows:
        before = waiting.intersection(row[0].request.depends_on)
        missing[row[0].id] = len(before)
        for workload_id in before:
            followers.setdefault(workload_id, []).append(row)
        if not before:
            ready.append(row)
    while ready:
        row = ready.popleft()
        yield row
        for follower in followers.get(row[0].id, ()):
            missing[follower[0].id] -= 1
            if not missing[follower[0].id]:
                ready.append(follower)
    yield from (row for row in rows if missing[row[0].id])  # a circle: none of them can be awaited


def _relaxes(ask: Ask) -> bool:
    """Whether it insists on a level that it only prefers."""
    return ask.shape.required_level != ask.request.required_level


def _with_patience(blocker: Blocker, ask: Ask) -> Blocker:
    if blocker.code != codes.TOPOLOGY or not _relaxes(ask):
        return blocker
    return Blocker(blocker.code, {**blocker.data, "relaxes_us": relaxes_us(ask.request)})


class Explainer:
    """Judges by the state at the end of the pass; equals share the work."""

    def __init__(
        self,
        fleet: Fleet,
        shares: QuotaTree,
        timeline: Timeline,
        tiers: tuple[Tier, ...],
        live: list[Live],
        eta_shapes: int,
        gates: Gates,
    ) -> None:
        self._gates = gates
        self._fleet, self._shares, self._timeline = fleet, shares, timeline
        self._promised = _promises(timeline)
        self._diagnosis = Diagnosis(fleet, shares, live)
        self._changes = Changes(fleet, shares, timeline, tiers)
        self._etas = Etas(timeline, shares, gates, live, eta_shapes)
        self._answers: dict[tuple[Any, ...], Verdict] = {}

    def verdicts(self, asks: Iterable[Ask], line: Line) -> tuple[Verdict, ...]:
        """Tier by tier in the order of the line of those who named it first."""
        found: dict[str, Verdict] = {}
        by_first: dict[str, list[Ask]] = {}
        for ask in asks:
            by_first.setdefault(next(iter(ask.request.tiers), ""), []).append(ask)
        rows = [
            (ask, position)
            for tier_id in sorted(by_first)
            for position, ask in enumerate(line.of(tier_id, by_first[tier_id]), 1)
        ]
        awaited = {workload_id for ask, _ in rows for workload_id in ask.request.depends_on}
        self._etas.waiting = {ask.id: None for ask, _ in rows if ask.id in awaited}
        for ask, position in _awaited_first(rows) if awaited else rows:
            found[ask.id] = self.verdict(ask, position)
            if ask.id in awaited:
                self._etas.waiting[ask.id] = self._will_end(ask, found[ask.id])
        return tuple(found[ask.id] for ask, _ in rows)

    def _will_end(self, ask: Ask, verdict: Verdict) -> tuple[int, str] | None:
        """(when, what that rests on) for what waits itself: its estimated start, and its run on the slowest tier."""
        run_us = max((run_on(self._fleet, tier_id, ask) for tier_id in ask.tiers), default=FOREVER_US)
        if verdict.eta_us is None or run_us >= FOREVER_US:
            return None
        is_estimate = verdict.eta_basis == codes.BASIS_CLASS_DEFAULTS or ask.request.time_limit_s is None
        basis = codes.BASIS_CLASS_DEFAULTS if is_estimate else codes.BASIS_TIME_LIMITS
        return verdict.eta_us + run_us, basis

    def verdict(self, ask: Ask, position: int) -> Verdict:
        gates = self._gates.blockers(ask)
        is_reserved = ask.id in self._timeline.held
        found = self._work_out(ask, gates) if is_reserved else self._shared_answer(ask, gates)
        return Verdict(ask.id, found.blockers, found.smallest_change, found.eta_us, position, found.eta_basis)

    def _shared_answer(self, ask: Ask, gates: Sequence[Blocker]) -> Verdict:
        """Equals of one company share it where neither gates nor quotas had a say; else those of one team."""
        request = ask.request
        key = (
            ask.shape_no,
            request.tiers,
            request.budget_blocker,
            ask.hold_us,
            ask.bound,
            ask.kind,
            relaxes_us(request) if _relaxes(ask) else None,
            (str(gates), request.depends_on, request.owner_id) if gates else None,
        )
        for_all, for_team = (self._shares.company(request.team_id), "", key), ("", request.team_id, key)
        found = self._answers.get(for_team)
        if found is not None:
            return found
        is_own = bool(gates) or any(self._hits(ask, tier_id) for tier_id in ask.tiers)
        found = None if is_own else self._answers.get(for_all)
        if found is None:
            self._changes.has_asked_quotas = False
            found = self._work_out(ask, gates)
            self._answers[for_team if is_own or self._changes.has_asked_quotas else for_all] = found
        return found

    def _hits(self, ask: Ask, tier_id: str) -> tuple[LimitHit, ...]:
        team_id, units = ask.request.team_id, ask.units_on(tier_id)
        return self._shares.hits(team_id, tier_id, units, bound=ask.bound, kind=ask.kind)

    def _work_out(self, ask: Ask, gates: Sequence[Blocker]) -> Verdict:
        blockers, never = self._blockers(ask)
        blockers = (*gates, *blockers)
        change = self._changes.smallest(ask, blockers, never)
        held = self._timeline.held.get(ask.id)
        if held is not None:
            basis = codes.BASIS_PROMISE if ask.id in self._promised else codes.BASIS_RESERVATION
            return Verdict(ask.id, blockers, change, held.start_us, 0, basis)
        eta = self._etas.earliest(ask, blockers)
        return Verdict(ask.id, blockers, change, eta and eta[0], 0, eta and eta[1])

    def _blockers(self, ask: Ask) -> tuple[tuple[Blocker, ...], bool]:
        """(all blockers, whether no tier named can ever hold the request)."""
        found: list[Blocker] = []
        request = ask.request
        if request.budget_blocker is not None:
            found.append(Blocker(codes.BUDGET, {"reason": request.budget_blocker}))
        if not request.tiers:
            found.append(Blocker(codes.TIER_UNKNOWN, {"tier_id": None}))
        never = bool(request.tiers)
        for tier_id in dict.fromkeys(request.tiers):
            if tier_id not in self._fleet.tiers:
                found.append(Blocker(codes.TIER_UNKNOWN, {"tier_id": tier_id}))
                continue
            # A limit over all tiers is one cause, however many tiers the request names.
            limits = quota_blockers(request, self._hits(ask, tier_id))
            found += [blocker for blocker in limits if blocker not in found]
            answer = self._diagnosis.tier_answer(tier_id, ask.shape, request.team_id)
            found += [_with_patience(blocker, ask) for blocker in answer.blockers]
            if not answer.blockers:
                ways = self._timeline.in_the_way(tier_id, ask)
                company = self._shares.company(request.team_id)
                found += reservation_blocker(tier_id, company, ways, self._shares)
            never = never and answer.never
        return tuple(found), never
