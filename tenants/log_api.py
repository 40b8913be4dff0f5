"""The log of the companies that one audits: as pages, as files, and what proves it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpuyard.audit import checkpoints
from gpuyard.audit.api import EventOut
from gpuyard.audit.exports import csv_lines, json_lines
from gpuyard.audit.models import Source
from gpuyard.audit.selectors import EventFilters
from gpuyard.core.rest import Input, Output, PagedView, actor_of, query
from tenants.api import CompanyRef
from tenants.directory import chains_audited, checkpoints_audited, events_audited

_FILTERS = {one.name for one in fields(EventFilters)}
JSONL, PEM = "application/jsonl", "application/x-pem-file"


class Company(Input):
    company = serializers.CharField(
        required=False, help_text="The id of a company; for an admin also `platform`."
    )


class Filters(Company):
    team = serializers.CharField(required=False, help_text="The id of a team: what was about it or below it.")
    q = serializers.CharField(required=False, max_length=200, help_text="Part of action, names or reason.")
    who = serializers.CharField(required=False, max_length=200, help_text="Part of the actor's name.")
    action = serializers.CharField(required=False, help_text="`workload` also matches `workload.submit`.")
    subject = serializers.CharField(
        required=False, max_length=200, help_text="Its type, id or part of its name."
    )
    source = serializers.ChoiceField(Source.choices, required=False)  # type: ignore[assignment] # a declared field
    since = serializers.DateTimeField(required=False)
    until = serializers.DateTimeField(required=False, help_text="What happened before.")


class EventsView(PagedView):
    """The log, newest first."""

    @extend_schema(operation_id="events_list", parameters=[Filters], responses=EventOut(many=True))
    def get(self, request: Request) -> Response:
        return self.page(request, _events(request, is_paged=True), EventOut)


def _events(request: Request, *, is_paged: bool = False) -> Any:
    asked = query(request, Filters, is_paged=is_paged)
    filters = EventFilters(**{name: asked[name] for name in asked if name in _FILTERS})
    place = {name: asked[name] for name in ("company", "team") if name in asked}
    return events_audited(actor_of(request), filters=filters, **place)


# --- Files -------------------------------------------------------------------------------------------------


class _AsAsked(BaseContentNegotiation):
    """A file has one form, whatever the request would rather have."""

    def select_parser(self, request: Any, parsers: Any) -> Any:
        return parsers[0]

    def select_renderer(self, request: Any, renderers: Any, format_suffix: Any = None) -> Any:
        return renderers[0], renderers[0].media_type


class EventsCsvView(APIView):
    """The same events as CSV, newest first."""

    content_negotiation_class = _AsAsked

    @extend_schema(
        operation_id="events_csv", parameters=[Filters], responses={(200, "text/csv"): OpenApiTypes.STR}
    )
    def get(self, request: Request) -> HttpResponseBase:
        return _file("events.csv", "text/csv; charset=utf-8", csv_lines(_events(request)))


class EventsJsonLinesView(APIView):
    """The same events as JSON lines with their seals, newest first: what `verify_audit --events` reads."""

    content_negotiation_class = _AsAsked

    @extend_schema(
        operation_id="events_jsonl", parameters=[Filters], responses={(200, JSONL): OpenApiTypes.STR}
    )
    def get(self, request: Request) -> HttpResponseBase:
        return _file("events.jsonl", JSONL, json_lines(_events(request)))


class CheckpointsView(APIView):
    """Signed checkpoints as JSON lines, oldest first: keep them where nobody can change them."""

    content_negotiation_class = _AsAsked

    @extend_schema(
        operation_id="events_checkpoints", parameters=[Company], responses={(200, JSONL): OpenApiTypes.STR}
    )
    def get(self, request: Request) -> HttpResponseBase:
        stored = checkpoints_audited(actor_of(request), **query(request, Company))
        lines = (f"{checkpoints.line(checkpoints.attested(one))}\n" for one in stored)
        return _file("checkpoints.jsonl", JSONL, lines)


class PublicKeyView(APIView):
    """The key that checks the signatures of today's checkpoints."""

    content_negotiation_class = _AsAsked

    @extend_schema(operation_id="events_public_key", responses={(200, PEM): OpenApiTypes.STR})
    def get(self, request: Request) -> HttpResponseBase:
        return HttpResponse(checkpoints.public_key_pem(), content_type=PEM)


def _file(name: str, content_type: str, lines: Iterable[str]) -> HttpResponseBase:
    answer = StreamingHttpResponse(lines, content_type=content_type)
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    answer["Cache-Control"] = "private, no-store"
    return answer


# --- The chain ---------------------------------------------------------------------------------------------


class FindingOut(Output):
    """Something wrong with a chain: altered, deleted, inserted, reordered; checkpoint: a bad signature."""

    kind = serializers.CharField()
    sequence = serializers.IntegerField()
    last_sequence = serializers.IntegerField()
    event_id = serializers.CharField(allow_null=True)
    message = serializers.CharField()


class ChainOut(Output):
    """How far a chain is sealed, verified and signed. `is_intact` null: never verified. No company: the platform's."""

    company = CompanyRef(allow_null=True)
    as_of = serializers.DateTimeField()
    sealed_up_to = serializers.IntegerField()
    unsealed = serializers.IntegerField()
    oldest_unsealed_at = serializers.DateTimeField(allow_null=True)
    verified_up_to = serializers.IntegerField()
    verified_at = serializers.DateTimeField(allow_null=True)
    is_intact = serializers.BooleanField(allow_null=True)
    findings = FindingOut(many=True)
    checkpoint_sequence = serializers.IntegerField()
    checkpoint_at = serializers.DateTimeField(allow_null=True)


class EventsChainView(APIView):
    """The state of the chains of events that one audits."""

    class Out(Output):
        chains = ChainOut(many=True)

    @extend_schema(operation_id="events_chain", responses=Out)
    def get(self, request: Request) -> Response:
        chains = [
            {"company": company, **vars(status)} for company, status in chains_audited(actor_of(request))
        ]
        return Response(self.Out({"chains": chains}).data)
