"""Whose turn it is: the most deprived team first, inside it priority, then age."""

import heapq
from collections.abc import Iterable

from scheduling.engine.fairshare import QuotaTree
from scheduling.engine.snapshot import UNITS_PER_GPU, Request

_LaneId = tuple[str, str]  # team, tier
_Waiting = tuple[int, int, str, int, Request]
_Turn = tuple[int, int, int, int, int, str, _LaneId]


class Lanes:
    """One lane for each team and tier, so that a head that cannot start never holds up another tier.

    Only lane heads compete. Use only grows during a pass, so a lane's key only grows, but for a better head
    arriving, which enters anew. An entry that is no longer its lane's current one is dropped; one that the
    starts of others made too cheap goes back with its true key.
    """

    def __init__(self, shares: QuotaTree, requests: Iterable[Request]) -> None:
        self._shares = shares
        self._lanes: dict[_LaneId, list[_Waiting]] = {}
        self._turns: list[_Turn] = []
        self._current: dict[_LaneId, _Turn] = {}
        self._touched: dict[_LaneId, None] = {}
        for request in requests:
            self.push(request, 0)

    def push(self, request: Request, choice: int) -> None:
        """Let the request wait for its `choice`-th tier."""
        lane_id = (request.team_id, request.tiers[choice])
        waiting = (-request.priority, request.queued_us, request.workload_id, choice, request)
        heapq.heappush(self._lanes.setdefault(lane_id, []), waiting)
        self._touched[lane_id] = None

    def pop(self) -> tuple[Request, int] | None:
        """The next request and which of its tiers it is to try; book its start before the next call."""
        for lane_id in self._touched:
            self._enter(lane_id)
        self._touched.clear()
        while self._turns:
            turn = heapq.heappop(self._turns)
            lane_id = turn[-1]
            if self._current.get(lane_id) != turn:
                continue
            if self._turn(lane_id) != turn:
                self._enter(lane_id)
                continue
            self._touched[lane_id] = None
            *_, choice, request = heapq.heappop(self._lanes[lane_id])
            return request, choice
        return None

    def _enter(self, lane_id: _LaneId) -> None:
        self._current.pop(lane_id, None)
        if self._lanes[lane_id]:
            turn = self._turn(lane_id)
            self._current[lane_id] = turn
            heapq.heappush(self._turns, turn)

    def _turn(self, lane_id: _LaneId) -> _Turn:
        priority, queued_us, workload_id, _, _ = self._lanes[lane_id][0]
        return (*self._shares.deprivation(*lane_id), priority, queued_us, workload_id, lane_id)


def in_line(shares: QuotaTree, requests: Iterable[Request]) -> list[Request]:
    """The waiting requests as the next pass would take them, each by the tier it named first."""

    def key(request: Request) -> tuple[bool, int, int, int, int, int, str]:
        own = (-request.priority, request.queued_us, request.workload_id)
        if not request.tiers:
            return (True, 0, 0, 0, *own)
        tier_id = request.tiers[0]
        borrows = not shares.within_guarantee(request.team_id, tier_id, units_asked(request))
        return (borrows, *shares.deprivation(request.team_id, tier_id), *own)

    return sorted(requests, key=key)


def units_asked(request: Request) -> int:
    """The units that the smallest start of the request takes: all of `replicas_min`."""
    return request.replicas_min * request.gpus_per_replica * UNITS_PER_GPU
