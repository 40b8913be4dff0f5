"""What must be over before a request may start whatever is free: its time, other work, caps that it counts against."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from scheduling.engine import decisions as codes
from scheduling.engine.decisions import Blocker, Policy
from scheduling.engine.order import Ask
from scheduling.engine.snapshot import UNITS_PER_GPU, Request, Snapshot

DEVELOPMENT = "development"
_LISTED_WORKLOADS = 5
_ARRAY, _TEAM, _PERSON = "array", "team", "person"
_Cap = tuple[str, str]  # what counts, and whose


class Gates:
    """Counts what the pass starts and moves, so that no cap is passed by several starts of one pass.

    An array has a cap of members. Sessions have, by policy, caps of GPUs for each team (its own work, not that of teams
    below it) and for each person.
    """

    def __init__(self, snapshot: Snapshot, policy: Policy, now_us: int) -> None:
        self._now_us = now_us
        self._most = {
            scope: gpus * UNITS_PER_GPU
            for scope, gpus in ((_TEAM, policy.sessions_per_team), (_PERSON, policy.sessions_per_person))
            if gpus is not None
        }
        # What each workload counts for, by cap: members of arrays, units of sessions.
        self._users: dict[_Cap, dict[str, int]] = defaultdict(dict)
        self._used: dict[_Cap, int] = defaultdict(int)
        placed = {request.workload_id: request for request in snapshot.placed}
        for request in snapshot.placed:
            self.join(request)
        for live in snapshot.live if self._most else ():
            if live.kind == DEVELOPMENT and live.workload_id in placed:
                self.hold(placed[live.workload_id], live.units)

    def join(self, request: Request) -> None:
        """One more member of its array holds something."""
        if request.array_id is not None:
            self._count((_ARRAY, request.array_id), request.workload_id, 1)

    def leave(self, request: Request, units: int) -> None:
        """It is moved: it joins and holds again at its new place."""
        if request.array_id is not None:
            self._count((_ARRAY, request.array_id), request.workload_id, -1)
        self.hold(request, -units)

    def hold(self, request: Request, units: int) -> None:
        """So many units more are held."""
        for cap in self._sessions_of(request):
            self._count(cap, request.workload_id, units)

    def _count(self, cap: _Cap, workload_id: str, amount: int) -> None:
        self._used[cap] += amount
        users = self._users[cap]
        users[workload_id] = users.get(workload_id, 0) + amount

    def _sessions_of(self, request: Request) -> Iterator[_Cap]:
        if request.kind == DEVELOPMENT:
            for scope in self._most:
                yield scope, request.team_id if scope == _TEAM else request.owner_id

    def room(self, request: Request) -> int | None:
        """Units that its caps leave to a session; None: as many as there are."""
        return min((self._most[cap[0]] - self._used[cap] for cap in self._sessions_of(request)), default=None)

    def is_capped(self, ask: Ask, tier_id: str | None = None) -> bool:
        """Whether a cap is reached: on this tier, or on each of those that it named."""
        array_id, most = ask.request.array_id, ask.request.array_cap
        if array_id is not None and most is not None and self._used[_ARRAY, array_id] >= most:
            return True
        room = self.room(ask.request) if self._most else None
        return room is not None and _asked(ask, tier_id) > room

    def blockers(self, ask: Ask) -> list[Blocker]:
        """Earliest start, dependencies and caps; an empty list: it may start."""
        request = ask.request
        found: list[Blocker] = []
        if self._asks_nothing(request):
            return found
        if request.not_before_us is not None and request.not_before_us > self._now_us:
            found.append(Blocker(codes.NOT_BEFORE, {"not_before_us": request.not_before_us}))
        if request.depends_on:
            listed = list(request.depends_on[:_LISTED_WORKLOADS])
            found.append(
                Blocker(codes.DEPENDENCY, {"workload_ids": listed, "count": len(request.depends_on)})
            )
        if request.array_id is not None and request.array_cap is not None:
            running = self._used[_ARRAY, request.array_id]
            if running >= request.array_cap:
                data = {"array_id": request.array_id, "cap": request.array_cap, "running": running}
                found.append(Blocker(codes.ARRAY_CAP, data))
        return [*found, *self._session_blockers(ask)]

    def _asks_nothing(self, request: Request) -> bool:
        """Of what a gate is for: most requests are like that."""
        asks = request.not_before_us is not None or request.depends_on or request.array_id is not None
        return not asks and not (self._most and request.kind == DEVELOPMENT)

    def _session_blockers(self, ask: Ask) -> Iterator[Blocker]:
        asked = _asked(ask)
        for cap in self._sessions_of(ask.request):
            scope, used, limit = cap[0], self._used[cap], self._most[cap[0]]
            if used + asked > limit:
                team_id = ask.request.team_id if scope == _TEAM else None
                data = {"team_id": team_id, "used": used, "limit": limit, "asked": asked}
                yield Blocker(codes.SESSIONS, {"scope": scope, **data, "ever": asked <= limit})

    def in_the_way(self, ask: Ask, gate: Blocker) -> tuple[int, Mapping[str, int]]:
        """How much has to end before it is under a cap, and what each workload counts for."""
        if gate.code == codes.ARRAY_CAP:
            cap = (_ARRAY, ask.request.array_id or "")
            return gate.data["running"] - gate.data["cap"] + 1, self._users[cap]
        cap = next(one for one in self._sessions_of(ask.request) if one[0] == gate.data["scope"])
        return gate.data["used"] + gate.data["asked"] - gate.data["limit"], self._users[cap]


def _asked(ask: Ask, tier_id: str | None = None) -> int:
    """Units on this tier; without one the least that it takes anywhere."""
    return ask.units_on(tier_id) if tier_id is not None else min(ask.units.values(), default=0)
