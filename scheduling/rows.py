"""Plain rows out of the database (`gpuyard.core.bulk`: into it), for what is too many for model instances."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, LiteralString

from django.db import connection


def array_text(values: Iterable[object]) -> str:
    """An array parameter of ids, numbers or words: nothing in them needs quoting. psycopg would look at each."""
    return "{" + ",".join("NULL" if value is None else str(value) for value in values) + "}"


def rows_read(statement: LiteralString, **values: Any) -> list[tuple[Any, ...]]:
    """All rows of a query, or of an UPDATE that returns some. A list in `values` is one of ids."""
    given = {name: array_text(value) if isinstance(value, list) else value for name, value in values.items()}
    with connection.cursor() as cursor:
        cursor.execute(statement, given or None)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows
