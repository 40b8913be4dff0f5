"""Telling people. What is told is a row in the transaction of the act; sending it is work for later.

A broker or worker that is down delays news and loses none: the rows are the queue, and a periodic task sweeps it.
"""

from __future__ import annotations

import logging
import zoneinfo
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.utils.translation import gettext as _
from kombu.exceptions import OperationalError

from gpuyard.audit.services import event_record
from gpuyard.core import clock
from gpuyard.core.errors import Invalid
from gpuyard.core.models import User
from gpuyard.notify import selectors
from gpuyard.notify.events import APP, CHANNELS, event_types, events_chosen
from gpuyard.notify.models import Choice, Delivery, Message, Notification, Pace, Rhythm
from gpuyard.notify.routing import moment_due

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Notice:
    """Something to be told. `recipients` are users' ids; with a `team_path`, endpoints of these teams hear it too."""

    recipients: tuple[UUID, ...]
    event: str
    subject: str
    dedupe_key: str
    facts: tuple[tuple[str, str], ...] = ()
    url: str = ""  # a path of ours, or nothing
    about: str = ""
    company_id: UUID | None = None
    team_path: tuple[UUID, ...] = ()


def notify(
    recipients: Iterable[User],
    event: str,
    subject: str,
    facts: Sequence[tuple[str, str]] = (),
    url: str = "",
    dedupe_key: str = "",
    *,
    about: str = "",
    company_id: UUID | None = None,
    team_path: Sequence[UUID] = (),
) -> None:
    """Tells people, once for each `dedupe_key`, in the transaction of the act. Sending comes after its commit."""
    people = tuple(person.pk for person in recipients)
    notices_record(
        [Notice(people, event, subject, dedupe_key, tuple(facts), url, about, company_id, tuple(team_path))]
    )


def notices_record(notices: Iterable[Notice]) -> None:
    """The same for many at once, with one statement."""
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError("people are told in the transaction of the act")
    rows = [row for notice in notices for row in _rows(notice)]
    if rows:
        Notification.objects.bulk_create(rows, ignore_conflicts=True, batch_size=1000)
        deliver_after_commit()


def _rows(notice: Notice) -> Iterator[Notification]:
    event_types.get(notice.event)  # an event that nobody registered is a fault of ours
    if not notice.dedupe_key:
        raise ValueError("a notice needs a dedupe_key")
    people: list[UUID | None] = list(dict.fromkeys(notice.recipients))
    for user_id in people + ([None] if notice.team_path else []):
        yield Notification(
            user_id=user_id,
            event=notice.event,
            subject=" ".join(notice.subject.split())[:200],
            facts=[list(pair) for pair in notice.facts],
            url=notice.url,
            about=notice.about,
            dedupe_key=notice.dedupe_key[:200],
            company_id=notice.company_id,
            team_path=list(notice.team_path) if user_id is None else [],
            is_shown=user_id is not None,
        )


def deliver_after_commit() -> None:
    """Asks a worker to send once the transaction has committed."""
    transaction.on_commit(_deliver_soon)


def _deliver_soon() -> None:
    from gpuyard.notify.tasks import deliver  # tasks import the sending, which imports this

    try:
        deliver.apply_async(retry=False, expires=60)
    except OperationalError as error:
        logger.warning("the broker did not take it, the next sweep will send the news: %s", error)


@transaction.atomic
def about_settle(about: str) -> None:
    """What the news about this thing asked for is done or void: they count as read, and what is unsent stays so."""
    news = Notification.objects.filter(about=about)
    Delivery.objects.filter(notification__in=news, message__isnull=True).delete()
    news.filter(read_at__isnull=True).update(read_at=clock.now(), routed_at=clock.now())


# --- Reading -----------------------------------------------------------------------------------------------


def notifications_read(*, actor: User, ids: Sequence[UUID] | None = None) -> int:
    """Marks the actor's own as read, all of them without `ids`; returns how many that were not. No event: a look."""
    unread = selectors.notification_list(actor, unread=True)
    if ids is not None:
        unread = unread.filter(pk__in=ids)
    return unread.update(read_at=clock.now())


