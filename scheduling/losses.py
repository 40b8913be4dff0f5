"""Nodes that fall silent, come back, or are confirmed dead, and what becomes of the work on them.

`on_disconnect: keep` (the default): the work may go on out there, so nothing is requeued until the agent or an
admin says that it ended. `stop`: its shim ends it at the lease, so it is requeued some time after. If too much of
the fleet is silent at once, it is rather we who are cut off: then nothing is requeued at all.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from gpuyard.audit.models import Event
from gpuyard.audit.services import Actor, Subject, event_record
from gpuyard.core import clock
from gpuyard.core.errors import Conflict, Forbidden, NotFound
from gpuyard.core.models import User
from gpuyard.fleet.models import Node, NodeState
from gpuyard.fleet.selectors import Silence, fleet_silence, is_silent
from gpuyard.fleet.services import node_lock, node_mark_lost, node_mark_ready
from scheduling.claims import claims_end_on
from scheduling.ledger import allocations_back, allocations_lost
from scheduling.lifecycle import attempt_nodes, attempt_roll_up, nodes_lock
from scheduling.models import Replica
from scheduling.outcomes import ExitReason
from scheduling.states import ReplicaState
from scheduling.transitions import By, replica_end, replica_move
from scheduling.wake import wake

logger = logging.getLogger(__name__)

GRACE_S = 10
REQUEUE_MARGIN_S = 30
_ON_NODE = (ReplicaState.ASSIGNED, ReplicaState.STARTING, ReplicaState.RUNNING, ReplicaState.STOPPING)


# --- Lost and back -------------------------------------------------------------------------------------------


@transaction.atomic
def node_lost(*, node_id: UUID) -> bool:
    """A silent node's work becomes unconfirmed: still there for all we know, not charged, not requeued.

    Returns whether it was lost: a sync may have come in at the last moment.
    """
    node = node_lock(node_id)
    now = clock.now()
    if node.state != NodeState.READY or not is_silent(node.last_sync_at, node.lease_s, now):
        return False
    claims_end_on(node.pk, now)
    allocations_lost(node.pk, node.last_sync_at or node.joined_at)
    for replica in _replicas(node, _ON_NODE):
        replica_move(replica.attempt.workload, replica, ReplicaState.LOST)
        _tell(replica, "workload.node_lost")
    node_mark_lost(node)
    return True


def node_back(node: Node, *, now: datetime) -> None:
    """A node's first sync, or its first after being lost. The caller holds its row locked.

    Its replicas stay `lost` until its agent says how each is, in the same sync if it knows of them.
    """
    was_lost = node.state == NodeState.LOST
    node_mark_ready(node)
    if was_lost:
        allocations_back(node.pk, now)
        for replica in _replicas(node, (ReplicaState.LOST,)):
            _tell(replica, "workload.node_back")
    wake()


def _tell(replica: Replica, action: str) -> None:
    """Says it in the workload's own timeline."""
    workload = replica.attempt.workload
    event_record(
        company_id=workload.company_id,
        actor=None,
        action=action,
        subject=workload,
        new={"node": replica.node.name, "replica": replica.index},
    )


# --- Given up ------------------------------------------------------------------------------------------------


@transaction.atomic
def node_confirm_dead(*, actor: User, node_id: UUID, reason: str = "") -> Node:
    """An admin says that nothing runs on a lost node any more: what it held ends, its workloads are requeued.

    The node is cordoned: should it come back, somebody has to look at it first.
    """
    if not actor.is_platform_admin:
        raise Forbidden(message=_("Only a platform admin may do this."))
    node = _lock_with_gangs(node_id)
    if node.state != NodeState.LOST:
        raise Conflict(
            "node_not_lost",
            _("This node is not lost."),
            remedy=_("Drain it, or stop its agent and wait until it is lost."),
        )
    node.cordoned, node.cordon_reason, node.epoch = True, _("Confirmed dead"), node.epoch + 1
    node.save(update_fields=["cordoned", "cordon_reason", "epoch"])
    event_record(
        company_id=None,
        actor=actor,
        action="node.confirm_dead",
        subject=node,
        reason=reason,
    )
    _give_up(_replicas(node, (ReplicaState.LOST,)), ExitReason.NODE_LOST, actor)
    return node


