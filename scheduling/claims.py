"""Claims: starts on GPUs that others must leave first. They begin when all of a gang's GPUs have been left, or end.

A workload waits while its attempt claims. Locks: nodes, then workloads, then allocations; while they are held nobody
can leave or join a GPU of the gang.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, connection, transaction

from gpuyard.audit.services import Actor, Subject, event_draft, events_record
from gpuyard.core import clock
from scheduling.engine.decisions import ReplicaPlacement
from scheduling.ledger import claims_drop
from scheduling.locked import Headroom, port_names, rooms_lock, subjects_lock
from scheduling.locked import Subject as Locked
from scheduling.models import Attempt, Replica, Verdict
from scheduling.outcomes import EndReason
from scheduling.placing import counters_move, port_rows, ports_store
from scheduling.rows import rows_read
from scheduling.states import AttemptState, ReplicaState, WorkloadState
from scheduling.transitions import By, attempt_move, replica_move

PASS = Actor("pass")


@dataclass
class _Gang:
    """A claiming attempt and its replicas."""

    attempt_id: str
    workload_id: str
    number: int
    is_left: bool
    is_expired: bool
    replicas: list[tuple[str, int, str, int, int]] = field(
        default_factory=list
    )  # id, index, node, CPU, memory

    @property
    def placements(self) -> list[ReplicaPlacement]:
        return [
            ReplicaPlacement(index, node_id, 0, (), cpu_m=cpu_m, memory_mib=memory_mib)
            for _key, index, node_id, cpu_m, memory_mib in self.replicas
        ]


# Left: nobody is on their slots any more, nor on a card that the gang takes in another way (whole against instances,
# shares of another team).
_CLAIMING = """
SELECT t.id::text, t.workload_id::text, t.number,
  NOT EXISTS (
    SELECT 1 FROM scheduling_allocation c JOIN scheduling_allocation h ON h.card = c.card
      AND h.state IN ('held', 'stopping', 'unconfirmed')
      AND (h.gpu_id = c.gpu_id AND h.slots && c.slots OR h.is_instance <> c.is_instance OR h.scope <> c.scope)
    WHERE c.attempt_id = t.id AND c.state = 'claimed'),
  EXISTS (SELECT 1 FROM scheduling_allocation c
          WHERE c.attempt_id = t.id AND c.state = 'claimed' AND c.expires_at <= yard_now())
FROM scheduling_attempt t WHERE t.state = 'claiming' ORDER BY t.created_at, t.id
"""
_REPLICAS = """
SELECT attempt_id::text, id::text, index, node_id::text, cpu_m, memory_mib FROM scheduling_replica
WHERE attempt_id = ANY(%(ids)s::uuid[]) AND state = 'claiming' ORDER BY index
"""


@transaction.atomic
def claims_turn() -> list[UUID]:
    """Starts every claim whose GPUs have been left, ends the expired; returns the workloads that started."""
    gangs = [gang for gang in _gangs() if gang.is_left or gang.is_expired]
    if not gangs:
        return []
    rooms = rooms_lock(node_id for gang in gangs for _key, _index, node_id, _cpu, _memory in gang.replicas)
    subjects = subjects_lock(gang.workload_id for gang in gangs)
    wanted = {gang.attempt_id for gang in gangs}
    gangs = [gang for gang in _gangs() if gang.attempt_id in wanted]  # again, now that nobody moves them
    for gang in gangs:
        for _key, _index, node_id, cpu_m, memory_mib in gang.replicas:
            rooms[node_id].cpu_m += cpu_m  # they are counted as promised, to themselves
            rooms[node_id].memory_mib += memory_mib
    headroom = Headroom(rooms, (), (row[2] for gang in gangs for row in gang.replicas))
    ready, gone = [], []
    for gang in gangs:
        subject = subjects[gang.workload_id]
        if gang.is_left and subject.state == WorkloadState.WAITING:
            names = port_names(subject, len(gang.replicas))
            objection = headroom.objection(gang.placements, len(names), is_claim=False, checks_epoch=False)
            if objection is None:
                ready.append((gang, _ports_take(gang, headroom, names)))
                continue
            if objection == "node_changed":
                gone.append(gang)
                continue
        if gang.is_expired:
            gone.append(gang)
    started = _start(ready)
    _tell(started, subjects)
    now = clock.now()
    for gang in gone:
        reason = EndReason.CLAIM_EXPIRED if gang.is_expired else EndReason.NODE_CHANGED
        claims_end([UUID(gang.attempt_id)], now, reason)
    return [UUID(gang.workload_id) for gang in started]


def _gangs() -> list[_Gang]:
    found = {row[0]: _Gang(*row) for row in rows_read(_CLAIMING)}
    for attempt_id, *replica in rows_read(_REPLICAS, ids=list(found)) if found else ():
        found[attempt_id].replicas.append(tuple(replica))
    return list(found.values())


_Ports = list[tuple[Any, ...]]


def _ports_take(gang: _Gang, headroom: Headroom, names: Sequence[tuple[str, str]]) -> _Ports:
    rows: _Ports = []
    for key, _index, node_id, cpu_m, memory_mib in gang.replicas:
        ports = headroom.take(node_id, cpu_m, memory_mib, len(names))
        rows += port_rows(key, node_id, names, ports)
    return rows


# --- Starting ----------------------------------------------------------------------------------------------------


def _start(ready: Sequence[tuple[_Gang, _Ports]]) -> list[_Gang]:
    """All at once; if the ledger refuses that, one gang at a time, so that one refused keeps no other."""
    try:
        with transaction.atomic():
            _move(ready)
        return [gang for gang, _ports in ready]
    except IntegrityError:
        started = []
        for one in ready:
            try:
                with transaction.atomic():
                    _move([one])
                started.append(one[0])
            except IntegrityError:
                continue  # not yet: the next pass tries again, until the claim expires
        return started


_HOLD = """
UPDATE scheduling_allocation SET state = 'held', claimed_at = lower(span), span = tstzrange(yard_now(), NULL)
WHERE attempt_id = ANY(%s::uuid[]) AND state = 'claimed'
"""
_ASSIGN = "UPDATE scheduling_replica SET state = 'assigned' WHERE attempt_id = ANY(%s::uuid[]) AND state = 'claiming'"
_BEGIN = "UPDATE scheduling_attempt SET state = 'starting' WHERE id = ANY(%s::uuid[]) AND state = 'claiming'"
_GO = """
UPDATE scheduling_workload SET state = 'starting', state_reason = '' WHERE id = ANY(%s::uuid[]) AND state = 'waiting'
"""


def _move(ready: Sequence[tuple[_Gang, _Ports]]) -> None:
    if not ready:
        return
    attempts = [gang.attempt_id for gang, _ports in ready]
    workloads = [UUID(gang.workload_id) for gang, _ports in ready]
    with connection.cursor() as cursor:
        cursor.execute(_HOLD, [attempts])
        cursor.execute(_ASSIGN, [attempts])
        cursor.execute(_BEGIN, [attempts])
        cursor.execute(_GO, [workloads])
    counters_move((row[2], row[3], row[4]) for gang, _ports in ready for row in gang.replicas)
    ports_store([row for _gang, ports in ready for row in ports])
    Verdict.objects.filter(workload__in=workloads).delete()


def _tell(started: Sequence[_Gang], subjects: Mapping[str, Locked]) -> None:
    drafts = []
    for gang in started:
        subject = subjects[gang.workload_id]
        drafts.append(
            event_draft(
                company_id=subject.company_id,
                actor=PASS,
                action="workload.start",
                subject=Subject("workload", gang.workload_id, subject.label, subject.team_id),
                old={"state": WorkloadState.WAITING},
                new={"state": WorkloadState.STARTING, "attempt": gang.number, "claimed": True},
            )
        )
    events_record(drafts)


# --- Ending ------------------------------------------------------------------------------------------------------


def claims_end(attempt_ids: Sequence[UUID], now: datetime, reason: EndReason, actor: By = PASS) -> None:
    """Gives up the promises of whole gangs. Their workloads stay as they are: waiting, unless the caller moves them."""
    if not attempt_ids:
        return
    claims_drop(attempt_ids, now)
    attempts = Attempt.objects.filter(pk__in=attempt_ids, state=AttemptState.CLAIMING).select_related(
        "workload"
    )
    for attempt in attempts.order_by("id"):
        for replica in attempt.replicas.select_related("node").filter(state=ReplicaState.CLAIMING):
            replica_move(
                attempt.workload, replica, ReplicaState.EXITED, actor=actor, ended_at=now, exit_reason=reason
            )
        attempt_move(
            attempt.workload, attempt, AttemptState.ENDED, actor=actor, ended_at=now, end_reason=reason
        )


def claims_end_of(workload_ids: Sequence[UUID], now: datetime, reason: EndReason, actor: By = PASS) -> None:
    """Claims die with their owners. The caller holds the workloads' rows locked."""
    claiming = Attempt.objects.filter(workload__in=workload_ids, state=AttemptState.CLAIMING)
    claims_end(list(claiming.values_list("pk", flat=True)), now, reason, actor)


def claims_end_on(node_id: UUID, now: datetime) -> None:
    """A promise on a lost node is void, for the whole gang. The caller holds the node's row locked."""
    gangs = Replica.objects.filter(
        node=node_id, state=ReplicaState.CLAIMING, attempt__state=AttemptState.CLAIMING
    )
    claims_end(sorted(set(gangs.values_list("attempt_id", flat=True))), now, EndReason.NODE_LOST)
