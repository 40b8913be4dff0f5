"""Joining nodes and moving their states. What happens to the work on them is `scheduling.losses`.

Whoever changes a node's row locks it first. Its epoch grows with every change of what may start there, so that a
pass that looked before does not place on what it saw.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils.translation import gettext as _

from gpuyard.audit.services import Actor, event_record
from gpuyard.core import clock
from gpuyard.core.errors import Conflict, DomainError, Forbidden, NotFound
from gpuyard.core.models import User
from gpuyard.core.states import state_move
from gpuyard.fleet.conditions import conditions_back, conditions_cordon, conditions_lost
from gpuyard.fleet.inventory import inventory_apply
from gpuyard.fleet.models import NODE_EDGES, JoinToken, Node, NodeState, Pool
from gpuyard.fleet.reports import Inventory

LEASE_S = 90
SYNC_S = 2.0
_JOIN_TOKEN_LIFE = timedelta(hours=24)


class AgentRefused(DomainError):
    """This secret is not known."""

    default_code = "agent_unknown"
    default_status = 401


def secret_digest(secret: str) -> str:
    """How secrets are stored and looked up. No salt is needed: they have 256 random bits."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


# --- Joining ---------------------------------------------------------------------------------------------


@transaction.atomic
def join_token_create(
    *, actor: User | None, pool: Pool, uses: int = 1, lifetime: timedelta = _JOIN_TOKEN_LIFE
) -> tuple[JoinToken, str]:
    """Returns the token and its secret, which is shown once. No actor: a command on the server itself."""
    _require_admin(actor)
    secret = f"gyj_{secrets.token_urlsafe(32)}"
    token = JoinToken.objects.create(
        pool=pool,
        digest=secret_digest(secret),
        created_by=actor,
        expires_at=clock.now() + lifetime,
        uses_left=uses,
    )
    event_record(
        company_id=None,
        actor=actor,
        action="join_token.create",
        subject=token,
        new={"pool": pool.name, "uses": uses, "expires_at": token.expires_at},
    )
    return token, secret


@dataclass(frozen=True)
class Joined:
    """A node that has just joined, and its agent's secret, which is stored nowhere."""

    node: Node
    secret: str


@transaction.atomic
def node_join(*, join_token: str, name: str, inventory: Inventory) -> Joined:
    """Takes a node in, or takes one back whose secret was revoked."""
    token = _token_use(join_token)
    secret = f"gyn_{secrets.token_urlsafe(32)}"
    node = _node_for(name, token.pool)
    node.secret_digest = secret_digest(secret)
    # The agent starts counting anew: whatever the old one sent is refused by its secret.
    node.boot, node.seq, node.boot_id = 0, 0, ""
    node.lease_s = LEASE_S
    node.save(update_fields=["secret_digest", "boot", "seq", "boot_id", "lease_s"])
    event_record(
        company_id=None,
        actor=Actor(f"agent of {node.name}", node.id),
        action="node.join",
        subject=node,
        new={"pool": node.pool.name, "simulated": inventory.simulated},
    )
    inventory_apply(node=node, inventory=inventory)
    return Joined(node, secret)


def _token_use(join_token: str) -> JoinToken:
    tokens = JoinToken.objects.filter(digest=secret_digest(join_token))
    used = tokens.filter(uses_left__gt=0, expires_at__gt=clock.YardNow()).update(uses_left=F("uses_left") - 1)
    if not used:
        raise AgentRefused(
            "join_token_refused",
            _("This join token is not known, has expired or is used up."),
            field="join_token",
            remedy=_("Ask a platform admin for a new join token."),
        )
    return tokens.select_related("pool").get()


def _node_for(name: str, pool: Pool) -> Node:
    existing = Node.objects.select_for_update(no_key=True).filter(name=name).first()
    if existing is None:
        try:
            with transaction.atomic():
                return Node.objects.create(name=name, pool=pool, joined_at=clock.now())
        except IntegrityError as exc:  # another agent of this name joined at this moment
            raise _name_taken() from exc
    if existing.secret_digest or existing.state == NodeState.RETIRED:
        raise _name_taken()
    return existing


