"""What a commit knows once it holds its rows locked, counted down as placings are taken.

Order of locks, here and everywhere: nodes by id, then workloads by id, then allocations. Ids are text: the plan
has them so, and thousands of rows pass through here.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuyard.core.money import SLOTS_PER_GPU
from scheduling.engine.decisions import ReplicaPlacement
from scheduling.loader_fleet import unschedulable_reason
from scheduling.rows import rows_read

Piece = tuple[int, int]
WHOLE_CARD = "{[0,1000)}"
RENDEZVOUS = "rendezvous"  # the port by which the ranks of a gang find one another


@dataclass(slots=True)
class Room:
    """A locked node: what is left beside work and claims, and beside `leaving_…`, what stopping work will give back."""

    name: str
    epoch: int
    is_open: bool
    cpu_m: int
    memory_mib: int
    leaving_cpu_m: int
    leaving_memory_mib: int
    port_low: int
    port_high: int


@dataclass(frozen=True, slots=True)
class Subject:
    """A locked workload. `ports`: (name, health path) of those it declares."""

    id: str
    company_id: str
    team_id: str
    label: str
    state: str
    spec_id: str
    ports: tuple[tuple[str, str], ...]
    grace_s: int
    band: int


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU or MIG instance that is not retired."""

    card: str
    is_instance: int
    tier_id: str
    compute_slices: int
    card_slices: int


_NODES = """
SELECT id::text, name, epoch, state, draining, cordoned, cpu_total_m - cpu_used_m, memory_total_mib - memory_used_mib,
  port_low, port_high
FROM fleet_node WHERE id = ANY(%(ids)s::uuid[]) ORDER BY id FOR NO KEY UPDATE
"""
_PROMISED = """
SELECT node_id::text, state, sum(cpu_m)::bigint, sum(memory_mib)::bigint FROM scheduling_replica
WHERE node_id = ANY(%(ids)s::uuid[]) AND state IN ('claiming', 'stopping') GROUP BY 1, 2
"""


def rooms_lock(node_ids: Iterable[str]) -> dict[str, Room]:
    """Locks the nodes and tells what is left of them."""
    ids = sorted(set(node_ids))
    rooms = {
        key: Room(
            name, epoch, unschedulable_reason(state, draining, cordoned) is None, cpu, memory, 0, 0, low, high
        )
        for key, name, epoch, state, draining, cordoned, cpu, memory, low, high in rows_read(_NODES, ids=ids)
    }
    for key, state, cpu_m, memory_mib in rows_read(_PROMISED, ids=ids):
        room = rooms[key]
        if state == "claiming":
            room.cpu_m -= cpu_m
            room.memory_mib -= memory_mib
        else:
            room.leaving_cpu_m += cpu_m
            room.leaving_memory_mib += memory_mib
    return rooms


_WORKLOADS = """
SELECT w.id::text, w.company_id::text, w.team_id::text, w.name || ' ' || w.public_id, w.state, w.spec_id::text,
  s.document->>'ports', (s.document->>'grace_s')::int, w.band
FROM scheduling_workload w JOIN scheduling_workloadspec s ON s.id = w.spec_id
WHERE w.id = ANY(%(ids)s::uuid[]) ORDER BY w.id FOR NO KEY UPDATE OF w
"""


def subjects_lock(workload_ids: Iterable[str]) -> dict[str, Subject]:
    """Locks the workloads, whatever their state."""
    return {
        key: Subject(key, company, team, label, state, spec, _ports(ports), grace_s or 0, band)
        for key, company, team, label, state, spec, ports, grace_s, band in rows_read(
            _WORKLOADS, ids=sorted(set(workload_ids))
        )
    }


def _ports(document: str | None) -> tuple[tuple[str, str], ...]:
    if document is None or document == "[]":
        return ()
    return tuple((port["name"], port.get("health_path") or "") for port in json.loads(document) or ())


_CARDS = """
SELECT id::text, card::text, is_instance, tier_id::text, compute_slices, card_slices FROM fleet_gpu
WHERE id = ANY(%(ids)s::uuid[]) AND retired_at IS NULL
"""


def cards_read(gpu_ids: Iterable[str]) -> dict[str, Card]:
    """The GPUs that there (still) are."""
    return {row[0]: Card(*row[1:]) for row in rows_read(_CARDS, ids=list(set(gpu_ids)))}


# --- What is left, as placings are taken ---------------------------------------------------------------------


