"""What the apps' API modules share: strict fields, In and Out serialisers, and pages.

JSON has types, and we hold clients to them: `"5"` is no number and `1` no boolean, and a field that we do not know
is refused instead of ignored, or a misspelt one would silently change what is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, cast

from django.utils.translation import gettext as _
from drf_spectacular.drainage import set_override
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpuyard.core.models import User
from gpuyard.core.pagination import CursorPages

_SHOWN = 80  # of a name that a client sent


def actor_of(request: Request) -> User:
    """The signed-in user; only for views that require one."""
    assert isinstance(request.user, User)
    return request.user


# --- Fields ------------------------------------------------------------------------------------------------


class Text(serializers.CharField):
    """A JSON string; numbers are not turned into one."""

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class Whole(serializers.IntegerField):
    """A JSON integer."""

    def to_internal_value(self, data: Any) -> int:
        if not isinstance(data, int) or isinstance(data, bool):
            self.fail("invalid")
        return super().to_internal_value(data)


class Number(serializers.FloatField):
    """A JSON number."""

    def to_internal_value(self, data: Any) -> float:
        if not isinstance(data, int | float) or isinstance(data, bool):
            self.fail("invalid")
        return super().to_internal_value(data)


class Flag(serializers.BooleanField):
    """`true` or `false`."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


@extend_schema_field({"type": "string", "format": "decimal"})
class Amount(serializers.Field[Decimal, Any, str, Any]):
    """An exact number as text; with `places`, rounded to that many decimals."""

    def __init__(self, *, places: int | None = None, **kwargs: Any) -> None:
        self.places = places
        super().__init__(read_only=True, **kwargs)

    def to_representation(self, value: Decimal) -> str:
        return f"{value:f}" if self.places is None else f"{value:.{self.places}f}"


@extend_schema_field({"type": "object", "additionalProperties": {}})
class Document(serializers.Field[Mapping[str, Any], Any, Any, Any]):
    """A JSON object as it is stored."""

    def to_representation(self, value: Mapping[str, Any]) -> Any:
        return value


@extend_schema_field({})
class Anything(serializers.Field[Any, Any, Any, Any]):
    """Whatever JSON is stored, null included."""

    def to_representation(self, value: Any) -> Any:
        return value


# --- Serialisers -------------------------------------------------------------------------------------------


class _Named(serializers.Serializer[Any]):
    """Its name in the schema: `AttemptOut` is `Attempt`, and a view's own `QueueView.Out` is `Queue`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        view, _dot, own = cls.__qualname__.rpartition(".")
        own = own.removesuffix("In").removesuffix("Out")
        set_override(cls, "component_name", view.rpartition(".")[2].removesuffix("View") + own)


class Output(_Named):
    """What is answered."""


class Input(_Named):
    """What is sent. Unknown fields are errors, told together with the others."""

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return super().to_internal_value(data)
        unknown = {
            str(name)[:_SHOWN]: [ErrorDetail(_("There is no such field."), "unknown_field")]
            for name in data
            if name not in self.fields
        }
        try:
            value = super().to_internal_value(data)
        except ValidationError as exc:
            found: dict[str, Any] = cast("dict[str, Any]", exc.detail)  # a mapping, because `data` is one
            raise ValidationError({**unknown, **found}) from exc
        if unknown:
            raise ValidationError(unknown)
        return value


_PAGING = frozenset({"cursor", "page_size"})


def body(request: Request, shape: type[Input]) -> dict[str, Any]:
    """The request's JSON object, checked."""
    return _checked(shape(data=request.data))


def query(request: Request, shape: type[Input], *, is_paged: bool = False) -> dict[str, Any]:
    """The query parameters, checked; a list field may be repeated, of the others the last one counts."""
    given, fields = request.query_params, shape().fields
    data: dict[str, Any] = {
        name: given.getlist(name) if isinstance(fields.get(name), serializers.ListField) else given[name]
        for name in given
        if not (is_paged and name in _PAGING)
    }
    return _checked(shape(data=data))


class Nothing(Input):
    """No body, and no parameters."""


def _checked(serialiser: Input) -> dict[str, Any]:
    serialiser.is_valid(raise_exception=True)
    value: dict[str, Any] = serialiser.validated_data
    return value


# --- Lists -------------------------------------------------------------------------------------------------


class PagedView(APIView):
    """A view that answers pages."""

    pagination_class = CursorPages

    def page(
        self,
        request: Request,
        rows: Any,
        shape: type[Output],
        present: Callable[[list[Any]], Iterable[Any]] | None = None,
    ) -> Response:
        """One page of `rows`; `present` turns the page's rows into what `shape` renders."""
        pages = self.pagination_class()
        found = pages.paginate_queryset(rows, request, view=self)
        shown = present(found) if present else found
        return pages.get_paginated_response([shape(one).data for one in shown])
