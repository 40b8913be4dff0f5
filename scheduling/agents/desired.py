"""What a node's agent shall run: the answer's `replicas`, in a handful of queries however many there are."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from gpuyard.core.money import SLOTS_PER_GPU
from gpuyard.fleet.models import Node
from scheduling.models import Allocation, PortLease, Replica, Workload
from scheduling.states import ALLOCATION_LIVE, AttemptState, ReplicaState

GRACE_DEFAULT_S = 10
RENDEZVOUS = "rendezvous"
_DESIRED = (
    ReplicaState.ASSIGNED,
    ReplicaState.STARTING,
    ReplicaState.RUNNING,
    ReplicaState.STOPPING,
    ReplicaState.LOST,
)
_BEGUN = (ReplicaState.STARTING, ReplicaState.RUNNING, ReplicaState.STOPPING)


def replicas_of(node: Node) -> list[Replica]:
    """What is on the node, with all that an agent has to know of it."""
    return list(
        Replica.objects.filter(node=node, state__in=_DESIRED)
        .select_related("node", "spec", "attempt__workload__team")
        .order_by("id")
    )


def desired_replicas(replicas: Sequence[Replica], *, reported: Container[UUID]) -> list[dict[str, Any]]:
    """The orders for an agent, in the order of the replicas. `reported`: those that the agent knows of."""
    if not replicas:
        return []
    gpus = _gpus([replica.pk for replica in replicas])
    attempts = {replica.attempt_id for replica in replicas}
    leases, sizes = _leases(attempts), _world_sizes(attempts)
    return [
        {
            **_order(replica, gpus[replica.pk], leases[replica.attempt_id], sizes[replica.attempt_id]),
            "desired": "stop" if _shall_stop(replica) or _is_forgotten(replica, reported) else "run",
        }
        for replica in replicas
    ]


def desired_digest(orders: Sequence[dict[str, Any]]) -> str:
    """Changes if and only if the orders do."""
    return hashlib.sha256(json.dumps(orders, sort_keys=True).encode()).hexdigest()


def _order(replica: Replica, gpus: list[_Device], leases: list[PortLease], world_size: int) -> dict[str, Any]:
    attempt, workload, spec = replica.attempt, replica.attempt.workload, replica.spec.document
    share = _share(gpus)
    return {
        "replica_id": str(replica.pk),
        "fencing_token": replica.fencing_token,
        "grace_s": spec.get("grace_s", GRACE_DEFAULT_S),
        "on_disconnect": spec.get("on_disconnect", "keep"),
        "command": spec["command"],
        "env": {**(spec.get("env") or {}), **_array_variables(workload, spec), **share},
        "working_dir": spec.get("working_dir"),
        "checkpoint_dir": spec.get("checkpoint_dir"),
        "gpu_uuids": [device.uuid for device in gpus],
        "gpu_indexes": [device.index for device in gpus],
        "cpu_m": replica.cpu_m,
        "memory_mib": replica.memory_mib,
        "time_limit_s": spec.get("time_limit_s"),
        "rank": replica.index,
        "world_size": world_size,
        "workload_id": workload.public_id,
        "attempt": attempt.number,
        "team": workload.team.public_id,
        "ports": [_port(lease) for lease in leases if lease.replica_id == replica.pk],
        "peers": [_peer(lease) for lease in leases if lease.name == RENDEZVOUS],
    }


def _array_variables(workload: Workload, spec: dict[str, Any]) -> dict[str, str]:
    """Which of its array's members it is, from 0: all of them run the same command."""
    if workload.array_index is None:
        return {}
    count = spec["request"]["array"]["count"]
    return {"GPUYARD_ARRAY_INDEX": str(workload.array_index), "GPUYARD_ARRAY_COUNT": str(count)}


def _shall_stop(replica: Replica) -> bool:
    has_to_go = replica.state == ReplicaState.STOPPING or bool(replica.released)
    return has_to_go or replica.attempt.state == AttemptState.STOPPING


def _is_forgotten(replica: Replica, reported: Container[UUID]) -> bool:
    """It ran, but its agent has lost all memory of it: it is to look for what is left, not to start it once more."""
    has_begun = replica.state in _BEGUN or replica.running_at is not None
    return has_begun and replica.pk not in reported


def _port(lease: PortLease) -> dict[str, Any]:
    return {"name": lease.name, "port": lease.port, "health_path": lease.health_path or None}


def _peer(lease: PortLease) -> dict[str, Any]:
    return {"rank": lease.replica.index, "address": lease.node.advertise_address, "port": lease.port}


@dataclass(frozen=True)
class _Device:
    """A GPU that a replica holds, or `slots` of it."""

    uuid: str
    index: int
    memory_mib: int
    slots: int


def _share(gpus: list[_Device]) -> dict[str, str]:
    """What a replica on a part of a card is told, to keep to it: nothing else does."""
    if not gpus or gpus[0].slots == SLOTS_PER_GPU:
        return {}
    card = gpus[0]
    memory_mib = card.memory_mib * card.slots // SLOTS_PER_GPU
    return {"GPUYARD_GPU_SHARE": str(card.slots), "GPUYARD_GPU_MEMORY_MIB": str(memory_mib)}


def _gpus(replica_ids: list[UUID]) -> dict[UUID, list[_Device]]:
    found: dict[UUID, list[_Device]] = defaultdict(list)
    rows = Allocation.objects.filter(replica__in=replica_ids, state__in=ALLOCATION_LIVE)
    for replica_id, device, index, memory_mib, slots in rows.order_by(
        "gpu__index", "gpu__device_uuid"
    ).values_list("replica_id", "gpu__device_uuid", "gpu__index", "gpu__memory_mib", "slots"):
        size = sum(piece.upper - piece.lower for piece in slots)
        found[replica_id].append(_Device(device, index, memory_mib, size))
    return found


def _world_sizes(attempt_ids: set[UUID]) -> Counter[UUID]:
    """Without those that left while the rest went on."""
    members = Replica.objects.filter(attempt__in=attempt_ids, released="")
    return Counter(members.values_list("attempt_id", flat=True))


def _leases(attempt_ids: set[UUID]) -> dict[UUID, list[PortLease]]:
    """The ports of each attempt, those of the ranks on other nodes included: an agent is told its peers."""
    found: dict[UUID, list[PortLease]] = defaultdict(list)
    rows = PortLease.objects.filter(replica__attempt__in=attempt_ids).select_related("node", "replica")
    for lease in rows.order_by("replica__index", "port"):
        found[lease.replica.attempt_id].append(lease)
    return found
