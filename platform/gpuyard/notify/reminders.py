"""Reminders: one for each due moment, however late, and however often, the job that sends them runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db import connection, transaction

from gpuyard.core import clock
from gpuyard.notify.models import Reminder
from gpuyard.notify.services import Notice, notices_record


@dataclass(frozen=True)
class Due:
    """A moment to remind of. `key` names thing and reminder ("grant:<id>:week"); a moved moment is a new one."""

    key: str
    due_at: datetime
    notice: Callable[[], Notice]  # called only if it is really sent


def remind_once(reminders: Iterable[Due]) -> int:
    """Tells what is due and was not told yet; returns how many. Three statements, however many there are.

    Callers pass what is still true now: of an object that has ended they pass nothing, so nothing dead is told.
    All that one run tells a person goes out together, as one digest.
    """
    now = clock.now()
    due = {(one.key, one.due_at): one for one in reminders if one.due_at <= now}
    if not due:
        return 0
    with transaction.atomic():
        claimed = [due[pair] for pair in _claim(list(due))]
        notices_record(one.notice() for one in claimed)
    return len(claimed)


_CLAIM = """
INSERT INTO {table} (key, due_at)
SELECT * FROM unnest(%s::text[], %s::timestamptz[]) ORDER BY 1, 2
ON CONFLICT (key, due_at) DO NOTHING RETURNING key, due_at
"""


def _claim(pairs: list[tuple[str, datetime]]) -> list[tuple[str, datetime]]:
    """Those that nobody claimed before. The insert is the claim: of two jobs at once, one gets each row."""
    with connection.cursor() as cursor:
        statement = _CLAIM.format(table=Reminder._meta.db_table)  # a constant of ours
        cursor.execute(statement, [[key for key, _at in pairs], [at for _key, at in pairs]])
        return [(key, at) for key, at in cursor.fetchall()]
