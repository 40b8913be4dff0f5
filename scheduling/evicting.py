"""Taking work back, as a plan decided: whole workloads, or some replicas of an elastic one that goes on.

All of it is bulk: a return may stop thousands. The caller holds the nodes and the workloads locked; agents hear of it
with their next sync after the commit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection
from django.utils.translation import gettext as _

from gpuyard.audit.services import Actor, Draft, Subject, event_draft
from gpuyard.core import ids
from gpuyard.core.bulk import json_text, rows_insert
from scheduling import claims
from scheduling.engine.decisions import (
    STOP_CONSOLIDATE,
    STOP_PREEMPT,
    STOP_RETURN,
    Claim,
    Stop,
)
from scheduling.ledger import allocations_stopping
from scheduling.locked import Subject as Victim
from scheduling.models import Eviction
from scheduling.outcomes import EndReason
from scheduling.placing import LiveAttempt
from scheduling.rows import rows_read
from scheduling.states import AttemptState, ReplicaState, WorkloadState

_LEAVES_FROM = ("assigned", "starting", "running", "lost")


@dataclass(frozen=True, slots=True)
class Held:
    """A replica that a stop reaches. `units`: of all its GPUs."""

    id: str
    index: int
    state: str
    node_id: str
    node_name: str
    cpu_m: int
    memory_mib: int
    units: int


@dataclass(frozen=True)
class Leaving:
    """One stop of the plan, and what it stops. A claiming attempt has its claims dropped instead."""

    stop: Stop
    victim: Victim
    attempt: LiveAttempt
    replicas: tuple[Held, ...]

    @property
    def is_whole(self) -> bool:
        return self.stop.replicas is None


def reason_text(reason: str) -> str:
    """What its owner reads beside the state. It names nobody: who gained may be of another company."""
    return {
        STOP_RETURN: _("Taken back: its GPUs are guaranteed to others. It waits again, and keeps its place."),
        STOP_PREEMPT: _("Taken back for work that goes first. It waits again, and keeps its place."),
        STOP_CONSOLIDATE: _("Moved to other GPUs, so that larger work fits."),
    }.get(reason, _("Taken back. It waits again, and keeps its place."))


# --- What a stop reaches ---------------------------------------------------------------------------------------

_HELD = """
SELECT t.id::text, r.id::text, r.index, r.state, r.node_id::text, n.name, r.cpu_m, r.memory_mib,
  coalesce((SELECT sum(a.units) FROM scheduling_allocation a
            WHERE a.replica_id = r.id AND a.state IN ('claimed', 'held', 'stopping', 'unconfirmed')), 0)::bigint
FROM scheduling_attempt t JOIN scheduling_replica r ON r.attempt_id = t.id JOIN fleet_node n ON n.id = r.node_id
WHERE t.id = ANY(%(ids)s::uuid[]) AND r.state <> 'exited' ORDER BY r.attempt_id, r.index, r.id
"""
_WHERE = """
SELECT DISTINCT r.node_id::text FROM scheduling_attempt t JOIN scheduling_replica r ON r.attempt_id = t.id
WHERE t.workload_id = ANY(%(ids)s::uuid[]) AND t.state IN ('claiming', 'starting', 'running')
  AND r.state <> 'exited'
