"""From a piece of news to its targets: who wants it where, and when it is due."""

from __future__ import annotations

import zoneinfo
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.db import transaction

from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.notify import selectors
from gpuyard.notify.events import APP, EMAIL, HOOK, event_type
from gpuyard.notify.models import Delivery, Endpoint, Notification, Pace, Rhythm

_BATCH = 500


def route() -> int:
    """Gives all new pieces of news their targets; returns how many. Safe beside itself."""
    routed_count = 0
    while batch_count := _route_batch():
        routed_count += batch_count
    return routed_count


@transaction.atomic
def _route_batch() -> int:
    unrouted = Notification.objects.filter(routed_at__isnull=True).order_by("id")
    rows = list(unrouted.select_for_update(skip_locked=True)[:_BATCH])
    if not rows:
        return 0
    wishes = _wishes_load(rows)
    deliveries = [delivery for row in rows for delivery in _deliveries(row, wishes)]
    Delivery.objects.bulk_create(deliveries, ignore_conflicts=True)
    keys = [row.pk for row in rows]
    Notification.objects.filter(pk__in=keys).update(routed_at=wishes.now)
    hidden = [row.pk for row in rows if row.user_id and not wishes.wants(row.user_id, row.event, APP)]
    Notification.objects.filter(pk__in=hidden).update(is_shown=False)
    return len(rows)


@dataclass(frozen=True)
class _Wishes:
    """All that the routing of a batch needs to know."""

    now: datetime
    people: Mapping[UUID, User]  # those who may still sign in
    rhythms: Mapping[UUID, Rhythm]
    chosen: selectors.Chosen
    endpoints_by_user: Mapping[UUID, Sequence[Endpoint]]
    endpoints_by_team: Mapping[UUID, Sequence[Endpoint]]

    def wants(self, user_id: UUID, event: str, channel: str) -> bool:
        return selectors.is_on(event_type(event), user_id, channel, self.chosen)


def _wishes_load(rows: Sequence[Notification]) -> _Wishes:
    user_ids = sorted({row.user_id for row in rows if row.user_id})
    team_ids = sorted({team_id for row in rows for team_id in row.team_path})
    by_user: dict[UUID, list[Endpoint]] = defaultdict(list)
    by_team: dict[UUID, list[Endpoint]] = defaultdict(list)
    for one in selectors.endpoints_in_use(user_ids=user_ids, team_ids=team_ids):
        if one.user_id:
            by_user[one.user_id].append(one)
        elif one.team_id:
            by_team[one.team_id].append(one)
    return _Wishes(
        now=clock.now(),
        people={one.pk: one for one in User.objects.filter(pk__in=user_ids, is_active=True)},
        rhythms={one.user_id: one for one in Rhythm.objects.filter(user_id__in=user_ids)},
        chosen=selectors.choices_of(user_ids),
        endpoints_by_user=by_user,
        endpoints_by_team=by_team,
    )


def _deliveries(row: Notification, wishes: _Wishes) -> Iterator[Delivery]:
    if row.user_id is None:
        yield from _for_teams(row, wishes)
    elif person := wishes.people.get(row.user_id):
        yield from _for_person(row, person, wishes)


def _for_teams(row: Notification, wishes: _Wishes) -> Iterable[Delivery]:
    for team_id in row.team_path:
        for endpoint in wishes.endpoints_by_team.get(team_id, ()):
            if not endpoint.events or row.event in endpoint.events:
                yield _delivery(row, wishes.now, endpoint=endpoint)


def _for_person(row: Notification, person: User, wishes: _Wishes) -> Iterable[Delivery]:
    if person.email and wishes.wants(person.pk, row.event, EMAIL):
        rhythm = wishes.rhythms.get(person.pk) or Rhythm(user=person)
        is_urgent = event_type(row.event).is_urgent
        due_at = wishes.now if is_urgent else moment_due(rhythm, wishes.now)
        yield _delivery(row, due_at, user=person)
    if wishes.wants(person.pk, row.event, HOOK):
        for endpoint in wishes.endpoints_by_user.get(person.pk, ()):
            yield _delivery(row, wishes.now, endpoint=endpoint)


def _delivery(
    row: Notification, due_at: datetime, *, user: User | None = None, endpoint: Endpoint | None = None
) -> Delivery:
    is_urgent = event_type(row.event).is_urgent
    return Delivery(notification=row, user=user, endpoint=endpoint, due_at=due_at, is_urgent=is_urgent)


def moment_due(rhythm: Rhythm, now: datetime) -> datetime:
    """When what is not urgent goes out: now, at the next full hour, or at the next such hour where they live."""
    if rhythm.pace == Pace.HOURLY:
        return now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    if rhythm.pace != Pace.DAILY:
        return now
    local = now.astimezone(_zone(rhythm.time_zone))
    at = local.replace(hour=rhythm.hour, minute=0, second=0, microsecond=0, fold=0)
    if at <= local:
        at += timedelta(days=1)  # of the calendar: the same hour, whatever the clocks did meanwhile
    return at.astimezone(UTC)


def _zone(name: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(name or "UTC")
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):
        return zoneinfo.ZoneInfo("UTC")
