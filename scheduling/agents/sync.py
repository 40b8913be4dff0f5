"""One sync: one transaction, in which the node's row is locked first.

What is not newer than the last sync changes nothing. So a sync may be lost, repeated or come late: its sender
says everything that matters again in the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.utils.translation import gettext as _

from gpuyard.core import clock
from gpuyard.core.errors import Conflict
from gpuyard.fleet.inventory import inventory_apply
from gpuyard.fleet.models import Node, NodeState
from gpuyard.fleet.services import SYNC_S, AgentRefused, secret_digest
from gpuyard.fleet.telemetry import telemetry_apply
from scheduling.agents.desired import GRACE_DEFAULT_S, desired_digest, desired_replicas, replicas_of
from scheduling.agents.logs import logs_append
from scheduling.agents.protocol import ReplicaReport, SyncRequest
from scheduling.lifecycle import Window, attempt_roll_up, replica_report
from scheduling.losses import node_back
from scheduling.models import Replica
from scheduling.states import ReplicaState
from scheduling.wake import wake

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Synced:
    """The answer, and how many reports carried an old fencing token."""

    answer: dict[str, Any]
    refused_count: int


@transaction.atomic
def node_sync(*, secret: str, request: SyncRequest) -> Synced:
    """Applies a sync and answers it. `AgentRefused`: unknown secret; `stale_sync`: not newer than the last one."""
    node = _lock(secret_digest(secret), request.replicas)
    now = clock.now()  # after the lock
    _require_newer(node, request)
    window = _contact(node, now)
    if request.inventory is not None and inventory_apply(node=node, inventory=request.inventory):
        wake()
    telemetry_apply(node=node, buckets=request.telemetry, last_answered_at=window.last_answered_at, now=now)
    reported = _reported(node, request)
    live = replicas_of(node)
    refused_count, is_changed = _reports_apply(live, request.replicas, window)
    acks = logs_append(reported, request.logs) if request.logs else []
    known = {report.replica_id for report in request.replicas}
    orders = desired_replicas(replicas_of(node) if is_changed else live, reported=known)
    _node_store(node, request, orders, now)
    return Synced(_answer(node, orders, acks, _forget(orders, acks, request)), refused_count)


# --- Who speaks, and is it news ---------------------------------------------------------------------------


def _lock(digest: str, reports: Sequence[ReplicaReport]) -> Node:
    """Locks the node; if something ended, also the nodes of the other ranks, which may have to stop."""
    exited = [report.replica_id for report in reports if report.state == "exited"]
    others: set[UUID] = set()
    if exited:
        gangs = Replica.objects.filter(pk__in=exited, node__secret_digest=digest).exclude(
            state=ReplicaState.EXITED
        )
        others = set(
            Replica.objects.filter(attempt__in=gangs.values("attempt")).values_list("node_id", flat=True)
        )
    rows = Node.objects.filter(Q(secret_digest=digest) | Q(pk__in=others)).exclude(secret_digest="")
    for node in rows.order_by("id").select_for_update(no_key=True):
        if node.secret_digest == digest and node.state != NodeState.RETIRED:
            return node
    raise AgentRefused(
        message=_("This node secret is not known."), remedy=_("Join again with a new join token.")
    )


def _require_newer(node: Node, request: SyncRequest) -> None:
    if (request.boot, request.seq) <= (node.boot, node.seq):
        raise Conflict(
            "stale_sync",
            _("A newer sync has been seen: boot %(boot)s, seq %(seq)s.")
            % {"boot": node.boot, "seq": node.seq},
        )


def _contact(node: Node, now: datetime) -> Window:
    """Notes that the node is there; returns the time in which what it reports may have happened."""
    was = node.state
    if was in (NodeState.JOINED, NodeState.LOST):
        node_back(node, now=now)
    # What a lost node did meanwhile was booked as down: nothing may be dated back into it.
    last = now if was == NodeState.LOST else node.last_sync_at or node.joined_at
    return Window(min(last, now), now)


# --- What it reports -----------------------------------------------------------------------------------------


def _reported(node: Node, request: SyncRequest) -> dict[UUID, Replica]:
    """The replicas of this node whose output came: ended ones too, their last lines may come late."""
    wanted = {chunk.replica_id for chunk in request.logs}
    if not wanted:
        return {}
    return {replica.pk: replica for replica in Replica.objects.filter(node=node, pk__in=wanted)}


def _reports_apply(
    live: Iterable[Replica], reports: Sequence[ReplicaReport], window: Window
) -> tuple[int, bool]:
    """Applies what concerns replicas that are on this node; returns (refused, whether anything moved)."""
    known = {replica.pk: replica for replica in live}
    refused_count = 0
    attempts: set[UUID] = set()
    for report in reports:
        replica = known.get(report.replica_id)
        if replica is None:
            continue
        if report.fencing_token != replica.fencing_token:
            refused_count += 1
            logger.warning("refused token %s of replica %s", report.fencing_token, replica.pk)
        elif replica_report(replica=replica, report=report, window=window):
            attempts.add(replica.attempt_id)
    for attempt_id in sorted(attempts):
        attempt_roll_up(attempt_id=attempt_id, now=window.now)
    return refused_count, bool(attempts)


# --- What it is answered ---------------------------------------------------------------------------------------


def _node_store(node: Node, request: SyncRequest, orders: Sequence[dict[str, Any]], now: datetime) -> None:
    digest = desired_digest(orders)
    if digest != node.desired_digest:
        node.desired_digest = digest
        node.generation += 1
    node.boot, node.boot_id, node.seq = request.boot, request.boot_id, request.seq
    node.agent_version = request.agent_version
    node.last_sync_at = now
    node.save(
        update_fields=[
            "boot",
            "boot_id",
            "seq",
            "agent_version",
            "last_sync_at",
            "generation",
            "desired_digest",
        ]
    )


def _forget(
    orders: Sequence[dict[str, Any]], acks: Sequence[dict[str, Any]], request: SyncRequest
) -> list[str]:
    """What the agent may delete: ended or never known here, and no more output of it under way."""
    kept = {order["replica_id"] for order in orders} | {ack["replica_id"] for ack in acks}
    return sorted({str(report.replica_id) for report in request.replicas} - kept)


def _answer(
    node: Node, orders: Sequence[dict[str, Any]], acks: list[dict[str, Any]], forget: list[str]
) -> dict[str, Any]:
    return {
        "boot": node.boot,
        "seq": node.seq,
        "generation": node.generation,
        "lease_s": node.lease_s,
        "sync_s": SYNC_S,
        "grace_default_s": GRACE_DEFAULT_S,
        "replicas": list(orders),
        "log_acks": acks,
        "forget": forget,
    }
