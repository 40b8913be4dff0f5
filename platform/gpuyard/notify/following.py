"""Telling people of what the log says happened, without a line in the services that did it.

The sealer gives events their places in the order in which they were committed. So one bookmark for each log is enough
to meet every event exactly once, and the pass, the agents and the forms are not slowed by a single statement. An app
registers a teller for the actions that it knows; the bookmark moves in the transaction that stores the news.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Min

from gpuyard.audit.models import Event
from gpuyard.audit.selectors import chain_head
from gpuyard.core import clock
from gpuyard.core.hooks import KeyedHook
from gpuyard.notify.events import EventType, event_types
from gpuyard.notify.models import Bookmark
from gpuyard.notify.services import Notice, notices_record

_BATCH = 500
_NEWS_FOR = timedelta(hours=1)  # where there is no bookmark yet, what is older is no news


@dataclass(frozen=True)
class Teller:
    """What an app makes of the events with these actions: `tell` gets a batch in order, and returns the news."""

    actions: frozenset[str]
    tell: Callable[[Sequence[Event]], Iterable[Notice]]


tellers: KeyedHook[Teller] = KeyedHook("tellers")


def events_register(app: str, events: Iterable[EventType], teller: Teller) -> None:
    """What an app's `ready()` calls: its kinds of news, and who makes them of the log."""
    for one in events:
        event_types.register(one.key, one)
    tellers.register(app, teller)


def follow() -> int:
    """Tells of all events sealed since the last time; returns how many were looked at."""
    return sum(_follow(company_id) for company_id in _logs())


def _follow(company_id: UUID | None) -> int:
    looked_at = 0
    while batch_count := _follow_batch(company_id):
        looked_at += batch_count
    return looked_at


@transaction.atomic
def _follow_batch(company_id: UUID | None) -> int:
    """One batch; 0 when there is nothing new, or somebody else is at it."""
    bookmark = _bookmark(company_id)
    if bookmark is None:
        return 0
    head, _hash = chain_head(company_id)
    upto = min(head, bookmark.sequence + _BATCH)
    if upto <= bookmark.sequence:
        return 0
    registered = [tellers.get(key) for key in tellers.keys()]  # noqa: SIM118 - no mapping
    wanted = frozenset[str]().union(*(teller.actions for teller in registered))
    events = list(
        Event.objects.filter(
            company_id=company_id, sequence__gt=bookmark.sequence, sequence__lte=upto, action__in=wanted
        ).order_by("sequence")
    )
    for teller in registered:
        if its := [event for event in events if event.action in teller.actions]:
            notices_record(teller.tell(its))
    done = upto - bookmark.sequence
    Bookmark.objects.filter(pk=bookmark.pk).update(sequence=upto)
    return done


def _bookmark(company_id: UUID | None) -> Bookmark | None:
    """The log's bookmark, locked; None while somebody else has it."""
    rows = Bookmark.objects.filter(company_id=company_id)
    if not rows.exists():
        new = Bookmark(company_id=company_id, sequence=_first(company_id))
        Bookmark.objects.bulk_create([new], ignore_conflicts=True)
    return rows.select_for_update(skip_locked=True).first()


def _first(company_id: UUID | None) -> int:
    """Where a log without a bookmark is begun: before the first event that is still news."""
    fresh = Event.objects.filter(
        company_id=company_id, sequence__isnull=False, created_at__gte=clock.now() - _NEWS_FOR
    )
    first = fresh.aggregate(first=Min("sequence"))["first"]
    return chain_head(company_id)[0] if first is None else first - 1


_LOGS = """
WITH RECURSIVE log (company_id) AS (
  (SELECT company_id FROM audit_event WHERE sequence IS NOT NULL AND company_id IS NOT NULL ORDER BY company_id LIMIT 1)
  UNION ALL
  SELECT (SELECT e.company_id FROM audit_event e WHERE e.sequence IS NOT NULL AND e.company_id > log.company_id
          ORDER BY e.company_id LIMIT 1)
  FROM log WHERE log.company_id IS NOT NULL
) SELECT company_id FROM log WHERE company_id IS NOT NULL
"""


def _logs() -> list[UUID | None]:
    """Each log: from company to company along the index, whatever the number of events."""
    with connection.cursor() as cursor:
        cursor.execute(_LOGS)
        return [None, *(company_id for (company_id,) in cursor.fetchall())]
