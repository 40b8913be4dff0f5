"""Whose turn it is: the most deprived team first, level by level; inside it priority, then age."""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter

from scheduling.engine.decisions import Policy
from scheduling.engine.division import PPM
from scheduling.engine.fairshare import QuotaTree
from scheduling.engine.placement import Fleet, Shape
from scheduling.engine.scoring import cost_of_result
from scheduling.engine.snapshot import Request, Snapshot
from scheduling.engine.standing import NOTHING, OWN_WORK, Standing
from scheduling.engine.topology import level_now

FOREVER_US = 1 << 60


@dataclass(slots=True, eq=False)
class Ask:
    """A waiting request and what the pass works out about it once. Equal shapes have equal `shape_no`."""

    id: str
    request: Request
    tiers: tuple[str, ...]  # those that exist, without repeats
    shape: Shape
    shape_no: int
    units: dict[str, int]  # by tier, what its smallest start takes: all of `replicas_min`; read only
    order: tuple[int, int, str]  # inside its team: priority with age, then age, then id
    starving: bool  # it has waited so long that its size no longer counts against it
    run_us: int  # how long it is expected to run
    hold_us: int  # how long it may hold what it gets, when judged against reservations
    bound: bool  # must stay inside the guarantee
    band: int  # 0 once no grant has room for it

    def units_on(self, tier_id: str) -> int:
        """On a tier it named, 0 where that does not exist; for any other see `TierNodes.units_of`."""
        return self.units.get(tier_id, 0)

    def counted_on(self, tier_id: str) -> int:
        """The units that its team is judged with."""
        return 0 if self.starving else self.units_on(tier_id)

    @property
    def kind(self) -> str:
        """The kind by which head-room for inference binds it: no kind for work of a band."""
        return "" if self.band else self.request.kind

    @property
    def most_units(self) -> int:
        """On the tier where it takes most; 0 if it names none that exists."""
        return max(self.units.values(), default=0)


class Asks:
    """All waiting requests, made ready for one pass."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now_us: int, fleet: Fleet) -> None:
        self._policy, self._now_us, self._fleet = policy, now_us, fleet
        self._levels = snapshot.levels
        self._tiers = {tier.id: tier for tier in snapshot.tiers}
        self._shapes: dict[tuple[object, ...], tuple[int, Shape]] = {}
        self._known: dict[tuple[tuple[str, ...], str], tuple[str, ...]] = {}
        self._units: dict[tuple[int, tuple[str, ...]], dict[str, int]] = {}
        self.all = [self.ask(request) for request in sorted(snapshot.requests, key=lambda r: r.workload_id)]

    def ask(self, request: Request) -> Ask:
        policy = self._policy
        shape_no, shape = self._shape_of(request)
        tiers = self._tiers_of(request)
        waited_s = max(0, self._now_us - request.queued_us) // 1_000_000
        aged = waited_s // policy.ageing_s if policy.ageing_s else 0
        starving = 0 < policy.starvation_s <= waited_s
        limit_s = request.time_limit_s
        run_s = policy.expected_run_s(request.kind) if limit_s is None else limit_s
        run_us = FOREVER_US if run_s is None else run_s * 1_000_000
        is_limited = limit_s is not None or policy.backfill_without_limit
        return Ask(
            request.workload_id,
            request,
            tiers,
            shape,
            shape_no,
            self._units_of(shape, shape_no, tiers),
            (-request.priority - aged, request.queued_us, request.workload_id),
            starving,
            run_us,
            run_us if is_limited else FOREVER_US,
            not policy.may_borrow(request.kind, preemptible=request.preemptible),
            request.band,
        )

    def _shape_of(self, request: Request) -> tuple[int, Shape]:
        is_share = request.share or request.gpu_memory_mib
        sharer = self._fleet.sharer_of(request.team_id) if is_share else ""
        asked = request.required_level or request.preferred_level
        level = level_now(request, self._now_us, self._levels) if asked else None
        key = (
            request.replicas_min,
            request.gpus_per_replica,
            request.cpu_m,
            request.memory_mib,
            request.pool_ids,
            request.share,
            request.gpu_memory_mib,
            sharer,
            request.node_labels,
            request.not_labels,
            request.not_nodes,
            level,
            request.preferred_level,
            request.spread_level,
        )
        known = self._shapes.get(key)
        if known is None:
            known = self._shapes[key] = (len(self._shapes), Shape.of(request, sharer, level))
        return known

    def _units_of(self, shape: Shape, shape_no: int, tiers: tuple[str, ...]) -> dict[str, int]:
        key = (shape_no, tiers)
        if key not in self._units:
            self._units[key] = {tier_id: self._fleet.tiers[tier_id].units_of(shape) for tier_id in tiers}
        return self._units[key]

    def _tiers_of(self, request: Request) -> tuple[str, ...]:
        """Those that exist: as named, or those with the best result for their cost first."""
        key = (request.tiers, request.kind if request.by_value else "")
        if key not in self._known:
            tiers = tuple(dict.fromkeys(tier_id for tier_id in request.tiers if tier_id in self._tiers))
            if request.by_value:
                scarce, kind = self._fleet.scarce, request.kind
                costs = {t: cost_of_result(self._tiers[t], kind, scarce[t]) for t in tiers}
                tiers = tuple(sorted(tiers, key=lambda tier_id: costs[tier_id]))
            self._known[key] = tiers
        return self._known[key]


_Key = tuple[int, int, int, int, str]
_Waiting = tuple[tuple[int, int, str], int, Ask]
_Turn = tuple[Ask, int]


class _Member:
    """A tier, a team in it, or that team's own work: one heap of who below it is next."""

    __slots__ = ("heap", "key", "name", "next", "parent", "waiting")

    def __init__(self, name: str, parent: "_Member | None") -> None:
        self.name, self.parent = name, parent
        self.heap: list[tuple[_Key, _Member]] = []
        self.waiting: list[_Waiting] = []
        self.key: _Key | None = None  # its valid entry in the parent's heap
        self.next: _Turn | None = None

    def __lt__(self, other: "_Member") -> bool:
        return self.name < other.name


