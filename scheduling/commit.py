"""Commits a plan: one transaction, all or nothing, each decision rechecked against what happened meanwhile.

Order of locks, here and everywhere: nodes by id, then workloads, then allocations. A start gets all its GPUs or none;
a claim is stored together with the stops of those who must leave for it, or neither is. What does not survive is
refused with a reason, and the rest goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from uuid import UUID

from django.db import connection, transaction

from gpuyard.audit.services import Actor, Draft, Subject, event_draft, events_record
from gpuyard.core import clock
from gpuyard.fleet.selectors import fleet_silence
from scheduling import judging
from scheduling.engine.decisions import STOP_CONSOLIDATE, Claim, Grow, Plan, Policy, Start
from scheduling.engine.reasons import grow_reason
from scheduling.evicting import (
    Leaving,
    evictions_store,
    leaving_events,
    leaving_read,
    leaving_store,
    nodes_of,
    stops_by_claim,
)
from scheduling.loader import Loaded
from scheduling.locked import Headroom, cards_read, rooms_lock, subjects_lock
from scheduling.models import SchedulerState
from scheduling.placing import Placer, Placing, Store, attempts_read, counters_move
from scheduling.records import Timings, pass_proof, pass_record
from scheduling.rows import array_text
from scheduling.states import AttemptState, WorkloadState


class Overtaken(Exception):
    """Another pass has committed since this one took its snapshot: its plan is void."""


@dataclass
class Committed:
    """What a commit did. `refused` maps a workload to why its start did not survive the rechecks."""

    pass_number: int
    started: list[UUID] = field(default_factory=list)
    claimed: list[UUID] = field(default_factory=list)
    grown: list[UUID] = field(default_factory=list)
    stopped: list[UUID] = field(default_factory=list)
    refused: dict[UUID, str] = field(default_factory=dict)

    @property
    def actor(self) -> Actor:
        return Actor(label=f"pass {self.pass_number}")


def plan_commit(loaded: Loaded, plan: Plan, timings: Timings) -> Committed:
    """Stores what a plan decided; raises `Overtaken`, having changed nothing, if it comes too late."""
    with ThreadPoolExecutor(max_workers=1) as beside, transaction.atomic():
        done = Committed(pass_number=loaded.pass_number + 1)
        _fence(done.pass_number)
        _look_up_by_index()
        acts = bool(plan.starts or plan.claims or plan.stops or plan.grows)
        # This process mostly waits for the database from here on.
        proof = beside.submit(pass_proof, loaded, plan) if acts else None
        if acts:
            placings, leaving = _Batch(plan, loaded.policy, done).store()
            _account(placings, leaving, done)
        changed = judging.verdicts_store(plan, done.pass_number, done.refused)
        if changed or acts:
            pass_record(
                loaded,
                plan,
                timings,
                started=len(done.started),
                refused=done.refused,
                proof=proof.result() if proof else pass_proof(loaded, plan),
            )
    return done


def _look_up_by_index() -> None:
    """For this transaction, its checks of foreign keys included.

    A connection plans each such check once. One that was planned while the tables were small would read them whole
    for each row of the first large pass.
    """
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")


def _fence(number: int) -> None:
    moved = SchedulerState.objects.filter(pk=1, pass_number=number - 1).update(
        pass_number=number, passed_at=clock.YardNow()
    )
    if not moved:
        raise Overtaken


# --- Preparing and storing ---------------------------------------------------------------------------------------


class _Batch:
    """What one plan places and stops, after the locks: prepared once, stored until all that is left of it holds."""

    def __init__(self, plan: Plan, policy: Policy, done: Committed) -> None:
        self.plan, self.done = plan, done
        self.decided: list[Start | Claim | Grow] = [*plan.starts, *plan.grows, *plan.claims]
        replicas = [replica for one in self.decided for replica in one.replicas]
        rooms = rooms_lock({*(replica.node_id for replica in replicas), *nodes_of(plan.stops)})
        self.subjects = subjects_lock(one.workload_id for one in (*self.decided, *plan.stops))
        self.now: datetime = clock.now()  # after the locks: not before a sync that has been metered
        attempts = attempts_read(self.subjects)
        self.leaving = leaving_read(plan.stops, self.subjects, attempts)
        shared = {gpu_id for replica in replicas if replica.slots < 1000 for gpu_id in replica.gpu_ids}
        self.headroom = Headroom(rooms, shared, self._nodes_with_ports())
        self.placer = Placer(
            subjects=self.subjects,
            attempts=attempts,
            headroom=self.headroom,
            cards=cards_read(gpu_id for replica in replicas for gpu_id in replica.gpu_ids),
            policy=policy,
        )
        self._store = Store(self.placer, done.pass_number, self.now)
        self.needed_by = stops_by_claim(plan.stops, plan.claims)
        self.is_frozen = bool(plan.stops) and fleet_silence(self.now).is_frozen

    def _nodes_with_ports(self) -> Iterable[str]:
        for one in self.decided:
            subject = self.subjects.get(one.workload_id)
            if len(one.replicas) > 1 or isinstance(one, Grow) or (subject and subject.ports):
                yield from (replica.node_id for replica in one.replicas)

    def store(self) -> tuple[list[Placing], list[Leaving]]:
        """Returns what was stored. A gang that comes back short is left out with its stops, and the rest go on."""
        placings = self._prepare()
        while True:
            placings = self._consistent(placings)
            leaving = self._leaving_for(placings)
            savepoint = transaction.savepoint()
            leaving_store(leaving, self.now)
            short = self._store.placings(placings)
            if not short:
                transaction.savepoint_commit(savepoint)
                return placings, leaving
            transaction.savepoint_rollback(savepoint)
            for one in short:
                self._refuse(one.decided, "gpu_taken")
            gone = {id(one) for one in short}
            placings = [one for one in placings if id(one) not in gone]

    def _prepare(self) -> list[Placing]:
        """Starts and growth first: what leaves counts as room for claims only."""
        for one in self.leaving:
            for held in one.replicas if one.attempt.state != AttemptState.CLAIMING else ():
                self.headroom.leave(held.node_id, held.id, held.cpu_m, held.memory_mib)
        grace_s = max((one.victim.grace_s for one in self.leaving), default=0)
        moved = {one.victim.id for one in self.leaving if one.is_whole}
        found = []
        for decided in self.decided:
            objection = self.placer.objection(decided, is_moved=decided.workload_id in moved)
            if objection is None and self.is_frozen and isinstance(decided, Claim):
                objection = "evictions_frozen"
            placing = None if objection else self.placer.place(decided, grace_s=grace_s)
            if placing is None:
                self._refuse(decided, objection or "gpu_taken")
            else:
                found.append(placing)
        return found

    def _refuse(self, decided: Start | Claim | Grow, reason: str) -> None:
        self.done.refused[UUID(decided.workload_id)] = reason

    def _leaving_for(self, placings: Sequence[Placing]) -> list[Leaving]:
        """What must still leave: for a claim that is still there, or for none in particular."""
        kept = {one.subject.id for one in placings if one.is_claim}
        needed = {
            id(stop)
            for place, stop in enumerate(self.plan.stops)
            if not self.needed_by[place]
            or any(self.plan.claims[by].workload_id in kept for by in self.needed_by[place])
        }
        return [] if self.is_frozen else [one for one in self.leaving if id(one.stop) in needed]

    def _consistent(self, placings: list[Placing]) -> list[Placing]:
        """Moved work is moved whole: where its claim fell, what it was to make room for falls too, and vice versa."""
        while True:
            kept = {one.subject.id for one in placings if one.is_claim}
            leaving = {one.victim.id for one in self._leaving_for(placings) if one.is_whole}
            homeless = {
                by
                for place, stop in enumerate(self.plan.stops)
                if stop.reason == STOP_CONSOLIDATE and stop.workload_id not in kept
                for by in self.needed_by[place]
            }
            fallen = {self.plan.claims[by].workload_id for by in homeless} | {
                one.subject.id
                for one in placings
                if one.is_claim
                and one.subject.state != WorkloadState.WAITING
                and one.subject.id not in leaving
            }
            dropped = [one for one in placings if one.is_claim and one.subject.id in fallen]
            if not dropped:
                return placings
            for one in dropped:
                self._refuse(one.decided, "move_incomplete")
            placings = [one for one in placings if not (one.is_claim and one.subject.id in fallen)]


# --- Accounting --------------------------------------------------------------------------------------------------


def _account(placings: Sequence[Placing], leaving: Sequence[Leaving], done: Committed) -> None:
    """Counters, states and events of what was stored."""
    for one in placings:
        kind = {Start: done.started, Claim: done.claimed, Grow: done.grown}[type(one.decided)]
        kind.append(UUID(one.subject.id))
    done.stopped = [UUID(one.victim.id) for one in leaving]
    counters_move(
        (replica.node_id, replica.cpu_m, replica.memory_mib)
        for one in placings
        if not one.is_claim
        for replica in one.decided.replicas
    )
    _workloads_start(done)
    evictions_store(leaving, done.pass_number)
    judging.leaving_verdicts_store([one for one in placings if one.is_claim], leaving, done.pass_number)
    events_record(chain(_placing_events(placings, done), leaving_events(leaving, done.actor)))


_START = """
UPDATE scheduling_workload SET state = 'starting', state_reason = '' WHERE id = ANY(%s::uuid[]) AND state = 'waiting'
"""
_JUDGED = "DELETE FROM scheduling_verdict WHERE workload_id = ANY(%s::uuid[])"


def _workloads_start(done: Committed) -> None:
    """The workloads are locked and were seen waiting, so that this UPDATE finds every one of them."""
    if not done.started:
        return
    started = array_text(done.started)
    with connection.cursor() as cursor:
        cursor.execute(_START, [started])
        assert cursor.rowcount == len(done.started), "a locked workload left the waiting state"
        cursor.execute(_JUDGED, [started])


def _placing_events(placings: Iterable[Placing], done: Committed) -> Iterator[Draft]:
    actor = done.actor
    for one in placings:
        told: dict[str, object] = {"attempt": one.number, "gpus": len(one.pieces)}
        reason = grow_reason(one.decided) if isinstance(one.decided, Grow) else ""
        if isinstance(one.decided, Grow):
            action, old, told = "workload.grow", None, {**told, "replicas": len(one.replicas)}
        elif isinstance(one.decided, Claim):
            action, old, told = "workload.claim", None, {**told, "borrowed": one.decided.borrowed}
        else:
            action, old = "workload.start", {"state": WorkloadState.WAITING}
            told = {"state": WorkloadState.STARTING, **told, "borrowed": one.decided.borrowed}
        yield event_draft(
            actor=actor,
            company_id=one.subject.company_id,
            action=action,
            subject=Subject("workload", one.subject.id, one.subject.label, one.subject.team_id),
            old=old,
            new=told,
            reason=reason,
        )
