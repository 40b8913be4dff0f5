"""Commits a plan: one transaction, all or nothing, each start rechecked against what happened meanwhile.

Order of locks, here and everywhere: nodes by id, then workloads, then allocations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from psycopg.types.json import Jsonb

from gpuyard.audit.services import Actor, event_draft, events_record
from gpuyard.core import clock, ids
from gpuyard.core.bulk import instances_insert
from gpuyard.core.money import SLOTS_PER_GPU, units_for
from gpuyard.fleet.models import Gpu, Node
from scheduling.engine.decisions import Plan, ReplicaPlacement, Start
from scheduling.loader import Loaded, attempt_numbers
from scheduling.loader_fleet import node_unschedulable_reason
from scheduling.models import Attempt, PortLease, Replica, SchedulerState, Verdict, Workload
from scheduling.moments import from_us
from scheduling.records import Timings, pass_record
from scheduling.states import AttemptState, ReplicaState, WorkloadState


class Overtaken(Exception):
    """Another pass has committed since this one took its snapshot: its plan is void."""


@dataclass
class Committed:
    """What a commit did. `refused` maps a workload to why its start did not survive the rechecks."""

    pass_number: int
    started: list[UUID] = field(default_factory=list)
    refused: dict[UUID, str] = field(default_factory=dict)


@dataclass
class _Placed:
    """The rows of one start, ready to be inserted."""

    workload: Workload
    attempt: Attempt
    replicas: list[Replica]
    ports: list[PortLease]
    gpu_ids: list[tuple[Replica, UUID]]  # one for each GPU


def plan_commit(loaded: Loaded, plan: Plan, timings: Timings) -> Committed:
    """Stores a plan's starts and verdicts; raises `Overtaken`, having changed nothing, if it comes too late."""
    with transaction.atomic():
        done = Committed(pass_number=loaded.pass_number + 1)
        _fence(done.pass_number)
        nodes = _nodes_lock(plan.starts)
        workloads = _workloads_lock(plan.starts)
        placed = _place_all(plan.starts, nodes, workloads, done)
        placed = _insert(placed, done)
        _counters_move(placed)
        _workloads_start(placed, done)
        changed = _verdicts_store(plan, done)
        if changed or plan.starts or plan.claims or plan.stops or plan.grows:
            pass_record(loaded, plan, timings, started=len(done.started), refused=done.refused)
    return done


def _fence(number: int) -> None:
    moved = SchedulerState.objects.filter(pk=1, pass_number=number - 1).update(
        pass_number=number, passed_at=clock.YardNow()
    )
    if not moved:
        raise Overtaken


def _nodes_lock(starts: Sequence[Start]) -> dict[UUID, Node]:
    wanted = {UUID(replica.node_id) for start in starts for replica in start.replicas}
    rows = Node.objects.filter(id__in=wanted).order_by("id").select_for_update(no_key=True)
    return {node.id: node for node in rows}


def _workloads_lock(starts: Sequence[Start]) -> dict[UUID, Workload]:
    wanted = [UUID(start.workload_id) for start in starts]
    rows = (
        Workload.objects.filter(id__in=wanted, state=WorkloadState.WAITING)
        .select_related("spec")
        .order_by("id")
        .select_for_update(of=("self",), no_key=True)
    )
    return {workload.id: workload for workload in rows}


# --- Rechecks and rows ------------------------------------------------------------------------------------


