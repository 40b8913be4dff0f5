"""Plain rows out of the database (`gpuyard.core.bulk`: into it), for what is too many for model instances."""

from __future__ import annotations

from typing import Any, LiteralString

from django.db import connection


def rows_read(statement: LiteralString, **values: Any) -> list[tuple[Any, ...]]:
    """All rows of a query, or of an UPDATE that returns some."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows
