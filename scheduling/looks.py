"""Reading many tables as of one moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction


@contextmanager
def one_look() -> Iterator[None]:
    """All reads of the block see one state of the database (REPEATABLE READ), and lock nothing."""
    if connection.in_atomic_block:  # somebody else's transaction: its isolation is no longer ours to set
        yield
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield
