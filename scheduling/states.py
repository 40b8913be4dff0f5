"""The states of workloads, attempts, replicas and allocations, and which state may follow which.

A state moves by `gpuyard.core.states.state_move`, along these tables only. Allocations repeat theirs in the
database's guard trigger (migration 0002).
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class WorkloadState(models.TextChoices):
    PENDING_APPROVAL = "pending_approval", _("Waiting for approval")
    WAITING = "waiting", _("Waiting")
    STARTING = "starting", _("Starting")
    RUNNING = "running", _("Running")
    STOPPING = "stopping", _("Stopping")
    SUCCEEDED = "succeeded", _("Succeeded")
    FAILED = "failed", _("Failed")
    CANCELLED = "cancelled", _("Cancelled")
    REJECTED = "rejected", _("Rejected")
    EXPIRED = "expired", _("Expired")


class AttemptState(models.TextChoices):
    CLAIMING = "claiming", _("Claiming")
    STARTING = "starting", _("Starting")
    RUNNING = "running", _("Running")
    STOPPING = "stopping", _("Stopping")
    ENDED = "ended", _("Ended")


class ReplicaState(models.TextChoices):
    CLAIMING = "claiming", _("Claiming")
    ASSIGNED = "assigned", _("Assigned")
    STARTING = "starting", _("Starting")
    RUNNING = "running", _("Running")
    STOPPING = "stopping", _("Stopping")
    EXITED = "exited", _("Exited")
    LOST = "lost", _("Lost")


class AllocationState(models.TextChoices):
    CLAIMED = "claimed", _("Claimed")
    HELD = "held", _("Held")
    STOPPING = "stopping", _("Stopping")
    UNCONFIRMED = "unconfirmed", _("Unconfirmed")
    ENDED = "ended", _("Ended")
    DROPPED = "dropped", _("Dropped")


W, A, R, L = WorkloadState, AttemptState, ReplicaState, AllocationState

WORKLOAD_EDGES: dict[str, frozenset[str]] = {
    W.PENDING_APPROVAL: frozenset({W.WAITING, W.REJECTED, W.CANCELLED, W.EXPIRED}),
    W.WAITING: frozenset({W.STARTING, W.CANCELLED, W.EXPIRED}),
    # Straight to an end: a short run may be over before the agent ever reported it running.
    W.STARTING: frozenset({W.RUNNING, W.STOPPING, W.WAITING, W.SUCCEEDED, W.FAILED, W.CANCELLED}),
    W.RUNNING: frozenset({W.STOPPING, W.WAITING, W.SUCCEEDED, W.FAILED, W.CANCELLED}),
    # Back to waiting: preempted or requeued.
    W.STOPPING: frozenset({W.WAITING, W.SUCCEEDED, W.FAILED, W.CANCELLED}),
    W.SUCCEEDED: frozenset(),
    W.FAILED: frozenset(),
    W.CANCELLED: frozenset(),
    W.REJECTED: frozenset(),
    W.EXPIRED: frozenset(),
}
ATTEMPT_EDGES: dict[str, frozenset[str]] = {
    A.CLAIMING: frozenset({A.STARTING, A.ENDED}),
    A.STARTING: frozenset({A.RUNNING, A.STOPPING, A.ENDED}),
    A.RUNNING: frozenset({A.STOPPING, A.ENDED}),
    A.STOPPING: frozenset({A.ENDED}),
    A.ENDED: frozenset(),
}
REPLICA_EDGES: dict[str, frozenset[str]] = {
    R.CLAIMING: frozenset({R.ASSIGNED, R.EXITED}),
    R.ASSIGNED: frozenset({R.STARTING, R.RUNNING, R.STOPPING, R.EXITED, R.LOST}),
    R.STARTING: frozenset({R.RUNNING, R.STOPPING, R.EXITED, R.LOST}),
    R.RUNNING: frozenset({R.STOPPING, R.EXITED, R.LOST}),
    R.STOPPING: frozenset({R.EXITED, R.LOST}),
    R.LOST: frozenset({R.ASSIGNED, R.STARTING, R.RUNNING, R.STOPPING, R.EXITED}),
    R.EXITED: frozenset(),
}
ALLOCATION_EDGES: dict[str, frozenset[str]] = {
    L.CLAIMED: frozenset({L.HELD, L.DROPPED}),
    L.HELD: frozenset({L.STOPPING, L.UNCONFIRMED, L.ENDED}),
    L.STOPPING: frozenset({L.UNCONFIRMED, L.ENDED}),
    L.UNCONFIRMED: frozenset({L.HELD, L.STOPPING, L.ENDED}),
    L.ENDED: frozenset(),
    L.DROPPED: frozenset(),
}

WORKLOAD_ENDED = frozenset(state for state, nexts in WORKLOAD_EDGES.items() if not nexts)
ALLOCATION_LIVE = (L.CLAIMED, L.HELD, L.STOPPING, L.UNCONFIRMED)