"""


def nodes_of(stops: Iterable[Stop]) -> set[str]:
    """Where the victims are: their nodes are to be locked first."""
    workloads = sorted({stop.workload_id for stop in stops})
    return {row[0] for row in rows_read(_WHERE, ids=workloads)} if workloads else set()


def leaving_read(
    stops: Sequence[Stop], victims: Mapping[str, Victim], attempts: Iterable[LiveAttempt]
) -> list[Leaving]:
    """What the stops reach now. One whose victim has ended, or stops already, has nothing left to do."""
    live = {one.workload_id: one for one in attempts if one.state != AttemptState.STOPPING}
    wanted = [(stop, live[stop.workload_id]) for stop in stops if stop.workload_id in live]
    held: dict[str, list[Held]] = defaultdict(list)
    for attempt_id, *rest in (
        rows_read(_HELD, ids=[attempt.id for _stop, attempt in wanted]) if wanted else ()
    ):
        held[attempt_id].append(Held(*rest))
    found = []
    for stop, attempt in wanted:
        replicas = tuple(
            one
            for one in held[attempt.id]
            if one.state in (*_LEAVES_FROM, "claiming")
            and (stop.replicas is None or one.index in stop.replicas)
        )
        if replicas:
            found.append(Leaving(stop, victims[stop.workload_id], attempt, replicas))
    return found


def stops_by_claim(stops: Sequence[Stop], taken: Sequence[Claim]) -> dict[int, list[int]]:
    """For each stop (its place in the plan) the claims (their places) that need it; none: it stands alone.

    A victim of a claim may have been named for another one: then both need that stop.
    """
    places = {claim.workload_id: place for place, claim in enumerate(taken)}
    found: dict[int, list[int]] = {}
    own: set[tuple[int, str]] = set()
    for place, stop in enumerate(stops):
        by = places.get(stop.for_workload_id or "")
        found[place] = [] if by is None else [by]
        if by is not None:
            own.add((by, stop.workload_id))
    by_victim: dict[str, list[int]] = defaultdict(list)
    for place, stop in enumerate(stops):
        by_victim[stop.workload_id].append(place)
    for by, claim in enumerate(taken):
        for victim in claim.victims:
            for place in by_victim[victim] if (by, victim) not in own else ():
                found[place].append(by)
    return found


# --- Storing it ------------------------------------------------------------------------------------------------


def leaving_store(leaving: Sequence[Leaving], now: datetime) -> None:
    """Turns what leaves to `stopping`, inside the savepoint of the claims that need it."""
    placed = [one for one in leaving if one.attempt.state != AttemptState.CLAIMING]
    whole = [one for one in placed if one.is_whole]
    _attempts_stop(whole)
    for one in placed:
        if not one.is_whole:
            _replicas_stop([held.id for held in one.replicas], released=one.stop.reason)
    _replicas_stop([held.id for one in whole for held in one.replicas], released="")
    allocations_stopping([UUID(held.id) for one in placed for held in one.replicas], now)
    _workloads_stop(whole)
    promised = [UUID(one.attempt.id) for one in leaving if one.attempt.state == AttemptState.CLAIMING]
    claims.claims_end(promised, now, EndReason.EVICTED)


def _attempts_stop(whole: Sequence[Leaving]) -> None:
    _execute(
        "UPDATE scheduling_attempt SET state = 'stopping', end_reason = %s WHERE id = ANY(%s::uuid[])",
        EndReason.EVICTED.value,
        [one.attempt.id for one in whole],
    )


def _replicas_stop(replica_ids: Sequence[str], *, released: str) -> None:
    """Those of a lost node stay lost, and come back as stopping."""
    _execute(
        "UPDATE scheduling_replica SET released = %s, state = CASE state WHEN 'lost' THEN state ELSE 'stopping' END"
        " WHERE id = ANY(%s::uuid[])",
        released,
        list(replica_ids),
    )


def _workloads_stop(whole: Sequence[Leaving]) -> None:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for one in whole:
        by_reason[one.stop.reason].append(one.victim.id)
    for reason, workload_ids in by_reason.items():
        _execute(
            "UPDATE scheduling_workload SET state = 'stopping', state_reason = %s WHERE id = ANY(%s::uuid[])",
            reason_text(reason)[:400],
            workload_ids,
        )


def _execute(statement: str, *values: Any) -> None:
    if values[-1]:
        with connection.cursor() as cursor:
            cursor.execute(statement, values)


# --- Telling it ------------------------------------------------------------------------------------------------

_EVICTION = (
    "id",
    "company",
    "team",
    "workload",
    "attempt",
    "pass_number",
    "reason",
    "gained_by",
    "replicas",
    "units",
    "lost_gpu_s",
    "why",
)


def evictions_store(leaving: Sequence[Leaving], pass_number: int) -> None:
    """What budgets, history and pages read."""
    rows_insert(Eviction, _EVICTION, [_eviction_row(one, pass_number) for one in leaving])


def _eviction_row(one: Leaving, pass_number: int) -> tuple[Any, ...]:
    stop, victim = one.stop, one.victim
    return (
        str(ids.uuid7()),
        victim.company_id,
        victim.team_id,
        victim.id,
        one.attempt.id,
        pass_number,
        stop.reason,
        stop.for_workload_id,
        None if stop.replicas is None else sorted(held.index for held in one.replicas),
        sum(held.units for held in one.replicas),
        max(0, int(stop.why.get("lost_gpu_s") or 0)),
        json_text(dict(stop.why)),
    )


def leaving_events(leaving: Iterable[Leaving], actor: Actor) -> list[Draft]:
    """One for each row that moved. Who gained stands in the eviction's row only, for those who may read it."""
    found = []
    for one in leaving:
        subject = Subject("workload", one.victim.id, one.victim.label, one.victim.team_id)
        company_id = UUID(one.victim.company_id)
        told = {"attempt": one.attempt.number, "why": one.stop.reason}
        if not one.is_whole:
            indexes = sorted(held.index for held in one.replicas)
            found.append(
                _event(company_id, actor, "workload.shrink", subject, {}, {**told, "replicas": indexes})
            )
        elif one.attempt.state == AttemptState.CLAIMING:
            found.append(_event(company_id, actor, "workload.unclaim", subject, {}, told))
            continue
        else:
            new = {"state": WorkloadState.STOPPING, **told}
            old = {"state": one.victim.state}
            text = reason_text(one.stop.reason)
            found.append(_event(company_id, actor, "workload.stop", subject, old, new, text))
            found.append(_attempt_event(one, company_id, actor))
        found += _replica_events(one, company_id, actor)
    return found


def _attempt_event(one: Leaving, company_id: UUID, actor: Actor) -> Draft:
    subject = Subject(
        "attempt",
        one.attempt.id,
        f"attempt {one.attempt.number} of {one.victim.id}",
        one.victim.team_id,
    )
    new = {"state": AttemptState.STOPPING, "number": one.attempt.number, "end_reason": EndReason.EVICTED}
    return _event(company_id, actor, "attempt.stopping", subject, {"state": one.attempt.state}, new)


def _replica_events(one: Leaving, company_id: UUID, actor: Actor) -> Iterable[Draft]:
    for held in one.replicas:
        if held.state != ReplicaState.LOST:
            subject = Subject(
                "replica", held.id, f"replica {held.index} of {one.attempt.id}", one.victim.team_id
            )
            new = {"state": ReplicaState.STOPPING, "index": held.index, "node": held.node_name}
            yield _event(company_id, actor, "replica.stopping", subject, {"state": held.state}, new)


def _event(
    company_id: UUID,
    actor: Actor,
    action: str,
    subject: Subject,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    reason: str = "",
) -> Draft:
    return event_draft(
        company_id=company_id,
        actor=actor,
        action=action,
        subject=subject,
        old=old or None,
        new=new,
        reason=reason,
    )
