"""How the allocations of replicas move, each as one statement. The guard and the exclusions have the last word.

Callers hold the rows of the nodes locked and took their times *after* locking: so no time falls before a sync that
metering has already counted up to.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection

_RUNNING = """
UPDATE scheduling_allocation SET running_at = greatest(%(at)s, lower(span))
WHERE replica_id = %(replica)s AND state IN ('held', 'stopping', 'unconfirmed') AND running_at IS NULL
"""

# An unconfirmed one stays so (nobody knows what runs there), but comes back as stopping.
_STOPPING = """
UPDATE scheduling_allocation
SET state = CASE state WHEN 'held' THEN 'stopping' ELSE state END, stopping_at = greatest(%(at)s, lower(span))
WHERE replica_id = ANY(%(replicas)s) AND state IN ('held', 'unconfirmed') AND stopping_at IS NULL
"""

_END = """
UPDATE scheduling_allocation
SET state = 'ended',
    span = tstzrange(lower(span), greatest(%(at)s, lower(span) + interval '1 microsecond')),
    uncharged = uncharged * tstzmultirange(tstzrange(NULL, greatest(%(at)s, lower(span) + interval '1 microsecond')))
WHERE replica_id = %(replica)s AND state IN ('held', 'stopping', 'unconfirmed')
"""

_LOST = """
UPDATE scheduling_allocation a
SET state = 'unconfirmed',
    uncharged = uncharged + tstzmultirange(tstzrange(greatest(%(since)s, lower(a.span)), NULL))
FROM scheduling_replica r
WHERE r.id = a.replica_id AND r.node_id = %(node)s AND a.state IN ('held', 'stopping')
"""

_BACK = """
UPDATE scheduling_allocation a
SET state = CASE WHEN a.stopping_at IS NULL THEN 'held' ELSE 'stopping' END,
    uncharged = uncharged * tstzmultirange(tstzrange(NULL, %(at)s))
FROM scheduling_replica r
WHERE r.id = a.replica_id AND r.node_id = %(node)s AND a.state = 'unconfirmed'
"""

_DROP = """
UPDATE scheduling_allocation
SET state = 'dropped',
    span = tstzrange(lower(span), greatest(%(at)s, lower(span) + interval '1 microsecond'))
WHERE attempt_id = ANY(%(attempts)s) AND state = 'claimed'
"""


def allocations_running(replica_id: UUID, at: datetime) -> None:
    """Notes when the work on them began: until then they are in transition."""
    _execute(_RUNNING, replica=replica_id, at=at)


def allocations_stopping(replica_ids: Sequence[UUID], at: datetime) -> None:
    """held → stopping."""
    if replica_ids:
        _execute(_STOPPING, replicas=list(replica_ids), at=at)


def allocations_end(replica_id: UUID, at: datetime) -> int:
    """→ ended at `at`, but never before they began; returns how many."""
    return _execute(_END, replica=replica_id, at=at)


def allocations_lost(node_id: UUID, since: datetime) -> int:
    """held, stopping → unconfirmed, uncharged from the last answered sync on; returns how many."""
    return _execute(_LOST, node=node_id, since=since)


def allocations_back(node_id: UUID, at: datetime) -> int:
    """unconfirmed → what they were, charged again from `at` on; returns how many."""
    return _execute(_BACK, node=node_id, at=at)


def claims_drop(attempt_ids: Sequence[UUID], at: datetime) -> int:
    """claimed → dropped, for whole gangs; returns how many."""
    return _execute(_DROP, attempts=list(attempt_ids), at=at) if attempt_ids else 0


def _execute(statement: str, **values: Any) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return int(cursor.rowcount)
