"""What agents report, and stopping: how a placed workload gets from `starting` to its end.

Order of locks: nodes by id, then the workload, then the rest. Two replicas of a gang report through two nodes at
once; the workload's row makes whoever comes second see what the first one wrote.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from gpuyard.audit.services import Actor
from gpuyard.core import clock
from gpuyard.core.errors import NotFound, StaleState
from gpuyard.core.models import User
from gpuyard.core.text import text_shortened
from gpuyard.fleet.models import Node
from scheduling.agents.protocol import ReplicaReport
from scheduling.claims import claims_end_of
from scheduling.ledger import allocations_running, allocations_stopping
from scheduling.models import Attempt, Replica, Workload
from scheduling.outcomes import (
    EndReason,
    Exit,
    ExitReason,
    cause_of,
    cause_text,
    exit_code_of,
    workload_outcome,
)
from scheduling.states import AttemptState, ReplicaState, WorkloadState
from scheduling.transitions import By, attempt_move, replica_end, replica_move, workload_move
from scheduling.wake import wake

_LONGEST_TEXT = 400  # of `Replica.message` and `Workload.state_reason`
_CHECKPOINT_NEWS = timedelta(seconds=5)
_BEFORE_RUNNING = frozenset({ReplicaState.ASSIGNED, ReplicaState.STARTING, ReplicaState.LOST})
_BEFORE_STARTING = frozenset({ReplicaState.ASSIGNED, ReplicaState.LOST})
_STOPPABLE = frozenset({ReplicaState.ASSIGNED, ReplicaState.STARTING, ReplicaState.RUNNING})


# --- One replica -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """Between the last answered sync and now: nothing that an agent reports happened outside of it."""

    last_answered_at: datetime
    now: datetime

    def moment(self, ago_s: float | None) -> datetime:
        """When something `ago_s` ago happened; now, if the agent does not know."""
        at = self.now - timedelta(seconds=ago_s or 0.0)
        return min(max(at, self.last_answered_at), self.now)


def replica_report(*, replica: Replica, report: ReplicaReport, window: Window) -> bool:
    """Applies a report; returns whether the attempt has to be looked at (`attempt_roll_up`).

    The caller holds the node's row locked and has checked that the replica is on it and the token is current.
    """
    if replica.state == ReplicaState.EXITED:
        return False
    workload, actor = replica.attempt.workload, _agent(replica)
    changes = _facts(replica, report, window)
    old, is_exit_news = replica.state, "exit_reason" in changes
    target = _target(replica, report)
    if target == ReplicaState.EXITED:
        replica_end(workload, replica, ended_at=window.moment(report.ended_ago_s), actor=actor, **changes)
        return True
    if target != old:
        replica_move(workload, replica, target, actor=actor, **changes)
    elif changes:
        Replica.objects.filter(pk=replica.pk, state=old).update(**changes)
    if target == ReplicaState.STOPPING:
        allocations_stopping([replica.pk], window.moment(report.ended_ago_s))
    return target != old or is_exit_news


def _target(replica: Replica, report: ReplicaReport) -> str:
    """The state that the report leads to: never back, and out of `stopping` only to the end."""
    if report.state == "exited":
        return ReplicaState.EXITED if report.clean else ReplicaState.STOPPING
    if replica.state == ReplicaState.STOPPING or report.state == "stopping" or _is_told_to_stop(replica):
        return ReplicaState.STOPPING
    if report.state == "running" and replica.state in _BEFORE_RUNNING:
        return ReplicaState.RUNNING
    if report.state == "starting" and replica.state in _BEFORE_STARTING:
        return ReplicaState.STARTING
    return replica.state


def _is_told_to_stop(replica: Replica) -> bool:
    return bool(replica.released) or replica.attempt.state == AttemptState.STOPPING


def _facts(replica: Replica, report: ReplicaReport, window: Window) -> dict[str, Any]:
    """What else the report brings that is not known yet. Once known, a start and an exit stay as they are."""
    changes: dict[str, Any] = {}
    if report.healthy is not None and report.healthy != replica.healthy:
        changes["healthy"] = report.healthy
    message = text_shortened(report.message, _LONGEST_TEXT)
    if message and message != replica.message:
        changes["message"] = message
    if report.state == "exited" and not replica.exit_reason:
        changes["exit_reason"] = report.exit_reason or ExitReason.EXITED
        changes["exit_code"] = exit_code_of(report.exit_code, report.signal)
    if checkpoint_at := _checkpoint_news(replica, report, window):
        changes["checkpoint_at"] = checkpoint_at
    has_run = report.state == "running" or report.running_ago_s is not None
    if replica.running_at is None and has_run:
        at = window.moment(report.running_ago_s)
        changes["running_at"] = min(at, window.moment(report.ended_ago_s))
        allocations_running(replica.pk, changes["running_at"])
    for name, value in changes.items():
        setattr(replica, name, value)
    return changes


def _checkpoint_news(replica: Replica, report: ReplicaReport, window: Window) -> datetime | None:
    """When a newer checkpoint was written than the one that is known; None if there is none.

    What lies there from before this replica ran is an earlier attempt's.
    """
    if report.checkpoint_ago_s is None or replica.running_at is None:
        return None
    at = window.now - timedelta(seconds=report.checkpoint_ago_s)
    known_at = replica.checkpoint_at or replica.running_at
    # The age comes rounded and late: the same file is not news again and again.
    return at if at >= known_at + _CHECKPOINT_NEWS else None


def _agent(replica: Replica) -> Actor:
    return Actor(f"agent of {replica.node.name}", replica.node_id)


# --- The attempt ---------------------------------------------------------------------------------------------


@transaction.atomic
def attempt_roll_up(*, attempt_id: UUID, now: datetime) -> bool:
    """Draws the conclusions from its replicas' states; returns whether the attempt ended.

    The caller holds the rows of all nodes of the attempt if a replica of it has ended, else of the one it reports for.
    """
    workload = _workload_lock(attempts=attempt_id)
    attempt = workload.attempts.get(pk=attempt_id)
    replicas = list(attempt.replicas.select_related("node").order_by("index"))
    if attempt.state == AttemptState.ENDED:
        return False
    members = _members(replicas)
    if attempt.state != AttemptState.STOPPING and (cause := cause_of(_exits(members))):
        reason, guilty = cause
        _stop_begin(
            workload,
            attempt,
            replicas,
            reason,
            now,
            told=cause_text(reason, guilty, len(members)),
            exit_code=guilty.exit_code if reason == EndReason.REPLICA_FAILED else None,
        )
    if all(replica.state == ReplicaState.EXITED for replica in replicas):
        _finish(workload, attempt, replicas)
        return True
    if attempt.state == AttemptState.STARTING and _is_running(members):
        _run(workload, attempt, members)
    return False


def _members(replicas: list[Replica]) -> list[Replica]:
    """Those whose ends count: not what was told to leave while the rest goes on."""
    return [replica for replica in replicas if not replica.released] or replicas


def _is_running(replicas: Iterable[Replica]) -> bool:
    """All ranks have begun, and at least one is still at it."""
    alive = [replica for replica in replicas if not replica.exit_reason]
    return bool(alive) and all(replica.state == ReplicaState.RUNNING for replica in alive)


def _run(workload: Workload, attempt: Attempt, replicas: list[Replica]) -> None:
    running_at = max(replica.running_at for replica in replicas if replica.running_at)
    attempt_move(workload, attempt, AttemptState.RUNNING, running_at=running_at)
    workload_move(
        workload,
        WorkloadState.RUNNING,
        told={"attempt": attempt.number},
        started_at=workload.started_at or running_at,
    )


def _stop_begin(
    workload: Workload,
    attempt: Attempt,
    replicas: Iterable[Replica],
    reason: EndReason,
    now: datetime,
    *,
    told: str,
    actor: By = None,
    **changes: Any,
) -> None:
    """All that is left of the attempt is to stop; the agents hear of it with their next sync."""
    attempt_move(workload, attempt, AttemptState.STOPPING, actor=actor, end_reason=reason)
    stopping = [replica for replica in replicas if replica.state in _STOPPABLE]
    for replica in stopping:
        replica_move(workload, replica, ReplicaState.STOPPING, actor=actor)
    # Those of a lost node too: they come back as stopping.
    lost = [replica for replica in replicas if replica.state == ReplicaState.LOST]
    allocations_stopping([replica.pk for replica in [*stopping, *lost]], now)
    workload_move(
        workload,
        WorkloadState.STOPPING,
        actor=actor,
        told={"attempt": attempt.number, "why": reason.value},
        state_reason=text_shortened(told, _LONGEST_TEXT),
        **changes,
    )


def _finish(workload: Workload, attempt: Attempt, replicas: list[Replica]) -> None:
    """Nothing of the attempt is left."""
    ended_at = max(replica.ended_at for replica in replicas if replica.ended_at)
    members = _members(replicas)
    starts = [replica.running_at for replica in members if replica.running_at]
    running_at = attempt.running_at or (max(starts) if len(starts) == len(members) else None)
    ended = workload_outcome(
        kind=workload.kind,
        end_reason=attempt.end_reason,
        was_running=running_at is not None,
        stopped_by_owner=workload.stop_requested_by_id == workload.owner_id,
        stop_requested=workload.stop_requested_by_id is not None,
        exits=_exits(members),
        told=workload.state_reason,
        failed_code=workload.exit_code,
    )
    attempt_move(
        workload,
        attempt,
        AttemptState.ENDED,
        ended_at=ended_at,
        running_at=running_at,
        end_reason=attempt.end_reason or EndReason.SUCCEEDED,
    )
    is_requeued = ended.state == WorkloadState.WAITING
    workload_move(
        workload,
        ended.state,
        told={"attempt": attempt.number, "exit_code": ended.exit_code},
        exit_code=ended.exit_code,
        state_reason=ended.reason,
        started_at=workload.started_at or running_at,
        ended_at=None if is_requeued else ended_at,
    )
    if not is_requeued:
        claims_end_of([workload.pk], clock.now(), EndReason.STOP_REQUESTED)  # it was to go on elsewhere
    wake()


def _exits(replicas: Iterable[Replica]) -> list[Exit]:
    return [
        Exit(replica.index, replica.exit_reason, replica.exit_code, replica.message) for replica in replicas
    ]


# --- Stopping on request -------------------------------------------------------------------------------------


@transaction.atomic
def workload_stop_begin(*, workload_id: UUID, actor: User, reason: str = "") -> Workload:
    """Stops a placed workload; it ends once its agents say that nothing is left of it.

    Twice is once. `StaleState` if it is neither starting, running nor stopping.
    """
    live = set(_live_attempts(workload_id).values_list("pk", flat=True))
    nodes_lock(attempt_nodes(live))
    now = clock.now()  # after the locks: not before a sync that has been metered
    workload = _workload_lock(pk=workload_id)
    if workload.state == WorkloadState.STOPPING:
        _stop_join(workload, actor)
        claims_end_of([workload.pk], now, EndReason.STOP_REQUESTED, actor)  # where it was to go on
        return workload
    attempt = _live_attempts(workload_id).first()
    is_placed = workload.state in (WorkloadState.STARTING, WorkloadState.RUNNING)
    if not is_placed or attempt is None or attempt.pk not in live:
        raise StaleState()
    _stop_begin(
        workload,
        attempt,
        list(attempt.replicas.select_related("node").order_by("index")),
        EndReason.STOP_REQUESTED,
        now,
        told=reason,
        actor=actor,
        stop_requested_by=actor,
    )
    return workload


def _live_attempts(workload_id: UUID) -> QuerySet[Attempt]:
    return Attempt.objects.filter(workload=workload_id).exclude(state=AttemptState.ENDED)


def _stop_join(workload: Workload, actor: User) -> None:
    """It stops already; but where it would go back to the queue afterwards, it no longer does."""
    if workload.stop_requested_by_id is None:
        Workload.objects.filter(pk=workload.pk).update(stop_requested_by=actor)
        workload.stop_requested_by = actor


# --- Locks -----------------------------------------------------------------------------------------------------


def attempt_nodes(attempt_ids: Iterable[UUID]) -> set[UUID]:
    """The nodes of the attempts' replicas: these never change."""
    return set(Replica.objects.filter(attempt__in=list(attempt_ids)).values_list("node_id", flat=True))


def claims_nodes(workloads: QuerySet[Workload]) -> set[UUID]:
    """The nodes on which they have claimed GPUs: to be locked before their rows."""
    claiming = Attempt.objects.filter(workload__in=workloads, state=AttemptState.CLAIMING)
    return attempt_nodes(claiming.values_list("pk", flat=True))


def nodes_lock(node_ids: Iterable[UUID]) -> dict[UUID, Node]:
    """Locks node rows in the order that everybody keeps."""
    rows = Node.objects.filter(pk__in=set(node_ids)).order_by("id").select_for_update(no_key=True)
    return {node.pk: node for node in rows}


def _workload_lock(**which: Any) -> Workload:
    workload = Workload.objects.select_for_update(no_key=True, of=("self",)).filter(**which).first()
    if workload is None:
        raise NotFound()
    return workload
