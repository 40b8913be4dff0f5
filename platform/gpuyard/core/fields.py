"""Column types that Django has no field for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models

if TYPE_CHECKING:
    _Field = models.Field[Any, Any]
else:
    _Field = models.Field  # generic for the type checker only


class Int4MultiRangeField(_Field):
    """PostgreSQL `int4multirange`; in Python a psycopg `Multirange` of `Range[int]`."""

    def db_type(self, connection: Any) -> str:
        return "int4multirange"


class DateTimeMultiRangeField(_Field):
    """PostgreSQL `tstzmultirange`; in Python a psycopg `Multirange` of `Range[datetime]`."""

    def db_type(self, connection: Any) -> str:
        return "tstzmultirange"