# --- What one wants ------------------------------------------------------------------------------------------


@transaction.atomic
def choices_set(
    *, actor: User, pace: str, hour: int, time_zone: str, choices: Mapping[str, Mapping[str, bool]]
) -> Rhythm:
    """Sets how the actor is told: the pace of mails, and for each event (and channel) given whether it is on."""
    _pace_check(pace, hour, time_zone)
    _choices_check(choices)
    before = choices_describe(actor)
    rhythm, _new = Rhythm.objects.update_or_create(
        user=actor, defaults={"pace": pace, "hour": hour, "time_zone": time_zone}
    )
    rows = [
        Choice(user=actor, event=event, channel=channel, is_on=is_on)
        for event, channels in choices.items()
        for channel, is_on in channels.items()
    ]
    Choice.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["user", "event", "channel"], update_fields=["is_on"]
    )
    waiting = Delivery.objects.filter(user=actor, message__isnull=True, is_urgent=False)
    waiting.update(due_at=moment_due(rhythm, clock.now()))
    after = choices_describe(actor)
    event_record(
        company_id=None,
        actor=actor,
        action="notify.choose",
        subject=actor,
        old=_changed(before, after),
        new=_changed(after, before),
    )
    return rhythm


def choices_describe(actor: User) -> dict[str, Any]:
    """All that the actor's settings come to: pace, hour, and for each event each channel."""
    rhythm = selectors.rhythm_of(actor)
    chosen = selectors.choices_of([actor.pk])
    return {
        "pace": str(rhythm.pace),
        "hour": rhythm.hour,
        "time_zone": rhythm.time_zone,
        "events": {
            one.key: {channel: selectors.is_on(one, actor.pk, channel, chosen) for channel in CHANNELS}
            for one in events_chosen()
        },
    }


def _changed(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    events = {key: value for key, value in one["events"].items() if other["events"].get(key) != value}
    kept = {key: one[key] for key in ("pace", "hour", "time_zone") if one[key] != other[key]}
    return {**kept, **({"events": events} if events else {})}


def _pace_check(pace: str, hour: int, time_zone: str) -> None:
    if pace not in Pace.values:
        remedy = _("Choose one of %(paces)s.") % {"paces": ", ".join(Pace.values)}
        raise Invalid("pace_unknown", _("There is no such pace."), field="pace", remedy=remedy)
    if not 0 <= hour <= 23:
        raise Invalid("hour_invalid", _("This is no hour of a day."), field="hour", remedy=_("Give 0 to 23."))
    if time_zone not in zoneinfo.available_timezones():
        raise Invalid(
            "time_zone_unknown",
            _("There is no such time zone."),
            field="time_zone",
            remedy=_("Give one such as Europe/Berlin."),
        )


def _choices_check(choices: Mapping[str, Mapping[str, bool]]) -> None:
    known = {one.key: one for one in events_chosen()}
    for event, channels in choices.items():
        if event not in known:
            raise Invalid(
                "event_unknown",
                _("There is no such event."),
                field=f"events.{event[:60]}",
                remedy=_("Choose from: %(events)s.") % {"events": ", ".join(known)},
            )
        for channel, is_on in channels.items():
            _choice_check(known[event].may_be_off, event, channel, is_on)


def _choice_check(may_be_off: bool, event: str, channel: str, is_on: bool) -> None:
    field = f"events.{event}.{channel[:20]}"
    if channel not in CHANNELS:
        remedy = _("Choose from: %(channels)s.") % {"channels": ", ".join(CHANNELS)}
        raise Invalid("channel_unknown", _("There is no such channel."), field=field, remedy=remedy)
    if channel == APP and not is_on and not may_be_off:
        raise Invalid(
            "event_always_on",
            _("This is always shown here."),
            field=field,
            remedy=_("Leave it on; e-mail may be switched off."),
        )


def notifications_purge(before: datetime) -> int:
    """Drops what was told before then, with its sendings; returns how many pieces of news."""
    Message.objects.filter(created_at__lt=before).delete()
    _rows, by_model = Notification.objects.filter(created_at__lt=before).delete()
    return by_model.get("notify.Notification", 0)
