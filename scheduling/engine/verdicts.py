"""What each waiting request is told: all that blocks it, what would help, and when it may start."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scheduling.engine import decisions as codes
from scheduling.engine.backfill import Timeline
from scheduling.engine.blockers import Diagnosis, quota_blockers, reservation_blocker
from scheduling.engine.decisions import Blocker, Verdict
from scheduling.engine.fairshare import QuotaTree
from scheduling.engine.gates import gate
from scheduling.engine.order import Ask, Line
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
        arrays: Mapping[str, int] | None = None,
    ) -> None:
        """`arrays`: how many members of each hold something at the end of the pass."""
        self._arrays = arrays or {}
        self._fleet, self._shares, self._timeline = fleet, shares, timeline
        self._promised = _promises(timeline)
        self._diagnosis = Diagnosis(fleet, shares, live)
        self._changes = Changes(fleet, shares, timeline, tiers)
        self._etas = Etas(timeline, shares, live, eta_shapes)
        self._answers: dict[tuple[Any, ...], Verdict] = {}

    def verdicts(self, asks: Iterable[Ask], line: Line) -> tuple[Verdict, ...]:
        """Tier by tier in the order of the line of those who named it first."""
        by_first: dict[str, list[Ask]] = {}
        for ask in asks:
            by_first.setdefault(next(iter(ask.request.tiers), ""), []).append(ask)
        return tuple(
            self.verdict(ask, position)
            for tier_id in sorted(by_first)
            for position, ask in enumerate(line.of(tier_id, by_first[tier_id]), 1)
        )

    def verdict(self, ask: Ask, position: int) -> Verdict:
        request = ask.request
        gates = gate(request, self._timeline.now_us, self._arrays)
        key = (
            request.team_id,
            ask.shape_no,
            request.tiers,
            request.budget_blocker,
            ask.hold_us,
            ask.bound,
            ask.kind,
            relaxes_us(request) if _relaxes(ask) else None,
            str(gates),
        )
        if ask.id in self._timeline.held:
            found = self._work_out(ask, gates)
        else:
            if key not in self._answers:
                self._answers[key] = self._work_out(ask, gates)
            found = self._answers[key]
        return Verdict(ask.id, found.blockers, found.smallest_change, found.eta_us, position, found.eta_basis)

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
            hits = self._shares.hits(
                request.team_id, tier_id, ask.units_on(tier_id), bound=ask.bound, kind=ask.kind
            )
            # A limit over all tiers is one cause, however many tiers the request names.
            found += [blocker for blocker in quota_blockers(request, hits) if blocker not in found]
            answer = self._diagnosis.tier_answer(tier_id, ask.shape, request.team_id)
            found += [_with_patience(blocker, ask) for blocker in answer.blockers]
            if not answer.blockers:
                ways = self._timeline.in_the_way(tier_id, ask)
                company = self._shares.company(request.team_id)
                found += reservation_blocker(tier_id, company, ways, self._shares)
            never = never and answer.never
        return tuple(found), never
