"""Webhooks and Slack channels: making, changing, trying and removing them, and sending a message once more.

This app knows no roles: where an endpoint is a team's, the caller has proved that the actor may change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from gpuyard.audit.services import event_record
from gpuyard.core import clock, ids
from gpuyard.core.errors import Conflict, Invalid, NotFound, StaleState
from gpuyard.core.models import User
from gpuyard.core.states import state_move, states_move
from gpuyard.core.text import text_check
from gpuyard.notify.addresses import LONGEST, addresses_of, place_parse
from gpuyard.notify.events import TEST, events_chosen
from gpuyard.notify.models import (
    MESSAGE_EDGES,
    Delivery,
    Endpoint,
    EndpointKind,
    Message,
    MessageState,
    Notification,
)
from gpuyard.notify.services import deliver_after_commit
from gpuyard.notify.signing import secret_new
from gpuyard.notify.vault import sealed

MOST_ENDPOINTS = 20  # of a person or of a team
BOTH_FOR = timedelta(hours=24)


@transaction.atomic
def endpoint_create(
    *,
    actor: User,
    kind: str,
    name: str,
    url: str,
    events: Sequence[str] = (),
    team_id: UUID | None = None,
    company_id: UUID | None = None,
) -> tuple[Endpoint, str]:
    """A new endpoint, of a team or (without one) of the actor, and its secret, which is shown this once.

    A Slack channel has none: its address is the secret. `events`: what a team's is told of, empty means all.
    """
    if kind not in EndpointKind.values:
        remedy = _("Choose one of %(kinds)s.") % {"kinds": ", ".join(EndpointKind.values)}
        raise Invalid("kind_unknown", _("There is no such kind."), field="kind", remedy=remedy)
    name = text_check(name, field="name", longest=80)
    place = place_parse(text_check(url, field="url", longest=LONGEST))
    addresses_of(place)
    secret = secret_new() if kind == EndpointKind.WEBHOOK else ""
    endpoint = Endpoint(
        kind=kind,
        name=name,
        user=None if team_id else actor,
        team_id=team_id,
        company_id=company_id,
        host=place.host,
        url_sealed=sealed(url.strip()),
        secret_sealed=sealed(secret) if secret else "",
        events=_events_checked(events),
        created_by=actor,
    )
    _room_check(endpoint)
    endpoint.save(force_insert=True)
    endpoint.refresh_from_db()
    _record(
        actor,
        endpoint,
        "notify.endpoint_create",
        new={"kind": kind, "host": place.host, "events": endpoint.events},
    )
    return endpoint, secret


def _room_check(endpoint: Endpoint) -> None:
    mine = Endpoint.objects.filter(removed_at__isnull=True)
    owned = mine.filter(team_id=endpoint.team_id) if endpoint.team_id else mine.filter(user=endpoint.user)
    if owned.count() >= MOST_ENDPOINTS:
        raise Conflict(
            "too_many_endpoints",
            _("There are %(most)s endpoints already.") % {"most": MOST_ENDPOINTS},
            remedy=_("Remove one that is not needed."),
        )


def _events_checked(events: Sequence[str]) -> list[str]:
    known = [one.key for one in events_chosen()]
    if unknown := sorted(set(events) - set(known)):
        raise Invalid(
            "event_unknown",
            _("There is no such event: %(event)s.") % {"event": unknown[0][:60]},
            field="events",
            remedy=_("Choose from: %(events)s.") % {"events": ", ".join(known)},
        )
    return [key for key in known if key in set(events)]


@transaction.atomic
def endpoint_events_set(*, actor: User, endpoint: Endpoint, events: Sequence[str]) -> Endpoint:
    """Sets what a team's endpoint is told of; empty means all."""
    old = endpoint.events
    endpoint.events = _events_checked(events)
    _change(endpoint, events=endpoint.events)
    _record(actor, endpoint, "notify.endpoint_events", old={"events": old}, new={"events": endpoint.events})
    return endpoint