class Lanes:
    """A tournament for each tier, down its team tree, so that a head that cannot start never holds up another tier.

    Only what lies on the way from the last turn to the root is worked out again: a start of one team changes
    nobody else's standing. `is_dead` says which requests need no turn at all; they are passed over at once.
    """

    def __init__(
        self,
        tree: QuotaTree,
        standing: Standing,
        asks: Iterable[Ask],
        is_dead: Callable[[Ask, str], bool],
    ) -> None:
        self._tree, self._standing, self._is_dead = tree, standing, is_dead
        self._root = _Member("", None)
        self._members: dict[tuple[str, str], _Member] = {}
        self._touched: dict[tuple[str, str], None] = {}
        self._promised: list[tuple[int, tuple[int, int, str], Ask]] = []
        self.unserved: list[Ask] = []
        for ask in asks:
            if ask.request.promised_us is not None:
                self._promised.append((ask.request.promised_us, ask.order, ask))
            else:
                self._lane(ask.request.team_id, ask.tiers[0]).waiting.append((ask.order, 0, ask))
                self._touched[ask.request.team_id, ask.tiers[0]] = None
        self._promised.sort(key=lambda row: row[:2], reverse=True)
        for team_id, tier_id in self._touched:
            heapq.heapify(self._lane(team_id, tier_id).waiting)

    def push(self, ask: Ask, choice: int) -> None:
        """Let the request wait for its `choice`-th tier; without one it is unserved."""
        if choice >= len(ask.tiers):
            self.unserved.append(ask)
            return
        key = (ask.request.team_id, ask.tiers[choice])
        heapq.heappush(self._lane(*key).waiting, (ask.order, choice, ask))
        self._touched[key] = None

    def pop(self) -> _Turn | None:
        """The next request and which of its tiers it is to try; book its start before the next call."""
        while self._promised:
            ask = self._promised.pop()[-1]
            if not self._is_dead(ask, ask.tiers[0]):
                return ask, 0
            self.push(ask, 1)
        self._refresh()
        turn = self._root.next
        if turn is not None:
            ask, choice = turn
            key = (ask.request.team_id, ask.tiers[choice])
            heapq.heappop(self._lane(*key).waiting)
            self._touched[key] = None
        return turn

    def _lane(self, team_id: str, tier_id: str) -> _Member:
        key = (tier_id, team_id + OWN_WORK)
        if key not in self._members:
            above = self._members.setdefault((tier_id, ""), _Member("", self._root))
            for ancestor in self._tree.path(team_id):
                above = self._members.setdefault((tier_id, ancestor), _Member(ancestor, above))
            self._members[key] = _Member(team_id + OWN_WORK, above)
        return self._members[key]

    def _refresh(self) -> None:
        while self._touched:
            (team_id, tier_id), _ = self._touched.popitem()
            lane = self._lane(team_id, tier_id)
            lane.next = self._head(lane, tier_id)
            member: _Member | None = lane
            while member is not None:
                self._enter(member, tier_id)
                member = member.parent

    def _head(self, lane: _Member, tier_id: str) -> _Turn | None:
        waiting = lane.waiting
        while waiting:
            _, choice, ask = waiting[0]
            if not self._is_dead(ask, tier_id):
                return ask, choice
            heapq.heappop(waiting)
            self.push(ask, choice + 1)
        return None

    def _enter(self, member: _Member, tier_id: str) -> None:
        """Settle who is next in the member, and its place among its siblings."""
        heap = member.heap
        while heap and heap[0][1].key is not heap[0][0]:
            heapq.heappop(heap)
        if not member.waiting:
            member.next = heap[0][1].next if heap else None
        if member.parent is None:
            return
        if member.next is None:
            member.key = None
        else:
            member.key = heap[0][0] if member.name == "" else self._key(member.name, tier_id, member.next[0])
            heapq.heappush(member.parent.heap, (member.key, member))

    def _key(self, name: str, tier_id: str, ask: Ask) -> _Key:
        return (*self._standing.rank(name, tier_id, ask.counted_on(tier_id)), *ask.order)


