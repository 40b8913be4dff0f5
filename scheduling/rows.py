"""Plain rows in and out of the database, for what is too many for model instances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString

from django.db import connection


def rows_read(statement: LiteralString, **values: Any) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def rows_insert(
    table: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]], *, tail: str = ""
) -> list[tuple[Any, ...]]:
    """Inserts rows with one statement; `columns` are (name, SQL type) in the order of the rows' values.

    `tail` is what follows the rows (`ON CONFLICT DO NOTHING RETURNING id`); returns what that returns.
    """
    if not rows:
        return []
    names = ", ".join(name for name, _type in columns)
    arrays = ", ".join(f"%s::{kind}[]" for _name, kind in columns)
    statement = f"INSERT INTO {table} ({names}) SELECT * FROM unnest({arrays}) {tail}"  # noqa: S608  # our own names
    with connection.cursor() as cursor:
        cursor.execute(statement, [list(column) for column in zip(*rows, strict=True)])
        return cursor.fetchall() if "RETURNING" in tail else []