class _Headroom:
    """What the locked nodes still have, counted down as starts are placed."""

    def __init__(self, nodes: dict[UUID, Node]) -> None:
        self.nodes = nodes
        self._cpu_m = {node.id: node.cpu_total_m - node.cpu_used_m for node in nodes.values()}
        self._memory_mib = {node.id: node.memory_total_mib - node.memory_used_mib for node in nodes.values()}
        self._taken: dict[UUID, set[int]] = defaultdict(set)
        for node_id, port in PortLease.objects.filter(node__in=nodes).values_list("node_id", "port"):
            self._taken[node_id].add(port)

    def objection(self, start: Start, ports_each: int) -> str | None:
        """Why a start can no longer be stored, as a word; None if it can."""
        need_cpu: dict[UUID, int] = defaultdict(int)
        need_memory: dict[UUID, int] = defaultdict(int)
        need_ports: dict[UUID, int] = defaultdict(int)
        for replica in start.replicas:
            node_id = UUID(replica.node_id)
            node = self.nodes.get(node_id)
            if node is None or node.epoch != replica.node_epoch or node_unschedulable_reason(node):
                return "node_changed"
            need_cpu[node_id] += replica.cpu_m
            need_memory[node_id] += replica.memory_mib
            need_ports[node_id] += ports_each
        for node_id in need_cpu:
            if need_cpu[node_id] > self._cpu_m[node_id] or need_memory[node_id] > self._memory_mib[node_id]:
                return "node_full"
            if need_ports[node_id] > len(self._free_ports(node_id, need_ports[node_id])):
                return "no_free_port"
        return None

    def take(self, replica: ReplicaPlacement, ports: int) -> list[int]:
        """Counts a replica in; returns its ports."""
        node_id = UUID(replica.node_id)
        self._cpu_m[node_id] -= replica.cpu_m
        self._memory_mib[node_id] -= replica.memory_mib
        chosen = self._free_ports(node_id, ports)
        self._taken[node_id].update(chosen)
        return chosen

    def _free_ports(self, node_id: UUID, count: int) -> list[int]:
        node = self.nodes[node_id]
        free: list[int] = []
        for port in range(node.port_low, node.port_high + 1 if node.port_high else 0):
            if len(free) == count:
                break
            if port not in self._taken[node_id]:
                free.append(port)
        return free


def _place_all(
    starts: Sequence[Start], nodes: dict[UUID, Node], workloads: dict[UUID, Workload], done: Committed
) -> list[_Placed]:
    headroom = _Headroom(nodes)
    numbers = attempt_numbers(list(workloads))
    tokens = iter(_fencing_tokens(sum(len(start.replicas) for start in starts)))
    placed: list[_Placed] = []
    for start in starts:
        workload_id = UUID(start.workload_id)
        workload = workloads.get(workload_id)
        if workload is None:
            done.refused[workload_id] = "no_longer_waiting"
            continue
        names = _port_names(workload, len(start.replicas))
        if objection := headroom.objection(start, len(names)):
            done.refused[workload_id] = objection
            continue
        attempt = Attempt(
            workload=workload,
            number=numbers[workload_id],
            state=AttemptState.STARTING,
            pass_number=done.pass_number,
            tier_id=UUID(start.tier_id),
            borrowed=start.borrowed,
            band=workload.band if start.why_now.get("rule") == "band" else 0,
            why_now=dict(start.why_now),
            why_here=dict(start.why_here),
        )
        rows = _Placed(workload, attempt, [], [], [])
        for replica in start.replicas:
            _replica_rows(rows, replica, names, headroom, next(tokens))
        placed.append(rows)
    return placed


def _port_names(workload: Workload, replicas: int) -> list[tuple[str, str]]:
    """(name, health path) of each port that a replica needs. A gang needs one to meet at."""
    assert workload.spec is not None
    names = [
        (port["name"], port.get("health_path") or "") for port in workload.spec.document.get("ports") or []
    ]
    if replicas > 1:
        names.append(("rendezvous", ""))
    return names


def _replica_rows(
    rows: _Placed, placement: ReplicaPlacement, names: list[tuple[str, str]], headroom: _Headroom, token: int
) -> None:
    replica = Replica(
        attempt=rows.attempt,
        index=placement.index,
        spec=rows.workload.spec,
        node_id=UUID(placement.node_id),
        cpu_m=placement.cpu_m,
        memory_mib=placement.memory_mib,
        state=ReplicaState.ASSIGNED,
        fencing_token=token,
    )
    rows.replicas.append(replica)
    ports = headroom.take(placement, len(names))
    for (name, health_path), port in zip(names, ports, strict=True):
        rows.ports.append(
            PortLease(node_id=replica.node_id, port=port, replica=replica, name=name, health_path=health_path)
        )
    rows.gpu_ids.extend((replica, UUID(gpu_id)) for gpu_id in placement.gpu_ids)


