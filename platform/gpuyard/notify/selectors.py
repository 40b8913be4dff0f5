"""Reading what people were told and what they chose. The apps above prove which endpoints a reader may see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from django.db.models import Q, QuerySet

from gpuyard.core.models import User
from gpuyard.notify.events import APP, EventType
from gpuyard.notify.models import Choice, Endpoint, Message, Notification, Rhythm

Chosen = Mapping[tuple[UUID, str, str], bool]
"""(user, event, channel) → whether they want it; what is missing is as the event is registered."""


def notification_list(actor: User, *, unread: bool = False, event: str = "") -> QuerySet[Notification]:
    """What the actor was told, newest first."""
    rows = Notification.objects.filter(user=actor, is_shown=True)
    if unread:
        rows = rows.filter(read_at__isnull=True)
    if event:
        rows = rows.filter(event=event)
    return rows.order_by("-created_at", "-id")


def unread_count(actor: User) -> int:
    """How many the bell shows."""
    return notification_list(actor, unread=True).count()


def rhythm_of(actor: User) -> Rhythm:
    """The actor's pace of mails; not stored where they never chose."""
    return Rhythm.objects.filter(user=actor).first() or Rhythm(user=actor)


def choices_of(user_ids: Iterable[UUID]) -> Chosen:
    """What these people chose, in one query."""
    rows = Choice.objects.filter(user_id__in=list(user_ids))
    return {
        (user_id, event, channel): is_on
        for user_id, event, channel, is_on in rows.values_list("user_id", "event", "channel", "is_on")
    }


def is_on(event: EventType, user_id: UUID, channel: str, chosen: Chosen) -> bool:
    """Whether a person is told of an event on a channel."""
    if channel == APP and not event.may_be_off:
        return True
    return chosen.get((user_id, event.key, channel), channel in event.defaults)


def endpoints_in_use(*, user_ids: Sequence[UUID] = (), team_ids: Sequence[UUID] = ()) -> QuerySet[Endpoint]:
    """The endpoints of these people and of these teams."""
    owners = Q(user_id__in=user_ids) | Q(team_id__in=team_ids)
    return Endpoint.objects.filter(owners, removed_at__isnull=True).order_by("created_at", "id")


def messages_of(*, actor: User | None, team_ids: Sequence[UUID] | None) -> QuerySet[Message]:
    """The log of sendings, newest first: the actor's own, and those of these teams' endpoints. Both None: all."""
    rows = Message.objects.select_related("user", "endpoint", "endpoint__user").prefetch_related("attempts")
    if actor is not None:
        mine = Q(user=actor) | Q(endpoint__user=actor)
        rows = rows.filter(mine | Q(endpoint__team_id__in=team_ids or []))
    return rows.order_by("-created_at", "-id")


def sent_since(message_rows: QuerySet[Message], since: datetime) -> list[datetime]:
    """When a target's messages of late were made, oldest first."""
    return list(
        message_rows.filter(created_at__gt=since).order_by("created_at").values_list("created_at", flat=True)
    )
