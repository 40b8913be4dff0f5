"""Moves the states of workloads, attempts and replicas, each with its event in the same transaction."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db.models import F

from gpuyard.audit.services import Actor, event_record
from gpuyard.core.models import User
from gpuyard.core.states import state_move
from gpuyard.fleet.models import Node
from scheduling.ledger import allocations_end
from scheduling.models import Attempt, PortLease, Replica, Workload
from scheduling.states import ATTEMPT_EDGES, REPLICA_EDGES, WORKLOAD_EDGES, ReplicaState

By = User | Actor | None

WORKLOAD_ACTIONS = {
    "running": "workload.run",
    "stopping": "workload.stop",
    "succeeded": "workload.succeed",
    "failed": "workload.fail",
    "cancelled": "workload.cancel",
    "waiting": "workload.requeue",
}


def workload_move(
    workload: Workload, new: str, *, actor: By = None, told: Mapping[str, Any] | None = None, **changes: Any
) -> None:
    """Moves a workload; `told` goes into the event beside the states."""
    old = workload.state
    state_move(Workload, workload.pk, old=old, new=new, edges=WORKLOAD_EDGES, **changes)
    _set(workload, state=new, **changes)
    event_record(
        company_id=workload.company_id,
        actor=actor,
        action=WORKLOAD_ACTIONS[new],
        subject=workload,
        old={"state": old},
        new={"state": new, **(told or {})},
        reason=workload.state_reason,
    )


def attempt_move(workload: Workload, attempt: Attempt, new: str, *, actor: By = None, **changes: Any) -> None:
    """Moves an attempt."""
    old = attempt.state
    state_move(Attempt, attempt.pk, old=old, new=new, edges=ATTEMPT_EDGES, **changes)
    _set(attempt, state=new, **changes)
    event_record(
        company_id=workload.company_id,
        actor=actor,
        action=f"attempt.{new}",
        subject=attempt,
        team_id=workload.team_id,
        old={"state": old},
        new={"state": new, "number": attempt.number, "end_reason": attempt.end_reason},
    )


def replica_move(workload: Workload, replica: Replica, new: str, *, actor: By = None, **changes: Any) -> None:
    """Moves a replica. Its end is `replica_end`."""
    old = replica.state
    state_move(Replica, replica.pk, old=old, new=new, edges=REPLICA_EDGES, **changes)
    _set(replica, state=new, **changes)
    told = {
        "index": replica.index,
        "node": str(replica.node),
        "exit_code": replica.exit_code,
        "exit_reason": replica.exit_reason,
    }
    event_record(
        company_id=workload.company_id,
        actor=actor,
        action=f"replica.{new}",
        subject=replica,
        team_id=workload.team_id,
        old={"state": old},
        new={"state": new, **{key: value for key, value in told.items() if value not in (None, "")}},
    )


def replica_end(
    workload: Workload, replica: Replica, *, ended_at: datetime, actor: By = None, **changes: Any
) -> None:
    """Nothing of the replica is left: ends what it holds and gives back its CPU, memory and ports, exactly once."""
    replica_move(workload, replica, ReplicaState.EXITED, actor=actor, ended_at=ended_at, **changes)
    allocations_end(replica.pk, ended_at)
    Node.objects.filter(pk=replica.node_id).update(
        cpu_used_m=F("cpu_used_m") - replica.cpu_m, memory_used_mib=F("memory_used_mib") - replica.memory_mib
    )
    PortLease.objects.filter(replica=replica).delete()


def _set(row: Workload | Attempt | Replica, **values: Any) -> None:
    for name, value in values.items():
        setattr(row, name, value)