def _fencing_tokens(count: int) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('scheduling_fencing_token') FROM generate_series(1, %s)", [count])
        return [row[0] for row in cursor.fetchall()]


# --- Inserting ---------------------------------------------------------------------------------------------

_ALLOCATE = """
INSERT INTO scheduling_allocation (id, company_id, team_id, workload_id, attempt_id, replica_id, gpu_id, card,
    is_instance, tier_id, slots, units, span, state)
SELECT id, company_id, team_id, workload_id, attempt_id, replica_id, gpu_id, card, is_instance, tier_id,
    int4multirange(int4range(0, %(slots)s)), units, tstzrange(yard_now(), NULL), 'held'
FROM unnest(%(id)s::uuid[], %(company)s::uuid[], %(team)s::uuid[], %(workload)s::uuid[],
            %(attempt)s::uuid[], %(replica)s::uuid[], %(gpu)s::uuid[], %(card)s::uuid[],
            %(is_instance)s::smallint[], %(tier)s::uuid[], %(units)s::int[])
  AS rows (id, company_id, team_id, workload_id, attempt_id, replica_id, gpu_id, card,
           is_instance, tier_id, units)
ON CONFLICT DO NOTHING RETURNING attempt_id
"""


def _insert(placed: list[_Placed], done: Committed) -> list[_Placed]:
    """Inserts all rows; a gang that did not get all its GPUs gets none, and the rest goes on without it."""
    gpus = {gpu.id: gpu for gpu in Gpu.objects.filter(id__in=[g for rows in placed for _, g in rows.gpu_ids])}
    while placed:
        savepoint = transaction.savepoint()
        short = _insert_once(placed, gpus)
        if not short:
            transaction.savepoint_commit(savepoint)
            return placed
        transaction.savepoint_rollback(savepoint)
        for rows in placed:
            if rows.attempt.id in short:
                done.refused[rows.workload.id] = "gpu_taken"
        placed = [rows for rows in placed if rows.attempt.id not in short]
    return placed


def _insert_once(placed: list[_Placed], gpus: dict[UUID, Gpu]) -> set[UUID]:
    """Returns the attempts that did not get all their GPUs."""
    instances_insert([rows.attempt for rows in placed])
    instances_insert([replica for rows in placed for replica in rows.replicas])
    instances_insert([port for rows in placed for port in rows.ports])
    wanted = [(rows, replica, gpus[gpu_id]) for rows in placed for replica, gpu_id in rows.gpu_ids]
    values: dict[str, Any] = {
        "slots": SLOTS_PER_GPU,
        "id": [ids.uuid7() for _ in wanted],
        "company": [rows.workload.company_id for rows, _, _ in wanted],
        "team": [rows.workload.team_id for rows, _, _ in wanted],
        "workload": [rows.workload.id for rows, _, _ in wanted],
        "attempt": [rows.attempt.id for rows, _, _ in wanted],
        "replica": [replica.id for _, replica, _ in wanted],
        "gpu": [gpu.id for _, _, gpu in wanted],
        "card": [gpu.card for _, _, gpu in wanted],
        "is_instance": [gpu.is_instance for _, _, gpu in wanted],
        "tier": [gpu.tier_id for _, _, gpu in wanted],
        "units": [gpu_units(gpu) for _, _, gpu in wanted],
    }
    with connection.cursor() as cursor:
        cursor.execute(_ALLOCATE, values)
        stored: dict[UUID, int] = defaultdict(int)
        for (attempt_id,) in cursor.fetchall():
            stored[attempt_id] += 1
    return {rows.attempt.id for rows in placed if stored[rows.attempt.id] < len(rows.gpu_ids)}


def gpu_units(gpu: Gpu) -> int:
    """What holding all of a GPU or MIG instance counts for, in 1/7000 GPU."""
    return units_for(compute_slices=gpu.compute_slices, card_slices=gpu.card_slices)