def _name_taken() -> Conflict:
    return Conflict(
        "node_name_taken",
        _("A node of this name has joined already."),
        field="name",
        remedy=_("Choose another name, or have an admin revoke the old node's secret first."),
    )


@transaction.atomic
def node_secret_revoke(*, actor: User, node_id: UUID, reason: str) -> Node:
    """From now on the node's agent is refused; a new one may join under the node's name."""
    _require_admin(actor)
    node = node_lock(node_id)
    Node.objects.filter(pk=node.pk).update(secret_digest="")
    _record_admin(actor, "node.secret_revoke", node, reason=reason)
    node.refresh_from_db()
    return node


# --- What an admin does ----------------------------------------------------------------------------------


@transaction.atomic
def node_cordon(*, actor: User, node_id: UUID, reason: str) -> Node:
    """Nothing new starts on the node; what runs there goes on."""
    return _cordon(actor, node_id, reason, cordoned=True, draining=False, action="node.cordon")


@transaction.atomic
def node_drain(*, actor: User, node_id: UUID, reason: str) -> Node:
    """Cordons the node until it is empty: nothing new starts, what runs there goes on to its end."""
    return _cordon(actor, node_id, reason, cordoned=True, draining=True, action="node.drain")


@transaction.atomic
def node_uncordon(*, actor: User, node_id: UUID, reason: str = "") -> Node:
    """The node takes work again."""
    return _cordon(actor, node_id, reason, cordoned=False, draining=False, action="node.uncordon")


def _cordon(actor: User, node_id: UUID, reason: str, *, cordoned: bool, draining: bool, action: str) -> Node:
    _require_admin(actor)
    node = node_lock(node_id)
    if node.state == NodeState.RETIRED:
        raise Conflict("node_retired", _("This node is retired."))
    if (node.cordoned, node.draining) == (cordoned, draining):
        return node
    old = {"cordoned": node.cordoned, "draining": node.draining}
    node.cordoned, node.draining = cordoned, draining
    node.cordon_reason = reason[:200] if cordoned else ""
    node.epoch += 1
    node.save(update_fields=["cordoned", "draining", "cordon_reason", "epoch"])
    conditions_cordon(node)
    new = {"cordoned": cordoned, "draining": draining}
    _record_admin(actor, action, node, old=old, new=new, reason=reason)
    return node


# --- What contact with the agent does ---------------------------------------------------------------------
# The caller holds the row locked and passes it; these change the row in the database and in hand.


def node_mark_ready(node: Node) -> None:
    """First sync, or back after being lost."""
    was_lost = node.state == NodeState.LOST
    _state_move(node, NodeState.READY, action="node.back" if was_lost else "node.ready")
    if was_lost:
        conditions_back(node)


def node_mark_lost(node: Node) -> None:
    """Silent beyond its lease."""
    _state_move(node, NodeState.LOST, action="node.lost")
    conditions_lost(node)


def _state_move(node: Node, new: NodeState, *, action: str) -> None:
    old = node.state
    state_move(Node, node.pk, old=old, new=new, edges=NODE_EDGES, epoch=F("epoch") + 1)
    node.state = new
    node.epoch += 1
    event_record(
        company_id=None,
        actor=None,
        action=action,
        subject=node,
        old={"state": old},
        new={"state": new, "last_sync_at": node.last_sync_at},
    )


# --- Shared ------------------------------------------------------------------------------------------------


def node_lock(node_id: UUID) -> Node:
    """The node's row, locked until the transaction ends."""
    node = Node.objects.select_for_update(no_key=True).filter(pk=node_id).first()
    if node is None:
        raise NotFound()
    return node


def _require_admin(actor: User | None) -> None:
    if actor is not None and not actor.is_platform_admin:
        raise Forbidden(message=_("Only a platform admin may do this."))


def _record_admin(
    actor: User,
    action: str,
    node: Node,
    *,
    old: Mapping[str, object] | None = None,
    new: Mapping[str, object] | None = None,
    reason: str = "",
) -> None:
    event_record(
        company_id=None,
        actor=actor,
        action=action,
        subject=node,
        old=old,
        new=new,
        reason=reason,
    )
