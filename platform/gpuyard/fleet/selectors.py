"""Reading the fleet. Capacity is no secret: everybody signed in may see it; who holds a GPU is for tenants to say."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from gpuyard.audit.models import Event
from gpuyard.core.errors import NotFound
from gpuyard.core.models import User
from gpuyard.core.text import text_for_lookup
from gpuyard.fleet.models import FabricDomain, Gpu, Node, NodeState, Pool, Tier

FREEZE_SHARE_PCT = 20
FREEZE_COUNT = 3


def node_list(actor: User) -> QuerySet[Node]:
    """All nodes that are not retired, by name."""
    return Node.objects.exclude(state=NodeState.RETIRED).select_related("pool", "domain").order_by("name")


def node_get(actor: User, public_id: str) -> Node:
    """One node, retired ones included."""
    nodes = Node.objects.select_related("pool", "domain__parent__parent")
    node = nodes.filter(public_id=text_for_lookup(public_id)).first()
    if node is None:
        raise NotFound("node_unknown", _("There is no such node."))
    return node


@dataclass(frozen=True)
class Silence:
    """How much of the fleet has not been heard of for longer than its lease."""

    silent_count: int
    node_count: int

    @property
    def is_frozen(self) -> bool:
        """So many at once that rather we are cut off: no evictions, requeues or reclaims until that ends."""
        return (
            self.silent_count >= FREEZE_COUNT and self.silent_count * 100 > FREEZE_SHARE_PCT * self.node_count
        )


def fleet_silence(now: datetime) -> Silence:
    """Counts the nodes that should be in contact. A cordoned node is not counted: its silence is known of."""
    nodes = Node.objects.filter(state__in=[NodeState.READY, NodeState.LOST], cordoned=False)
    rows = list(nodes.values_list("last_sync_at", "lease_s"))
    return Silence(sum(is_silent(last, lease_s, now) for last, lease_s in rows), len(rows))


def is_silent(last_sync_at: datetime | None, lease_s: int, now: datetime) -> bool:
    """Whether a node's lease has passed."""
    return last_sync_at is None or now - last_sync_at > timedelta(seconds=lease_s)


# --- Pools and tiers -----------------------------------------------------------------------------------------


def pool_list(actor: User) -> QuerySet[Pool]:
    """All pools, by name."""
    return Pool.objects.order_by("name")


def pool_get(actor: User, public_id: str) -> Pool:
    """One pool."""
    pool = Pool.objects.filter(public_id=text_for_lookup(public_id)).first()
    if pool is None:
        raise NotFound("pool_unknown", _("There is no such pool."))
    return pool


def tier_list(actor: User) -> QuerySet[Tier]:
    """All tiers, the dearest first."""
    return Tier.objects.order_by("-cost_rank", "name")


def domain_list(actor: User) -> QuerySet[FabricDomain]:
    """All domains of the fabric, by level and name."""
    return FabricDomain.objects.select_related("parent").order_by("level", "name")


def fabric_levels() -> list[str]:
    """The levels of the fabric that there are, by name."""
    return list(FabricDomain.objects.order_by("level").values_list("level", flat=True).distinct())


# --- What the agents found and we could not take ---------------------------------------------------------------


@dataclass(frozen=True)
class LeftOut:
    """A GPU that a node reported and that is no part of the fleet, and why."""

    node_name: str
    device_uuid: str
    model: str
    memory_mib: int
    reason: str
    since: datetime


def gpus_left_out(actor: User) -> list[LeftOut]:
    """GPUs that wait for a tier rule (or that two nodes claim to have), by node; three queries."""
    nodes = Node.objects.exclude(state=NodeState.RETIRED)
    events = Event.objects.filter(
        action="gpu.left_out", subject_type="node", subject_id__in=nodes.values("pk")
    )
    said = {
        (event.subject_id, event.new["device"]): (event.new, event)
        for event in events.order_by("created_at", "id")
        if event.subject_id is not None and event.new is not None
    }
    if not said:
        return []
    names = dict(nodes.filter(pk__in={node_id for node_id, _device in said}).values_list("id", "name"))
    devices = {device for _node_id, device in said}
    taken = set(
        Gpu.objects.filter(retired_at=None, device_uuid__in=devices).values_list("node_id", "device_uuid")
    )
    found = [
        LeftOut(
            node_name=names[node_id],
            device_uuid=device,
            model=told["model"],
            memory_mib=told["memory_mib"],
            reason=event.reason,
            since=event.created_at,
        )
        for (node_id, device), (told, event) in said.items()
        if (node_id, device) not in taken
    ]
    return sorted(found, key=lambda one: (one.node_name, one.device_uuid))