class Headroom:
    """CPU, memory, ports and the slots of shared cards. What a claim waits for counts as left for claims only."""

    def __init__(
        self, rooms: dict[str, Room], shared_gpu_ids: Iterable[str], ports_on: Iterable[str]
    ) -> None:
        self.rooms = rooms
        self._ports: dict[str, set[int]] = defaultdict(set)
        self._slots = _Slots(shared_gpu_ids)
        if node_ids := sorted(set(ports_on)):
            for node_id, port in rows_read(_LEASES, ids=node_ids):
                self._ports[node_id].add(port)

    def objection(
        self,
        replicas: Sequence[ReplicaPlacement],
        ports_each: int,
        *,
        is_claim: bool,
        checks_epoch: bool = True,
    ) -> str | None:
        """Why the replicas can no longer be placed, as a word; None if they can."""
        need: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        for replica in replicas:
            room = self.rooms.get(replica.node_id)
            if room is None or not room.is_open or (checks_epoch and room.epoch != replica.node_epoch):
                return "node_changed"
            wanted = need[replica.node_id]
            wanted[0] += replica.cpu_m
            wanted[1] += replica.memory_mib
            wanted[2] += ports_each
        for node_id, (cpu_m, memory_mib, ports) in need.items():
            room = self.rooms[node_id]
            cpu_left = room.cpu_m + (room.leaving_cpu_m if is_claim else 0)
            memory_left = room.memory_mib + (room.leaving_memory_mib if is_claim else 0)
            if cpu_m > cpu_left or memory_mib > memory_left:
                return "node_full"
            if ports > len(self._free_ports(node_id, ports)):
                return "no_free_port"
        return None

    def take(self, node_id: str, cpu_m: int, memory_mib: int, ports: int) -> list[int]:
        """Counts a replica in; returns its ports."""
        room = self.rooms[node_id]
        room.cpu_m -= cpu_m
        room.memory_mib -= memory_mib
        chosen = self._free_ports(node_id, ports)
        self._ports[node_id].update(chosen)
        return chosen

    def take_slots(self, gpu_id: str, count: int, *, is_claim: bool) -> str | None:
        """Slots of a card as a multirange; None if there are not so many left."""
        if count == SLOTS_PER_GPU:
            return WHOLE_CARD
        return self._slots.take(gpu_id, count, is_claim=is_claim)

    def leave(self, node_id: str, replica_id: str, cpu_m: int, memory_mib: int) -> None:
        """This replica is to stop in this commit: claims may count on what it holds."""
        if room := self.rooms.get(node_id):
            room.leaving_cpu_m += cpu_m
            room.leaving_memory_mib += memory_mib
        self._slots.leave(replica_id)

    def _free_ports(self, node_id: str, count: int) -> list[int]:
        room, taken = self.rooms[node_id], self._ports[node_id]
        free: list[int] = []
        for port in range(room.port_low, room.port_high + 1 if room.port_high else 0):
            if len(free) == count:
                break
            if port not in taken:
                free.append(port)
        return free


_LEASES = "SELECT node_id::text, port FROM scheduling_portlease WHERE node_id = ANY(%(ids)s::uuid[])"
_SLOTS = """
SELECT gpu_id::text, state, replica_id::text, slots FROM scheduling_allocation
WHERE gpu_id = ANY(%(ids)s::uuid[]) AND state IN ('claimed', 'held', 'stopping', 'unconfirmed')
"""


class _Slots:
    """Which slots of shared cards are free, and which will be when the stopping have left."""

    def __init__(self, gpu_ids: Iterable[str]) -> None:
        ids = sorted(set(gpu_ids))
        self._bound: dict[str, list[Piece]] = {key: [] for key in ids}  # cannot be promised to anybody
        self._leaving: dict[str, list[Piece]] = {key: [] for key in ids}
        self._of_replica: dict[str, list[tuple[str, Piece]]] = defaultdict(list)
        for gpu_id, state, replica_id, slots in rows_read(_SLOTS, ids=ids) if ids else ():
            for piece in ((part.lower, part.upper) for part in slots):
                (self._leaving if state == "stopping" else self._bound)[gpu_id].append(piece)
                if state == "held":
                    self._of_replica[replica_id].append((gpu_id, piece))

    def leave(self, replica_id: str) -> None:
        for gpu_id, piece in self._of_replica.pop(replica_id, ()):
            self._bound[gpu_id].remove(piece)
            self._leaving[gpu_id].append(piece)

    def take(self, gpu_id: str, count: int, *, is_claim: bool) -> str | None:
        """The lowest free ones; a claim takes those that will be left only where the free ones are too few."""
        bound, leaving = self._bound[gpu_id], self._leaving[gpu_id]
        free = _gaps([*bound, *leaving])
        chosen, missing = _first(free, count)
        if missing and is_claim:
            later, missing = _first(_without(_gaps(bound), chosen), missing)
            chosen += later
        if missing:
            return None
        bound.extend(chosen)
        return "{" + ",".join(f"[{low},{high})" for low, high in sorted(chosen)) + "}"


def _gaps(pieces: Iterable[Piece]) -> list[Piece]:
    """What the pieces leave of a card."""
    found, reached = [], 0
    for low, high in sorted(pieces):
        if low > reached:
            found.append((reached, low))
        reached = max(reached, high)
    return [*found, (reached, SLOTS_PER_GPU)] if reached < SLOTS_PER_GPU else found


def _first(free: Iterable[Piece], count: int) -> tuple[list[Piece], int]:
    """The lowest `count` slots of the free ones, and how many are missing."""
    chosen: list[Piece] = []
    for low, high in free:
        if not count:
            break
        size = min(count, high - low)
        chosen.append((low, low + size))
        count -= size
    return chosen, count


def _without(pieces: Iterable[Piece], taken: Iterable[Piece]) -> list[Piece]:
    taken_slots = list(taken)
    return [
        (max(low, gap_low), min(high, gap_high))
        for low, high in pieces
        for gap_low, gap_high in _gaps(taken_slots)
        if max(low, gap_low) < min(high, gap_high)
    ]


def port_names(subject: Subject, replicas: int) -> list[tuple[str, str]]:
    """(name, health path) of each port that a replica needs. A gang needs one to meet at."""
    names: list[tuple[str, str]] = list(subject.ports)
    if replicas > 1:
        names.append((RENDEZVOUS, ""))
    return names