@transaction.atomic
def _requeue_stopped(node_id: UUID) -> int:
    """Ends what was to stop when cut off, once its shim must have done so; returns how many replicas."""
    node = _lock_with_gangs(node_id)
    if node.state != NodeState.LOST or not _is_past_stop(node, clock.now()):
        return 0
    replicas = [one for one in _replicas(node, (ReplicaState.LOST,)) if _stops_when_cut_off(one)]
    _give_up(replicas, ExitReason.LEASE, Actor("lease"))
    return len(replicas)


def _give_up(replicas: Sequence[Replica], exit_reason: ExitReason, actor: By) -> None:
    now = clock.now()
    for replica in replicas:
        # An exit that its agent reported before stays what it was.
        known = {} if replica.exit_reason else {"exit_reason": exit_reason}
        replica_end(replica.attempt.workload, replica, ended_at=now, actor=actor, **known)
    for attempt_id in sorted({replica.attempt_id for replica in replicas}):
        attempt_roll_up(attempt_id=attempt_id, now=now)
    wake()


def _lock_with_gangs(node_id: UUID) -> Node:
    """The node, and those where the other ranks of its work run: they are going to be stopped."""
    attempts = _replicas_of(node_id).exclude(state=ReplicaState.EXITED).values_list("attempt_id", flat=True)
    nodes = nodes_lock({node_id, *attempt_nodes(attempts)})
    if node_id not in nodes:
        raise NotFound()
    return nodes[node_id]


def _stops_when_cut_off(replica: Replica) -> bool:
    return bool(replica.spec.document.get("on_disconnect", "keep") == "stop")


def _is_past_stop(node: Node, now: datetime) -> bool:
    last = node.last_sync_at or node.joined_at
    return now - last > timedelta(seconds=node.lease_s + GRACE_S + REQUEUE_MARGIN_S)


def _replicas_of(node_id: UUID) -> QuerySet[Replica]:
    return Replica.objects.filter(node=node_id)


def _replicas(node: Node, states: Sequence[str]) -> list[Replica]:
    return list(
        _replicas_of(node.pk)
        .filter(state__in=states)
        .select_related("node", "spec", "attempt__workload")
        .order_by("id")
    )


# --- The regular look ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checked:
    """What one look at the fleet found and did."""

    silence: Silence
    lost: int = 0
    requeued: int = 0


def nodes_check() -> Checked:
    """Declares silent nodes lost and requeues what stopped when cut off. Safe to run twice or beside itself."""
    now = clock.now()
    silence = fleet_silence(now)
    _freeze_note(silence)
    ready = (
        Node.objects.filter(state=NodeState.READY).order_by("id").values_list("id", "last_sync_at", "lease_s")
    )
    silent = [node_id for node_id, last, lease_s in ready if is_silent(last, lease_s, now)]
    lost = sum(node_lost(node_id=node_id) for node_id in silent)
    requeued = 0
    if not silence.is_frozen:
        cut_off = Node.objects.filter(
            state=NodeState.LOST,
            replicas__state=ReplicaState.LOST,
            replicas__spec__document__on_disconnect="stop",
        )
        ids = cut_off.order_by("id").values_list("id", flat=True).distinct()
        requeued = sum(_requeue_stopped(node_id) for node_id in ids)
    return Checked(silence, lost, requeued)


@transaction.atomic
def _freeze_note(silence: Silence) -> None:
    """Raises the alarm once, and takes it back once."""
    last = (
        Event.objects.filter(subject_type="fleet", subject_id=None, action__in=["fleet.freeze", "fleet.thaw"])
        .order_by("-created_at", "-id")
        .first()
    )
    was_frozen = last is not None and last.action == "fleet.freeze"
    if was_frozen == silence.is_frozen:
        return
    if silence.is_frozen:
        logger.error("%s of %s nodes are silent: frozen", silence.silent_count, silence.node_count)
    event_record(
        company_id=None,
        actor=None,
        action="fleet.freeze" if silence.is_frozen else "fleet.thaw",
        subject=Subject("fleet", None, "fleet"),
        new={"silent": silence.silent_count, "nodes": silence.node_count},
        reason=_(
            "So many nodes are silent at once that rather we are cut off: nothing is requeued or evicted."
        )
        if silence.is_frozen
        else "",
    )
