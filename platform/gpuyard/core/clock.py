"""The database's clock is the only clock that decides order, age, billing and leases.

SQL has `yard_now()`; this module is its Python side. Both add an offset that only the owner role can set
(tests do) and that only grows, so that a test can jump ahead without any process lying to another.
"""

from __future__ import annotations

from datetime import datetime

from django.db import connection
from django.db.models import DateTimeField, Func


class YardNow(Func):
    """`yard_now()` as an ORM expression, also for `db_default`."""

    function = "yard_now"
    template = "%(function)s()"
    output_field = DateTimeField()


def now() -> datetime:
    """Returns the platform's time: the database's clock plus the tests' offset, aware, in UTC."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT yard_now()")
        (value,) = cursor.fetchone()
    assert isinstance(value, datetime)
    return value
