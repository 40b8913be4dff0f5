"""What could be taken back, what that would lose, and who may be asked to leave for whom.

Lost work is GPU-seconds since the last checkpoint, or since the start without one, and what starting again costs.
A replica above the least of an elastic workload loses nothing: the others go on.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from scheduling.engine.decisions import Policy
from scheduling.engine.elastic import INFERENCE, Replica, surplus
from scheduling.engine.snapshot import UNITS_PER_GPU, Live, Request, Running, Snapshot

RETURN, FLOOR, BAND, SLACK = "return", "floor", "band", "slack"
CONSOLIDATE = "consolidate"

_TIE_BITS = 28  # for sums of up to 4,096 victims
_MOST_LOST = (1 << 34) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Victim:
    """What can leave by itself: a whole workload, or one replica above the least of an elastic one.

    `live` of a whole workload is without the replicas that could leave by themselves: they go with it.
    """

    workload_id: str
    team_id: str
    replica: int | None
    live: tuple[Live, ...]
    lost_gpu_s: int
    restart_gpu_s: int
    checkpoint_age_s: int | None
    kind: str
    band: int
    is_borrowed: bool
    is_claim: bool
    evictions: int
    units: int
    weight: int  # what the search adds up: lost work, then `tie`

    @property
    def is_surplus(self) -> bool:
        return self.replica is not None

    @property
    def lost(self) -> int:
        return self.lost_gpu_s + self.restart_gpu_s


class Victims:
    """Everything that may leave, by workload id; equal snapshots give equal lists. Made when first asked for."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now_us: int) -> None:
        self._policy, self._now_us = policy, now_us
        self._placed = {request.workload_id: request for request in snapshot.placed}
        self._running = {running.workload_id: running for running in snapshot.running}
        self._surplus = surplus(snapshot)
        self._growing = {workload_id for workload_id, _ in self._surplus}
        self._borrowed = {running.workload_id for running in snapshot.running if running.borrowed}
        priorities = sorted({request.priority for request in snapshot.placed})
        self._ranks = {priority: min(rank, 63) for rank, priority in enumerate(priorities)}
        self._evicted_of_team = {row.team_id: row.count for row in snapshot.evictions}
        self._gone: set[Replica | str] = set()
        self._rows: dict[str, list[Live]] = defaultdict(list)
        for live in snapshot.live:
            self._rows[live.workload_id].append(live)
        self._order = sorted(self._rows)
        self._known: dict[str, list[Victim]] = {}  # by workload

    def circles(self, rule: str, band: int = 0) -> list[list[Victim]]:
        """Who may be taken, one wider circle after another: each is asked only if the one before does not do.

        A guarantee never waits for a budget: what has been taken back often enough is only the last to be taken.
        A circle no wider than the one before would only answer the same again, and is left out.
        """
        widest = self._widest(rule, band)
        if rule not in (RETURN, FLOOR, BAND):
            return [widest]
        first = [v for v in widest if self.in_budget(v) and (rule != BAND or self._is_lent(v))]
        return [first, widest] if len(first) < len(widest) else [widest]

    def _widest(self, rule: str, band: int) -> list[Victim]:
        if rule == SLACK:
            return [v for v in self._left(self._growing) if v.is_surplus]
        if rule == BAND:
            return [v for v in self._left() if v.band < band and self.in_budget(v)]
        if rule == CONSOLIDATE:
            return [v for v in self._left() if not v.is_claim and not v.is_surplus and self.in_budget(v)]
        return [v for v in self._left(self._growing | self._borrowed) if self._is_lent(v)]

    def _left(self, among: set[str] | None = None) -> Iterator[Victim]:
        """Who has not been taken yet, in order; None: of all workloads."""
        for workload_id in self._order:
            if among is None or workload_id in among:
                yield from (victim for victim in self._of(workload_id) if not self.is_gone(victim))

    def in_budget(self, victim: Victim) -> bool:
        if victim.is_surplus or victim.is_claim:
            return True
        policy = self._policy
        often = 0 < policy.evictions_per_workload <= victim.evictions
        return not often and not (
            0 < policy.evictions_per_team <= self._evicted_of_team.get(victim.team_id, 0)
        )

    def all_in_budget(self, victims: Iterable[Victim]) -> bool:
        """Whether all of them may go together."""
        most, counts = self._policy.evictions_per_team, Counter(victim.team_id for victim in victims)
        return not most or all(
            self._evicted_of_team.get(team_id, 0) + count <= most for team_id, count in counts.items()
        )

    def is_gone(self, victim: Victim) -> bool:
        return victim.workload_id in self._gone or (victim.workload_id, victim.replica) in self._gone

    def take(self, victim: Victim) -> None:
        if victim.replica is not None:
            self._gone.add((victim.workload_id, victim.replica))
            return
        self._gone.add(victim.workload_id)
        team_id = victim.team_id
        self._evicted_of_team[team_id] = self._evicted_of_team.get(team_id, 0) + 1

    def with_their_surplus(self, victims: Iterable[Victim]) -> list[Victim]:
        """Each workload that leaves takes its replicas above the least along."""
        found: dict[int, Victim] = {}
        for victim in victims:
            together = [victim] if victim.is_surplus else self._of(victim.workload_id)
            found |= {id(other): other for other in together if not self.is_gone(other)}
        return list(found.values())

    @staticmethod
    def _is_lent(victim: Victim) -> bool:
        return (victim.is_surplus or victim.is_borrowed) and not victim.is_claim

    def _of(self, workload_id: str) -> list[Victim]:
        if workload_id not in self._known:
            self._known[workload_id] = self._make(workload_id, self._rows[workload_id])
        return self._known[workload_id]

    def _make(self, workload_id: str, rows: list[Live]) -> list[Victim]:
        request, running = self._placed.get(workload_id), self._running.get(workload_id)
        if request is None or running is None or running.state == "stopping":
            return []
        if running.state == "claiming":
            return [self._claim(request, running, rows)] if all(r.state == "claimed" for r in rows) else []
        rows = [row for row in rows if row.state != "stopping"]
        if not rows or any(row.state != "held" for row in rows):
            return []
        grows = workload_id in self._growing
        single = [row for row in rows if self._may_go_alone(request, row)] if grows else []
        alone: dict[int, list[Live]] = defaultdict(list)
        for row in single:
            alone[row.replica].append(row)
        found = [self._one(request, running, index, alone[index]) for index in sorted(alone, reverse=True)]
        if self._may_go(request, running):
            found.append(self._whole(request, running, rows, [row for row in rows if row not in single]))
        return found

    def _may_go_alone(self, request: Request, row: Live) -> bool:
        return (row.workload_id, row.replica) in self._surplus and self._has_run(request, row.started_us)

    def _may_go(self, request: Request, running: Running) -> bool:
        is_lent = running.borrowed and self._policy.inference_may_borrow
        is_floor = request.kind == INFERENCE and not is_lent
        return request.preemptible and not is_floor and self._has_run(request, running.started_us)

    def _has_run(self, request: Request, started_us: int) -> bool:
        asked_s = min(request.min_run_s, self._policy.asked_min_run_most_s)
        least_s = max(self._policy.least_run_s(request.kind), asked_s)
        return self._now_us - started_us >= least_s * 1_000_000

    def _whole(self, request: Request, running: Running, rows: list[Live], rest: list[Live]) -> Victim:
        since_us = max(running.started_us, running.checkpoint_us or 0)
        lost = sum(_gpu_s(row, self._now_us - max(since_us, row.started_us)) for row in rows)
        again_s = min(request.restart_cost_s, self._policy.asked_restart_most_s)
        restart = sum(_gpu_s(row, again_s * 1_000_000) for row in rows)
        age_us = None if running.checkpoint_us is None else max(0, self._now_us - running.checkpoint_us)
        band = max((row.band for row in rows), default=0)
        weight = min(lost + restart, _MOST_LOST) << _TIE_BITS | self._tie(request, running, whole=1)
        return Victim(
            request.workload_id,
            request.team_id,
            None,
            tuple(rest),
            lost,
            restart,
            None if age_us is None else age_us // 1_000_000,
            request.kind,
            band,
            running.borrowed,
            False,
            running.evictions,
            sum(row.units for row in rows),
            weight,
        )

    def _one(self, request: Request, running: Running, index: int, rows: list[Live]) -> Victim:
        tie = self._tie(request, running, whole=0)
        units = sum(row.units for row in rows)
        place = (request.workload_id, request.team_id, index, tuple(rows))
        return Victim(*place, 0, 0, None, request.kind, rows[0].band, True, False, 0, units, tie)

    def _claim(self, request: Request, running: Running, rows: list[Live]) -> Victim:
        tie, band = self._tie(request, running, whole=1), max(row.band for row in rows)
        units = sum(row.units for row in rows)
        place = (request.workload_id, request.team_id, None, tuple(rows))
        return Victim(*place, 0, 0, None, request.kind, band, running.borrowed, True, 0, units, tie)

    def _tie(self, request: Request, running: Running, *, whole: int) -> int:
        """Replicas above the least first, then the lowest priority, then who was taken back least often."""
        rank = self._ranks[request.priority]
        return whole << 15 | rank << 9 | min(running.evictions, 15) << 5 | 1


def _gpu_s(row: Live, span_us: int) -> int:
    return row.units * max(0, span_us) // (UNITS_PER_GPU * 1_000_000)
