"""Who may see and change which webhooks, and read which sendings. `gpuyard.notify` has them, and knows no roles.

One's own are one's own. A team's are changed by its managers and admins, and read by its auditors too; members do not
see them.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from gpuyard.core.errors import NotFound
from gpuyard.core.models import User
from gpuyard.notify import endpoints
from gpuyard.notify.models import Endpoint, Message
from gpuyard.notify.selectors import messages_of
from tenants.models import Role, Team
from tenants.selectors import ADMIN, role_require, team_ids_with

_CHANGES = (Role.MANAGER, ADMIN)
_READS = (Role.MANAGER, Role.AUDITOR, ADMIN)


def endpoint_list(actor: User) -> QuerySet[Endpoint]:
    """The actor's own and those of the teams whose endpoints they may read, newest first."""
    seen = Q(user=actor) | Q(team_id__in=team_ids_with(actor, *_READS))
    rows = Endpoint.objects.filter(seen, removed_at__isnull=True).select_related("user", "created_by")
    return rows.order_by("-created_at", "-id")


def endpoint_get(actor: User, endpoint_id: UUID, *, to_change: bool = False) -> Endpoint:
    """One of these; `Forbidden` where the actor may only read it."""
    found = endpoint_list(actor).filter(pk=endpoint_id).first()
    if found is None:
        raise NotFound("webhook_unknown", _("There is no such webhook, or you may not see it."))
    if to_change:
        _change_require(actor, found)
    return found


def team_endpoint_create(
    *, actor: User, team: Team, kind: str, name: str, url: str, events: Sequence[str]
) -> tuple[Endpoint, str]:
    """A team's new endpoint, and its secret, which is shown this once."""
    role_require(actor, team, *_CHANGES)
    return endpoints.endpoint_create(
        actor=actor,
        kind=kind,
        name=name,
        url=url,
        events=events,
        team_id=team.pk,
        company_id=team.company_id,
    )


def message_list(actor: User) -> QuerySet[Message]:
    """The log of sendings: to oneself and to the endpoints one may read; an admin reads all. Newest first."""
    if actor.is_platform_admin:
        return messages_of(actor=None, team_ids=None)
    return messages_of(actor=actor, team_ids=team_ids_with(actor, *_READS))


def message_get(actor: User, message_id: UUID, *, to_change: bool = False) -> Message:
    """One of these; `Forbidden` where the actor may only read it."""
    found = message_list(actor).filter(pk=message_id).first()
    if found is None:
        raise NotFound("delivery_unknown", _("There is no such delivery, or you may not see it."))
    if to_change and found.endpoint is not None:
        _change_require(actor, found.endpoint)
    return found


def _change_require(actor: User, endpoint: Endpoint) -> None:
    if endpoint.team_id is not None:
        role_require(actor, Team.objects.get(pk=endpoint.team_id), *_CHANGES)


def teams_of(rows: Sequence[Endpoint]) -> dict[UUID, Team]:
    """The teams whose endpoints these are, in one query."""
    return Team.objects.in_bulk({row.team_id for row in rows if row.team_id})