@transaction.atomic
def endpoint_rotate(*, actor: User, endpoint: Endpoint, reason: str = "") -> str:
    """A new secret, shown this once. For a day both sign, so that nothing is lost while the receiver changes over."""
    if endpoint.kind != EndpointKind.WEBHOOK:
        raise Conflict(
            "no_secret",
            _("A Slack channel has no secret of ours."),
            remedy=_("Give it a new address in Slack."),
        )
    secret, until = secret_new(), clock.now() + BOTH_FOR
    current = Endpoint.objects.select_for_update(no_key=True).get(pk=endpoint.pk)
    _change(
        endpoint,
        secret_sealed=sealed(secret),
        old_secret_sealed=current.secret_sealed,
        old_secret_until=until,
    )
    _record(actor, endpoint, "notify.endpoint_rotate", new={"old_valid_until": until}, reason=reason)
    return secret


@transaction.atomic
def endpoint_remove(*, actor: User, endpoint: Endpoint) -> None:
    """Removes it: nothing is sent there any more, what was sent stays in the log."""
    _change(endpoint, removed_at=clock.now(), url_sealed="", secret_sealed="", old_secret_sealed="")
    Delivery.objects.filter(endpoint=endpoint, message__isnull=True).delete()
    open_ones = Message.objects.filter(endpoint=endpoint)
    states_move(
        open_ones,
        old=MessageState.QUEUED,
        new=MessageState.DROPPED,
        edges=MESSAGE_EDGES,
        ended_at=clock.now(),
    )
    _record(actor, endpoint, "notify.endpoint_remove")


def _change(endpoint: Endpoint, **changes: object) -> None:
    if not Endpoint.objects.filter(pk=endpoint.pk, removed_at__isnull=True).update(**changes):
        raise NotFound("endpoint_unknown", _("It has been removed already."))


@transaction.atomic
def endpoint_test(*, actor: User, endpoint: Endpoint, reason: str = "") -> Message:
    """Sends a test the same way as all else; its outcome is in the log. Not while one is on its way already."""
    if endpoint.removed_at is not None:
        raise NotFound("endpoint_unknown", _("It has been removed already."))
    now = clock.now()
    news = Notification.objects.create(
        event=TEST.key,
        subject=_("A test of %(name)s") % {"name": endpoint.name},
        facts=[[_("Asked for by"), str(actor)]],
        url="/notifications",
        dedupe_key=f"test:{ids.uuid7()}",
        routed_at=now,
        is_shown=False,
    )
    try:
        with transaction.atomic():
            message = Message.objects.create(endpoint=endpoint, title=news.subject, item_count=1, due_at=now)
    except IntegrityError:
        raise _busy() from None
    Delivery.objects.create(notification=news, endpoint=endpoint, due_at=now, is_urgent=True, message=message)
    _record(actor, endpoint, "notify.endpoint_test", reason=reason)
    deliver_after_commit()
    return message


@transaction.atomic
def message_again(*, actor: User, message: Message, reason: str = "") -> Message:
    """Sends a failed message once more, with all its tries."""
    if message.state != MessageState.FAILED:
        raise Conflict(
            "message_not_failed", _("This has not failed."), remedy=_("Only what failed can be sent again.")
        )
    if message.endpoint is not None and message.endpoint.removed_at is not None:
        raise Conflict("endpoint_removed", _("The endpoint was removed."), remedy=_("Make a new one."))
    now = clock.now()
    try:
        with transaction.atomic():
            state_move(
                Message,
                message.pk,
                old=MessageState.FAILED,
                new=MessageState.QUEUED,
                edges=MESSAGE_EDGES,
                tries=0,
                due_at=now,
                lease_until=None,
                ended_at=None,
            )
    except IntegrityError:
        raise _busy() from None
    event_record(
        company_id=message.endpoint.company_id if message.endpoint else None,
        actor=actor,
        action="notify.send_again",
        subject=message,
        reason=reason,
    )
    deliver_after_commit()
    message.refresh_from_db()
    return message


def _busy() -> StaleState:
    return StaleState(
        "message_open",
        _("Another message to it is on its way."),
        remedy=_("Wait until it has been sent or has failed."),
    )


def _record(
    actor: User,
    endpoint: Endpoint,
    action: str,
    *,
    old: object = None,
    new: object = None,
    reason: str = "",
) -> None:
    event_record(
        company_id=endpoint.company_id,
        actor=actor,
        action=action,
        subject=endpoint,
        old=old,
        new=new,
        reason=reason,
    )
