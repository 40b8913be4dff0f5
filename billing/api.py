"""Costs by team and day: as JSON, and as CSV with exactly the same rows."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponseBase, StreamingHttpResponse
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from billing.selectors import CostFilters, cost_by_team_day, cost_csv
from gpuyard.core.errors import Invalid
from gpuyard.core.rest import Amount, Input, Output, actor_of, query
from scheduling.models import Kind


class Filters(Input):
    """Days of the companies' own calendars, both inclusive."""

    team = serializers.CharField(required=False, help_text="The id of a team; the teams below it count.")
    tier = serializers.CharField(required=False)
    kind = serializers.ChoiceField(Kind.choices, required=False)

    def get_fields(self) -> dict[str, Any]:
        # `from` is no name for an attribute in Python
        days = {name: serializers.DateField(required=False) for name in ("from", "to")}
        return {**days, **super().get_fields()}

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "from" in attrs and "to" in attrs and attrs["from"] > attrs["to"]:
            raise Invalid(
                "range_reversed",
                _("The first day is after the last."),
                field="from",
                remedy=_("Choose an earlier first day or a later last day."),
            )
        return attrs


def _filters(request: Request) -> CostFilters:
    asked = query(request, Filters)
    return CostFilters(
        team=asked.get("team", ""),
        since=asked.get("from"),
        until=asked.get("to"),
        tier=asked.get("tier", ""),
        kind=asked.get("kind", ""),
    )


class CostTeam(Output):
    id = serializers.CharField(source="team_id")
    name = serializers.CharField(source="team_name")


class CostRowOut(Output):
    """`cost` is null for who may only see prices."""

    day = serializers.DateField()
    team = CostTeam(source="*")
    tier = serializers.CharField()
    kind = serializers.ChoiceField(Kind.choices)
    gpu_hours = Amount()
    currency = serializers.CharField()
    price = Amount()
    cost = Amount(allow_null=True)


class CostTotalOut(Output):
    currency = serializers.CharField()
    gpu_hours = Amount()
    price = Amount()
    cost = Amount(allow_null=True)


class CostsView(APIView):
    """What the teams used, and what it is charged at. Rows add up to the totals to the last digit."""

    class Out(Output):
        rows = CostRowOut(many=True)
        totals = CostTotalOut(many=True)
        cost_currency = serializers.CharField()
        as_of = serializers.DateTimeField()
        metered_until = serializers.DateTimeField(allow_null=True)

    @extend_schema(operation_id="costs", parameters=[Filters], responses=Out)
    def get(self, request: Request) -> Response:
        return Response(self.Out(cost_by_team_day(actor_of(request), _filters(request))).data)


class _Csv(BaseRenderer):
    """For content negotiation only: the file is streamed past it."""

    media_type = "text/csv"
    format = "csv"

    def render(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return data


class CostsCsvView(APIView):
    """The same rows as a file."""

    renderer_classes = [_Csv, JSONRenderer]

    @extend_schema(
        operation_id="costs_csv",
        parameters=[Filters],
        responses={(200, "text/csv"): OpenApiTypes.STR},
    )
    def get(self, request: Request) -> HttpResponseBase:
        lines = cost_csv(actor_of(request), _filters(request))
        answer = StreamingHttpResponse(lines, content_type="text/csv; charset=utf-8")
        answer["Content-Disposition"] = 'attachment; filename="costs.csv"'
        return answer
