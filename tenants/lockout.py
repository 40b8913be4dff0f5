"""Guessing is slowed down: after some tries in vain nobody may try that name, or from that address, for a while.

Counted before the password is looked at, so that tries at one moment do not slip through, and for names that nobody
has as well: an answer never tells which names exist. In the database: it holds with Redis down, and in all processes.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta

from django.db import connection

from tenants.models import Guessing

LOCKED_FOR = timedelta(minutes=15)
_LOCKED_S = LOCKED_FOR.total_seconds()
# Of this name from there; of this name from everywhere; of all names from there (an office has one address).
MOST_TRIES, MOST_OF_NAME, MOST_FROM_ADDRESS = 8, 60, 120
_COUNT = """
INSERT INTO tenants_guessing AS known (key, since, count) VALUES (%s, yard_now(), 1)
ON CONFLICT (key) DO UPDATE SET
  count = CASE WHEN known.since < yard_now() - make_interval(secs => %s) THEN 1 ELSE known.count + 1 END,
  since = CASE WHEN known.since < yard_now() - make_interval(secs => %s) THEN yard_now() ELSE known.since END
RETURNING count
"""


def try_begin(name: str, address: str) -> bool:
    """Counts a try; False: there were too many, it must not be looked at."""
    own, of_name, from_address = _keys(name, address)
    counts = [_count(own), _count(of_name), _count(from_address)]
    return all(
        count <= most
        for count, most in zip(counts, (MOST_TRIES, MOST_OF_NAME, MOST_FROM_ADDRESS), strict=True)
    )


def try_succeeded(name: str, address: str) -> None:
    """It was right: the tries of this name from there are forgotten, and this one does not count for the others."""
    own, of_name, from_address = _keys(name, address)
    Guessing.objects.filter(key=own).delete()
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE tenants_guessing SET count = count - 1 WHERE key = ANY(%s) AND count > 0",
            [[of_name, from_address]],
        )


def guesses_purge() -> None:
    """Forgets what locks nothing any more."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM tenants_guessing WHERE since < yard_now() - make_interval(secs => %s)",
            [2 * _LOCKED_S],
        )


def _count(key: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(_COUNT, [key, _LOCKED_S, _LOCKED_S])
        (count,) = cursor.fetchone()
    return int(count)


def _keys(name: str, address: str) -> tuple[str, str, str]:
    """Hashed: what is typed as a name may be a password, typed a field too early."""
    plain = name.strip().lower()
    return _hashed("both", plain, address), _hashed("name", plain), _hashed("address", address)


def _hashed(*parts: str) -> str:
    return f"{parts[0]}:{hashlib.sha256(repr(parts).encode('utf-8', 'replace')).hexdigest()}"
