"""What the machines will have free and when: starts reserved for those that wait, and who may pass them.

GPUs of one tier on one node are alike, so the timeline counts them for each node: work that never asks for more
than is free at any time can always keep its own GPUs. Free room only grows as work ends; only a reserved start
lowers it. So between two such starts the least is free at the first moment, and a window needs to be looked at
only where it begins and where a reserved start lies inside it.

A card with shares on it counts as taken until the last of them ends. What is left of it counts for more shares of
the same team as long as it is taken, and where somebody has reserved the node only if they end before it is free.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from scheduling.engine.decisions import Policy, ReplicaPlacement, Reservation
from scheduling.engine.endings import Ending, SharedCards, expected_end, run_on
from scheduling.engine.moments import Moments
from scheduling.engine.order import FOREVER_US, Ask
from scheduling.engine.placement import Fleet, Ints, Shape, TierNodes, replicas_that_fit
from scheduling.engine.snapshot import WHOLE, Live

_GPUS, _CPU, _MEMORY = 0, 1, 2
_KEPT_LOWS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A reserved start: what it takes of each node, from `start_us` to `end_us`."""

    ask: Ask
    tier_id: str
    start_us: int
    end_us: int
    nodes: Ints  # (nodes taken,) rows of the fleet
    replicas: Ints  # (nodes taken,)
    gpus: Ints  # (nodes taken,) whole cards, also for shares

    def amounts(self, tier_id: str) -> Ints:
        shape = self.ask.shape
        gpus = self.gpus if tier_id == self.tier_id else np.zeros_like(self.gpus)
        return np.array(
            [gpus, shape.cpu_m * self.replicas, shape.memory_mib * self.replicas]
        )  # (3, nodes taken)


