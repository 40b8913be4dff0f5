"""Cursor pages: newest first, by (created_at, id), forward only; `RankPages` for lists with an order of their own.

Not DRF's CursorPagination: that one filters by the first column alone and counts an offset through ties, so
rows stamped by one bulk statement can be skipped; and a cursor it cannot read ends in a 500 or a 404.
"""

from __future__ import annotations

import base64
import binascii
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db.models import Model, QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from gpuyard.core.errors import Invalid

if TYPE_CHECKING:  # the framework loads this module while it loads its views
    from rest_framework.views import APIView


class CursorPages(BasePagination):
    """`?page_size=` up to 200, `?cursor=` from the last page's `next`. Answers `{next, results}`."""

    page_size = 50
    max_page_size = 200
    time_field = "created_at"

    _next: str | None = None

    def paginate_queryset(
        self, queryset: QuerySet[Any] | Any, request: Request, view: APIView | None = None
    ) -> list[Any]:
        """Returns one page of `queryset`, whose own order is replaced."""
        cursor = request.query_params.get("cursor", "")
        page, following = keyset_page(queryset, cursor, self._size(request), time_field=self.time_field)
        if following:
            self._next = replace_query_param(request.build_absolute_uri(), "cursor", following)
        return page

    def get_paginated_response(self, data: Any) -> Response:
        return Response({"next": self._next, "results": data})

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "object",
            "required": ["next", "results"],
            "properties": {
                "next": {"type": ["string", "null"], "format": "uri"},
                "results": schema,
            },
        }

    def get_schema_operation_parameters(self, view: APIView) -> list[dict[str, Any]]:
        size = {"type": "integer", "minimum": 1, "maximum": self.max_page_size, "default": self.page_size}
        return [
            _parameter(
                "cursor", gettext_lazy("Where the page starts: taken from `next`."), {"type": "string"}
            ),
            _parameter("page_size", gettext_lazy("How many rows a page has."), size),
        ]

    def _size(self, request: Request) -> int:
        text = request.query_params.get("page_size")
        if text is None:
            return self.page_size
        if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= self.max_page_size):
            raise Invalid(
                "page_size_invalid",
                _("The page size is not valid."),
                field="page_size",
                remedy=_("Give a whole number from 1 to %(most)s.") % {"most": self.max_page_size},
            )
        return int(text)


def keyset_page(
    queryset: QuerySet[Any] | Any, cursor: str, size: int, *, time_field: str = "created_at"
) -> tuple[list[Any], str]:
    """The rows behind the cursor (empty: the newest), and the cursor of the page after; empty on the last one."""
    if cursor:
        created_at, pk = _decode(cursor)
        queryset = queryset.filter(**{f"{time_field}__lte": created_at}).exclude(
            **{time_field: created_at}, pk__gte=pk
        )
    rows: list[Model] = list(queryset.order_by(f"-{time_field}", "-pk")[: size + 1])
    page = rows[:size]
    return page, _encode(getattr(page[-1], time_field), page[-1].pk) if len(rows) > size else ""


class RankPages(CursorPages):
    """For lists in an order of their own, by name or by turn: the cursor says how many rows were seen.

    If the list changes between two pages, a row may be shown twice or not at all.
    """

    def paginate_queryset(
        self, queryset: QuerySet[Any] | Any, request: Request, view: APIView | None = None
    ) -> list[Any]:
        size = self._size(request)
        seen = _rank(request.query_params.get("cursor", "0"))
        rows = list(queryset[seen : seen + size + 1])
        if len(rows) > size:
            self._next = replace_query_param(request.build_absolute_uri(), "cursor", str(seen + size))
        return rows[:size]


def _rank(cursor: str) -> int:
    if cursor.isascii() and cursor.isdigit() and len(cursor) < 10:
        return int(cursor)
    raise _cursor_invalid()


def _cursor_invalid() -> Invalid:
    return Invalid(
        "cursor_invalid",
        _("The cursor is not valid."),
        field="cursor",
        remedy=_("Take it from `next` of the page before, or leave it out to start anew."),
    )


def _parameter(name: str, description: Any, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": str(description), "schema": schema}


def _encode(created_at: datetime, pk: Any) -> str:
    text = json.dumps([created_at.isoformat(), str(pk)])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decode(cursor: str) -> tuple[datetime, UUID]:
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        time_text, pk_text = json.loads(text[:200])  # ours are shorter; a deep nest would exhaust the stack
        created_at = datetime.fromisoformat(time_text)
        if created_at.tzinfo is None:
            raise ValueError("a cursor without a time zone")
        return created_at, UUID(pk_text)
    except (ValueError, TypeError, AttributeError, binascii.Error) as exc:
        raise _cursor_invalid() from exc
