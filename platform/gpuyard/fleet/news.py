"""What the admins are told of the fleet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from gpuyard.audit.models import Event
from gpuyard.core.models import User
from gpuyard.fleet.models import Node
from gpuyard.notify.events import APP, EMAIL, HOOK, EventType
from gpuyard.notify.following import Teller
from gpuyard.notify.services import Notice

LOST = EventType(
    "node.lost", gettext_lazy("A node falls silent"), frozenset({APP, EMAIL, HOOK}), is_urgent=True
)
BACK = EventType("node.back", gettext_lazy("A lost node is back"))
EVENTS = (LOST, BACK)


def _tell(events: Sequence[Event]) -> Iterable[Notice]:
    admins = tuple(User.objects.filter(is_platform_admin=True, is_active=True).values_list("pk", flat=True))
    nodes = Node.objects.in_bulk([event.subject_id for event in events if event.subject_id])
    for event in events:
        if event.subject_id in nodes:
            yield _notice(event, nodes[event.subject_id], admins)


def _notice(event: Event, node: Node, admins: tuple[UUID, ...]) -> Notice:
    is_lost = event.action == LOST.key
    subject = _("Node %(node)s is silent") if is_lost else _("Node %(node)s is back")
    means = _("What ran there counts as held until it is known what became of it.")
    return Notice(
        recipients=admins,
        event=event.action,
        subject=subject % {"node": node.name},
        facts=((_("What it means"), means),) if is_lost else (),
        url=f"/fleet/nodes/{node.public_id}",
        dedupe_key=f"event:{event.pk}",
        about=f"node:{node.pk}",
    )


TELLER = Teller(frozenset(one.key for one in EVENTS), _tell)