class TierTimeline:
    """Free GPUs, CPU and memory of one tier's nodes over time."""

    def __init__(self, fleet: Fleet, tier: TierNodes, endings: Sequence[Ending], nodes: Ints) -> None:
        """`nodes`: (endings,) the row of the fleet on which each frees something; -1: nobody knows when."""
        self.fleet, self.tier = fleet, tier
        self.row_of = np.full(len(fleet.nodes), -1, dtype=np.int64)  # (nodes,) rows of the tier
        self.row_of[tier.nodes] = np.arange(tier.nodes.size)
        rows = np.append(self.row_of, -1)[nodes]  # (endings,) -1 is the one appended
        here = [(endings[at], int(rows[at])) for at in np.flatnonzero(rows >= 0).tolist()]
        self._shared = SharedCards(tier, (e.live for e in endings), (e for e, _ in here))
        self._learn_gifts(here)
        self._first_estimate_us = min((e.ends_us or 0 for e, _ in here if e.is_estimate), default=FOREVER_US)
        # GPUs that are held but not ready may be among those given back: count them out, rather late than wrong.
        self._unready = tier.total - tier.free - (tier.ready - tier.usable)  # (tier nodes,)
        self._started: list[tuple[int, int, int, int, int]] = []  # end, row, GPUs, CPU, memory
        self._started_array: Ints = np.zeros((0, 5), dtype=np.int64)
        self._times: Ints | None = None
        self._moments = Moments(tier.nodes.size)
        self._unreserved = Moments(tier.nodes.size)  # without what reservations take
        # (shape, hold) → its earliest start when it was last asked for, and the GPUs that were usable then
        self._found: dict[tuple[Shape, int], tuple[int, int]] = {}
        self._lows: dict[tuple[int, int], Ints] = {}  # by first and last reserved start: (3, tier nodes)
        self.held: dict[Held, tuple[Ints, Ints]] = {}  # rows of the tier, (3, rows) what it takes of them
        self.starts: list[int] = []  # when reservations start, in order
        self._held_ends: list[int] = []
        # For each node of each reservation: start, end, row, GPUs, CPU, memory. Grows by doubling.
        self._taken: Ints = np.zeros((64, 6), dtype=np.int64)
        self._taken_count = 0
        self._noted: dict[Held, int] = {}  # where its entries begin
        self._least: Ints = np.zeros(
            (0, 3, tier.nodes.size), dtype=np.int64
        )  # (starts, 3, tier nodes) free then

    def _learn_gifts(self, here: Sequence[tuple[Ending, int]]) -> None:
        """What ends give back, first end first; a card of shares when the last of them ends."""
        tier_id = self.tier.tier_id
        gifts = [
            (
                e.ends_us or 0,
                row,
                _whole_gpus(e.live, self.tier) if e.live.tier_id == tier_id else 0,
                e.live.cpu_m,
                e.live.memory_mib,
            )
            for e, row in here
        ]
        gifts += [
            (end_us, row, 1, 0, 0) for (row, _), end_us in self._shared.ends.items() if end_us < FOREVER_US
        ]
        gifts.sort(key=lambda gift: gift[0])
        table = np.array(gifts, dtype=np.int64).reshape(len(gifts), 5).T
        self._ends, self._rows, self._gives = table[0], table[1], table[2:]  # (endings,) twice, (3, endings)

    def add_start(self, row: int, gpus: int, cpu_m: int, memory_mib: int, ask: Ask, now_us: int) -> None:
        """Somebody starts now."""
        end_us = self._end_of(ask, now_us)
        if end_us < FOREVER_US:
            self._add_gift(end_us, row, gpus, cpu_m, memory_mib)
            if ask.request.time_limit_s is None:
                self._first_estimate_us = min(end_us, self._first_estimate_us)
        upto = bisect_left(self.starts, now_us + ask.hold_us)
        self._least[:upto, :, row] -= np.array((gpus, cpu_m, memory_mib))
        self._renew_lows(row)

    def add_share(self, row: int, gpu_id: str, ask: Ask, now_us: int) -> None:
        """The card of a share that starts now; its CPU and memory come by `add_start`."""
        self._found.clear()  # others may join it
        end_us = self._end_of(ask, now_us)
        before_us = self._shared.join(row, gpu_id, end_us)
        if before_us >= end_us:
            return
        if before_us > 0:
            self._add_gift(before_us, row, -1, 0, 0)
        if end_us < FOREVER_US:
            self._add_gift(end_us, row, 1, 0, 0)
        first, upto = bisect_left(self.starts, before_us), bisect_left(self.starts, now_us + ask.hold_us)
        self._least[first:upto, _GPUS, row] -= 1
        self._renew_lows(row)

    def _end_of(self, ask: Ask, now_us: int) -> int:
        run_us = run_on(self.fleet, self.tier.tier_id, ask)
        return now_us + run_us if run_us < FOREVER_US else FOREVER_US

    def _add_gift(self, end_us: int, row: int, gpus: int, cpu_m: int, memory_mib: int) -> None:
        self._started.append((end_us, row, gpus, cpu_m, memory_mib))
        self._times = None
        self._moments.forget()
        self._unreserved.forget()

    def add_reservation(self, held: Held) -> None:
        index = bisect_left(self.starts, held.start_us)
        if index == len(self.starts) or self.starts[index] != held.start_us:
            self._least = np.insert(self._least, index, self.free_at(held.start_us), axis=0)
            self.starts.insert(index, held.start_us)
        rows = self.row_of[held.nodes]
        here = rows >= 0
        self._lows.clear()
        self.held[held] = (rows[here], held.amounts(self.tier.tier_id)[:, here])
        insort(self._held_ends, held.end_us)
        self._note(held, *self.held[held])
        self._shift(held, -1)

    def unreserved_nodes(self) -> Ints:
        """(tier nodes,) 1 where nothing is reserved, else 0."""
        free = np.ones(self.tier.nodes.size, dtype=np.int64)
        for rows, _ in self.held.values():
            free[rows] = 0
        return free

    def touches(self, held: Held) -> bool:
        return bool((self.row_of[held.nodes] >= 0).any())

    def cancel(self, held: Held) -> None:
        self._lows.clear()
        self._shift(held, 1)
        self._found.clear()
        rows, _ = self.held.pop(held)
        first = self._noted.pop(held)
        self._taken[first : first + rows.size] = 0
        self._held_ends.remove(held.end_us)

    def _note(self, held: Held, rows: Ints, amounts: Ints) -> None:
        count = self._taken_count + rows.size
        while count > len(self._taken):
            self._taken = np.concatenate([self._taken, np.zeros_like(self._taken)])
        self._noted[held] = self._taken_count
        entries = self._taken[self._taken_count : count]
        entries[:, 0], entries[:, 1], entries[:, 2] = held.start_us, held.end_us, rows
        entries[:, 3:] = amounts.T
        self._taken_count = count

    def _shift(self, held: Held, sign: int) -> None:
        rows, amounts = self.held[held]
        first, last = bisect_left(self.starts, held.start_us), bisect_left(self.starts, held.end_us)
        self._least[first:last, :, rows] += sign * amounts
        self._moments.shift(held.start_us, held.end_us, rows, sign * amounts)

    def free_at(self, time_us: int, *, reservations: bool = True) -> Ints:
        """(3, tier nodes) GPUs, CPU and memory free then."""
        tier, fleet = self.tier, self.fleet
        kept = self._moments if reservations else self._unreserved
        later = kept.get(time_us)
        if later is None:
            later = self._free_later(time_us, reservations)
            kept.put(time_us, later)
        now = np.array([tier.usable, fleet.cpu_free[tier.nodes], fleet.memory_free[tier.nodes]])
        return now + later

    def _free_later(self, time_us: int, reservations: bool) -> Ints:
        """(3, tier nodes) how much more will be free then than now, if nobody else starts."""
        size, count = self.tier.nodes.size, int(np.searchsorted(self._ends, time_us, side="right"))
        rows = self._rows[:count]
        given = [np.bincount(rows, weights=self._gives[k, :count], minlength=size) for k in range(3)]
        free = np.array(given).astype(np.int64)
        free[_GPUS] = np.maximum(0, free[_GPUS] - self._unready)
        if self._started:
            over = self._ended_starts(time_us)
            for kind in range(3):
                free[kind] += np.bincount(over[:, 1], weights=over[:, 2 + kind], minlength=size).astype(
                    np.int64
                )
        if reservations:
            taken = self._taken[: self._taken_count]
            taken = taken[(taken[:, 0] <= time_us) & (time_us < taken[:, 1])]
            np.subtract.at(free.T, taken[:, 2], taken[:, 3:])
        return free

    def _ended_starts(self, time_us: int) -> Ints:
        if len(self._started) != len(self._started_array):
            self._started_array = np.array(self._started, dtype=np.int64)
        return self._started_array[self._started_array[:, 0] <= time_us]

    def least_free(self, free: Ints, from_us: int, until_us: int, but: Held | None = None) -> Ints:
        """(3, tier nodes) the least that is free from then to then, given what is free at the beginning."""
        first, last = bisect_right(self.starts, from_us), bisect_left(self.starts, until_us)
        if first >= last:
            return free
        if but is None or but not in self.held:
            least: Ints = np.minimum(free, self._low(first, last))
            return least
        window = self._least[first:last]
        rows, amounts = self.held[but]
        inside = [but.start_us <= start < but.end_us for start in self.starts[first:last]]
        window = window.copy()
        window[np.ix_(np.flatnonzero(inside), np.arange(3), rows)] += amounts
        least = np.minimum(free, window.min(axis=0))
        return least

    def _low(self, first: int, last: int) -> Ints:
        """(3, tier nodes) the least that is free at these reserved starts; kept for a few windows from now on."""
        low = self._lows.get((first, last))
        if low is None:
            low = self._least[first:last].min(axis=0)
            if first == 0 and len(self._lows) < _KEPT_LOWS:
                self._lows[first, last] = low
        return low

    def _renew_lows(self, row: int) -> None:
        for (first, last), low in self._lows.items():
            low[:, row] = self._least[first:last, :, row].min(axis=0)

    def fit(self, shape: Shape, time_us: int, hold_us: int) -> Ints:
        """(tier nodes,) replicas that could start then and stay so long without delaying anybody."""
        free = self.least_free(self.free_at(time_us), time_us, time_us + hold_us)
        return self.replicas(shape, free, time_us, hold_us) * self.fleet.open_nodes(self.tier, shape)

    def replicas(self, shape: Shape, free: Ints, time_us: int, hold_us: int) -> Ints:
        """(tier nodes,) by what is free for all of that time."""
        by_gpu = free[_GPUS] // shape.gpus
        if shape.is_share:
            by_gpu = by_gpu * self._per_gpu(shape)
            unreserved = self.unreserved_nodes() > 0
            longer, shorter = self._shared.joinable(shape, time_us, time_us + hold_us)
            # Who joins a card that would be free before it ends keeps a whole card from those that come after.
            reserved = np.where(shorter > 0, free[_GPUS], by_gpu + longer)
            by_gpu = np.where(unreserved, by_gpu + longer + shorter, reserved)
        return replicas_that_fit(shape, by_gpu, free[_CPU], free[_MEMORY])

    def _per_gpu(self, shape: Shape) -> int:
        return WHOLE // self.tier.slots_of(shape)

    def whole_gpus(self, shape: Shape, replicas: Ints) -> Ints:
        """The cards that so many replicas on each node need when they start on free ones."""
        return -(-replicas * shape.gpus // max(1, self._per_gpu(shape)))

    def fits(self, shape: Shape, time_us: int, hold_us: int) -> bool:
        return self.fleet.topology.holds(self.tier, shape, self.fit(shape, time_us, hold_us))

    def times(self) -> Ints:
        """(times,) all moments at which something is expected to end."""
        if self._times is None:
            ends = [end for end, *_ in self._started]
            self._times = np.unique(np.concatenate([self._ends, _array(ends)]))
        return self._times

    def earliest(self, shape: Shape, hold_us: int, now_us: int) -> int | None:
        """The first moment from which the shape fits for so long, beside all reservations.

        Starts and reservations only take room, so that the search goes on where its last one ended.
        """
        usable, key = int(self.tier.usable.sum()), (shape, hold_us)
        known_us, usable_then = self._found.get(key, (now_us, usable))
        if known_us == FOREVER_US and usable <= usable_then:
            return None
        first = known_us if key in self._found and usable <= usable_then else self._first_room(shape, now_us)
        found = None if first is None else self._earliest_from(first, shape, hold_us)
        self._found[key] = (FOREVER_US if found is None else found, usable)
        return found

    def _earliest_from(self, first: int, shape: Shape, hold_us: int) -> int | None:
        times, full = self.times(), self._full_starts(shape)
        begin: int | None = first
        while begin is not None and begin < FOREVER_US:  # behind what never ends there is no start
            low, high = bisect_right(full, begin), bisect_left(full, begin + hold_us)
            if low < high:  # a reserved start inside the window leaves too little: not before the last such
                begin = full[high - 1]
                continue
            after = self._next_edge(begin, hold_us)
            last = len(times) if after is None else int(np.searchsorted(times, after, side="left"))
            moments = [begin, *times[np.searchsorted(times, begin, side="right") : last].tolist()]
            if self.fits(shape, moments[-1], hold_us):
                index = bisect_left(moments, True, key=lambda moment: self.fits(shape, moment, hold_us))
                return int(moments[min(index, len(moments) - 1)])
            begin = after
        return None

    def _next_edge(self, begin: int, hold_us: int) -> int | None:
        """When a reservation next begins or ends to stand in the way of a window: until then, time only adds room."""
        edges = []
        for times, shift in ((self.starts, 0), (self._held_ends, 0), (self.starts, hold_us - 1)):
            index = bisect_right(times, begin + shift)
            if index < len(times):
                edges.append(times[index] - shift)
        return min(edges, default=None)

    def _full_starts(self, shape: Shape) -> list[int]:
        """The reserved starts at which too little is left for the shape; for shares, others may be too."""
        if not self.starts or shape.is_share:
            return []
        gpus, cpu_m, memory_mib = self._least[:, _GPUS], self._least[:, _CPU], self._least[:, _MEMORY]
        fit = replicas_that_fit(shape, gpus // shape.gpus, cpu_m, memory_mib)  # (starts, tier nodes)
        fit = fit * self.fleet.open_nodes(self.tier, shape)
        if shape.required_level is None:
            return [self.starts[index] for index in np.flatnonzero(fit.sum(axis=1) < shape.replicas)]
        holds = self.fleet.topology.holds
        return [
            start for start, row in zip(self.starts, fit, strict=True) if not holds(self.tier, shape, row)
        ]

    def is_estimate(self, time_us: int) -> bool:
        """Whether what is free then rests on the end of work that has no time limit."""
        return time_us >= self._first_estimate_us

    def _first_room(self, shape: Shape, now_us: int) -> int | None:
        """The same without reservations: room only grows."""
        moments = [now_us, *self.times().tolist()]
        allowed = self.fleet.open_nodes(self.tier, shape)

        def has_room(moment: int) -> bool:
            fit = self.replicas(shape, self.free_at(moment, reservations=False), moment, 0)
            return self.fleet.topology.holds(self.tier, shape, fit * allowed)

        index = bisect_left(moments, True, key=has_room)
        return None if index == len(moments) else moments[index]


class Timeline:
    """All tiers' timelines, made when first asked for; starts and reservations of this pass enter all of them."""

    def __init__(self, fleet: Fleet, live: Iterable[Live], policy: Policy, now_us: int) -> None:
        self._fleet, self._policy, self.now_us = fleet, policy, now_us
        self._live = live
        self._endings: tuple[list[Ending], Ints] | None = None
        self._known: dict[
            int, Ending
        ] = {}  # by `id` of the row: an ending keeps its row, so none is used twice
        self._tiers: dict[str, TierTimeline] = {}
        self._starts: list[tuple[Ask, tuple[ReplicaPlacement, ...]]] = []
        self.held: dict[str, Held] = {}  # by workload, in the order of the line

    def endings(self, live: Iterable[Live] | None = None) -> list[Ending]:
        """What is expected to end, first end first: the snapshot's live work, or that given."""
        found = [self._ending(row) for row in (self._live if live is None else live)]
        found.sort(key=lambda e: (e.ends_us or 0, e.live.workload_id, e.live.node_id, e.live.tier_id))
        return found

    def _ending(self, row: Live) -> Ending:
        """Worked out once for each row, also for the timelines that take over from this one."""
        found = self._known.get(id(row))
        if found is None:
            speed = self._fleet.speed(row.tier_id, row.kind)
            found = self._known[id(row)] = expected_end(row, self._policy, self.now_us, speed)
        return found

    def _all_endings(self) -> tuple[list[Ending], Ints]:
        if self._endings is None:
            found, index = self.endings(), self._fleet.node_index
            nodes = (-1 if e.ends_us is None else index.get(e.live.node_id, -1) for e in found)
            self._endings = found, _array(nodes)
        return self._endings

    def tier(self, tier_id: str) -> TierTimeline:
        if tier_id not in self._tiers:
            made = TierTimeline(self._fleet, self._fleet.tiers[tier_id], *self._all_endings())
            self._tiers[tier_id] = made
            for ask, replicas in self._starts:
                self._enter(made, ask, replicas)
            for held in self.held.values():
                if made.touches(held):
                    made.add_reservation(held)
        return self._tiers[tier_id]

    def room(self, tier_id: str, shape: Shape, hold_us: int, but: Held | None = None) -> Ints | None:
        """(tier nodes,) replicas that may start now without delaying a reservation; None: as many as fit."""
        if not self.held:
            return None
        timeline = self.tier(tier_id)
        if bisect_left(timeline.starts, self.now_us + hold_us) == 0:
            return None
        tier, fleet = timeline.tier, self._fleet
        now = np.array([tier.usable, fleet.cpu_free[tier.nodes], fleet.memory_free[tier.nodes]])
        least = timeline.least_free(now, self.now_us, self.now_us + hold_us, but)
        return timeline.replicas(shape, least, self.now_us, hold_us)

    def fits_now(self, tier_id: str, shape: Shape, hold_us: int, but: Held | None = None) -> bool:
        tier = self._fleet.tiers[tier_id]
        if not self._fleet.fits_now(tier, shape):
            return False
        room = self.room(tier_id, shape, hold_us, but)
        if room is None:
            return True
        fit = np.minimum(room, self._fleet.fit_per_node(tier, shape))
        return self._fleet.topology.holds(tier, shape, fit)

    def start(self, ask: Ask, replicas: tuple[ReplicaPlacement, ...]) -> None:
        self._starts.append((ask, replicas))
        for timeline in self._tiers.values():
            self._enter(timeline, ask, replicas)

    def _enter(self, timeline: TierTimeline, ask: Ask, replicas: tuple[ReplicaPlacement, ...]) -> None:
        for replica in replicas:
            row = int(timeline.row_of[self._fleet.node_index[replica.node_id]])
            if row >= 0:
                here = replica.tier_id == timeline.tier.tier_id
                gpus = len(replica.gpu_ids) if here and replica.slots == WHOLE else 0
                timeline.add_start(row, gpus, replica.cpu_m, replica.memory_mib, ask, self.now_us)
                if here and replica.slots < WHOLE:
                    timeline.add_share(row, replica.gpu_ids[0], ask, self.now_us)

    def earliest(self, tier_id: str, ask: Ask) -> int | None:
        return self.tier(tier_id).earliest(ask.shape, ask.hold_us, self.now_us)

    def reserve(self, tier_id: str, ask: Ask, start_us: int) -> Held:
        """Keep the nodes that hold most of the gang, then those busiest until then, then with least to spare."""
        timeline = self.tier(tier_id)
        fit = timeline.fit(ask.shape, start_us, ask.hold_us)
        fit = self._fleet.topology.narrow(timeline.tier, ask.shape, fit)
        wanted = np.minimum(fit, ask.shape.replicas)
        spare = timeline.free_at(start_us)[_GPUS] - timeline.whole_gpus(ask.shape, wanted)
        rows, counts, left = [], [], ask.shape.replicas
        for row in np.lexsort((spare, timeline.tier.usable, -wanted)):
            if not left:
                break
            count = min(int(fit[row]), left)
            rows.append(int(timeline.tier.nodes[row]))
            counts.append(count)
            left -= count
        replicas = _array(counts)
        gpus = timeline.whole_gpus(ask.shape, replicas)
        end_us = start_us + run_on(self._fleet, tier_id, ask)
        held = Held(ask, tier_id, start_us, end_us, _array(rows), replicas, gpus)
        self.held[ask.id] = held
        for other in self._tiers.values():
            if other.touches(held):
                other.add_reservation(held)
        return held

    def adopt(self, other: "Timeline") -> None:
        """The starts and reservations of a timeline that this one takes over from."""
        self._starts, self.held, self._known = list(other._starts), dict(other.held), other._known

    def cancel(self, workload_id: str) -> None:
        held = self.held.pop(workload_id)
        for timeline in self._tiers.values():
            if held in timeline.held:
                timeline.cancel(held)

    def in_the_way(self, tier_id: str, ask: Ask) -> list[Held]:
        """The reservations that a start now would delay, first start first."""
        timeline = self.tier(tier_id)
        could = set(timeline.tier.nodes[self._fleet.fit_per_node(timeline.tier, ask.shape) > 0].tolist())
        found = [
            held
            for held in timeline.held
            if held.ask is not ask
            and held.start_us < self.now_us + ask.hold_us
            and not could.isdisjoint(held.nodes.tolist())
        ]
        return sorted(found, key=lambda held: (held.start_us, held.ask.id))

    def reservations(self) -> tuple[Reservation, ...]:
        return tuple(
            Reservation(
                held.ask.id,
                held.tier_id,
                held.start_us,
                tuple(
                    (self._fleet.nodes[node].id, count)
                    for node, count in zip(held.nodes.tolist(), held.replicas.tolist(), strict=True)
                ),
            )
            for held in self.held.values()
        )


def _whole_gpus(live: Live, tier: TierNodes) -> int:
    return live.units // tier.units if live.slots == WHOLE else 0


def _array(values: Iterable[int]) -> Ints:
    return np.fromiter(values, dtype=np.int64)
