"""Many rows at once, past the ORM: it builds one statement with a parameter for each value, which costs most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.db import connection, models
from django.db.models.expressions import DatabaseDefault
from psycopg import sql
from psycopg.types.json import Jsonb


def rows_insert(model: type[models.Model], names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """COPYs rows into the model's table, in the caller's transaction. Checks and triggers act as on INSERT.

    `names` are the model's field names; what is left out takes its default of the database, never the one of the
    model, so that the caller gives the key. JSON values come as `Jsonb`, foreign keys as keys.
    """
    columns = {field.name: field.column for field in model._meta.concrete_fields}
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(model._meta.db_table),
        sql.SQL(", ").join([sql.Identifier(str(columns[name])) for name in names]),
    )
    with connection.cursor() as cursor, connection.wrap_database_errors, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row)


def instances_insert(instances: Sequence[models.Model]) -> None:
    """The same for instances of one model that are not stored yet: no signals, no `auto_now`.

    What the first of them leaves to the database, all do.
    """
    if not instances:
        return
    first = instances[0]
    fields = [
        field
        for field in first._meta.concrete_fields
        if not isinstance(getattr(first, field.attname), DatabaseDefault)
    ]
    rows = ([_value(field, one) for field in fields] for one in instances)
    rows_insert(type(first), [field.name for field in fields], rows)


def _value(field: models.Field[Any, Any], instance: models.Model) -> Any:
    value = getattr(instance, field.attname)
    return Jsonb(value) if value is not None and isinstance(field, models.JSONField) else value