def _counters_move(placed: Iterable[_Placed]) -> None:
    used: dict[UUID, list[int]] = defaultdict(lambda: [0, 0])
    for rows in placed:
        for replica in rows.replicas:
            used[replica.node_id][0] += replica.cpu_m
            used[replica.node_id][1] += replica.memory_mib
    if not used:
        return
    node_ids = sorted(used)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE fleet_node SET cpu_used_m = cpu_used_m + taken.cpu,"
            " memory_used_mib = memory_used_mib + taken.memory"
            " FROM unnest(%s::uuid[], %s::int[], %s::bigint[]) AS taken (id, cpu, memory)"
            " WHERE fleet_node.id = taken.id",
            [node_ids, [used[n][0] for n in node_ids], [used[n][1] for n in node_ids]],
        )


def _workloads_start(placed: Sequence[_Placed], done: Committed) -> None:
    """The workloads are locked and were seen waiting, so that this UPDATE finds every one of them."""
    done.started = [rows.workload.id for rows in placed]
    if not placed:
        return
    moved = Workload.objects.filter(id__in=done.started, state=WorkloadState.WAITING).update(
        state=WorkloadState.STARTING, state_reason=""
    )
    assert moved == len(placed), "a locked workload left the waiting state"
    events_record(
        [
            event_draft(
                actor=Actor(label=f"pass {done.pass_number}"),
                company_id=rows.workload.company_id,
                action="workload.start",
                subject=rows.workload,
                old={"state": WorkloadState.WAITING},
                new={
                    "state": WorkloadState.STARTING,
                    "attempt": rows.attempt.number,
                    "borrowed": rows.attempt.borrowed,
                    "gpus": len(rows.gpu_ids),
                },
            )
            for rows in placed
        ]
    )


# --- Verdicts ----------------------------------------------------------------------------------------------

_VERDICTS = """
INSERT INTO scheduling_verdict (workload_id, pass_number, position, blockers, smallest_change, eta, eta_basis,
  decided_at)
SELECT waiting.id, %(pass)s, rows.position, rows.blockers, rows.change, rows.eta, rows.basis, yard_now()
FROM unnest(%(workload)s::uuid[], %(position)s::int[], %(blockers)s::jsonb[], %(change)s::jsonb[],
            %(eta)s::timestamptz[], %(basis)s::text[]) AS rows (id, position, blockers, change, eta, basis)
JOIN scheduling_workload waiting ON waiting.id = rows.id AND waiting.state = 'waiting'
ON CONFLICT (workload_id) DO UPDATE SET pass_number = excluded.pass_number, position = excluded.position,
  blockers = excluded.blockers, smallest_change = excluded.smallest_change, eta = excluded.eta,
  eta_basis = excluded.eta_basis, decided_at = excluded.decided_at
WHERE (scheduling_verdict.position, scheduling_verdict.blockers, scheduling_verdict.smallest_change,
       scheduling_verdict.eta, scheduling_verdict.eta_basis)
  IS DISTINCT FROM (excluded.position, excluded.blockers, excluded.smallest_change, excluded.eta,
                    excluded.eta_basis)
"""


def _verdicts_store(plan: Plan, done: Committed) -> int:
    """Writes the verdicts that changed and returns how many; those of started workloads go in this same transaction."""
    Verdict.objects.filter(workload__in=done.started).delete()
    rows = [
        (
            UUID(verdict.workload_id),
            verdict.position,
            [{"code": blocker.code, "data": dict(blocker.data)} for blocker in verdict.blockers],
            dict(verdict.smallest_change) if verdict.smallest_change else None,
            from_us(verdict.eta_us) if verdict.eta_us is not None else None,
            verdict.eta_basis or "",
        )
        for verdict in plan.verdicts
    ]
    rows.extend(
        (workload_id, 0, [{"code": "changed_meanwhile", "data": {"what": reason}}], None, None, "")
        for workload_id, reason in done.refused.items()
    )
    if not rows:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(
            _VERDICTS,
            {
                "pass": done.pass_number,
                "workload": [row[0] for row in rows],
                "position": [row[1] for row in rows],
                "blockers": [Jsonb(row[2]) for row in rows],
                "change": [Jsonb(row[3]) if row[3] else None for row in rows],
                "eta": [row[4] for row in rows],
                "basis": [row[5] for row in rows],
            },
        )
        return int(cursor.rowcount)