class Line:
    """The waiting requests of each tier as they would start if all could: bands, guarantees, then the rest."""

    def __init__(self, tree: QuotaTree, standing: Standing) -> None:
        self._tree, self._standing = tree, standing

    def of(self, tier_id: str, asks: Iterable[Ask]) -> list[Ask]:
        """Group after group; each counts what those before it would take."""
        ahead: dict[str, int] = {}
        line: list[Ask] = []
        for key, group in sorted(self._groups(tier_id, asks).items()):
            is_promised = key[-1] == 0
            found = sorted(group, key=_by_promise) if is_promised else self._merged(tier_id, group, ahead)
            taken: dict[str, int] = {}  # by team
            for ask in found:
                taken[ask.request.team_id] = taken.get(ask.request.team_id, 0) + ask.units_on(tier_id)
            for team_id, units in taken.items():
                for member in (team_id + OWN_WORK, *self._tree.path(team_id)):
                    ahead[member] = ahead.get(member, 0) + units
            line += found
        return line

    def _groups(self, tier_id: str, asks: Iterable[Ask]) -> dict[tuple[int, bool, int], list[Ask]]:
        """By band, whether borrowed, and whether promised. Who is first inside a guarantee goes by `order` alone."""
        left: dict[str, int] = {}  # by guarantor
        groups: dict[tuple[int, bool, int], list[Ask]] = {}
        for ask in sorted(asks, key=attrgetter("order")):
            team_id, units = ask.request.team_id, ask.units_on(tier_id)
            giver = self._tree.guarantor(team_id, tier_id)
            if giver not in left:
                left[giver] = self._tree.share(team_id, tier_id) - self._tree.share_used(team_id, tier_id)
            is_within = units <= left[giver]
            if is_within:
                left[giver] -= units
            key = (-ask.band, not (is_within or ask.band), int(ask.request.promised_us is None))
            groups.setdefault(key, []).append(ask)
        return groups

    def _merged(self, tier_id: str, asks: Sequence[Ask], ahead: dict[str, int]) -> list[Ask]:
        """Level by level from the leaves: each team's line is its members' lines, merged by ratio."""
        lines: dict[str, list[Ask]] = {}
        for ask in asks:  # in order
            lines.setdefault(ask.request.team_id, []).append(ask)
        depth = max(len(self._tree.path(team_id)) for team_id in lines)
        keyed = {team: self._keyed(team + OWN_WORK, tier_id, lines[team], ahead) for team in sorted(lines)}
        for level in range(depth, 0, -1):
            for team_id in [team for team in keyed if len(self._tree.path(team)) == level]:
                line = [ask for _, ask in sorted(keyed.pop(team_id), key=itemgetter(0))]
                above = self._tree.parent(team_id) or ""
                keyed.setdefault(above, []).extend(self._keyed(team_id, tier_id, line, ahead))
        return [ask for _, ask in sorted(keyed.get("", []), key=itemgetter(0))]

    def _keyed(
        self, member: str, tier_id: str, line: list[Ask], ahead: dict[str, int]
    ) -> list[tuple[_Key, Ask]]:
        found, before = [], self._standing.use(member, tier_id) + ahead.get(member, 0)
        allowed = self._standing.allowed(member, tier_id)
        for ask in line:
            units = ask.units_on(tier_id)
            held = before if ask.starving else before + units
            ratio = held * PPM // allowed if allowed > 0 else NOTHING + held
            found.append(((ratio, before, *ask.order), ask))
            before += units
        return found


def _by_promise(ask: Ask) -> tuple[int, tuple[int, int, str]]:
    return (ask.request.promised_us or 0, ask.order)
