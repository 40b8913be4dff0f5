"""The log: a page, the same as files, and what proves it."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from gpuyard.audit import checkpoints
from gpuyard.audit.exports import csv_lines, json_lines
from gpuyard.audit.models import Event
from gpuyard.web.actor import actor_of, page
from gpuyard.web.live import respond
from gpuyard.web.pages import audit as audit_page
from gpuyard.web.shell import team_picked
from tenants.directory import checkpoints_audited


@require_safe
@page
def audit(request: HttpRequest) -> HttpResponse:
    context = audit_page.build(actor_of(request), _asked(request))
    return respond(request, "audit.html", {"page": context, "section": "audit"}, as_of=context.as_of)


@require_safe
@page
def audit_csv(request: HttpRequest) -> HttpResponseBase:
    return _file("audit.csv", "text/csv; charset=utf-8", csv_lines(_events(request)))


@require_safe
@page
def audit_jsonl(request: HttpRequest) -> HttpResponseBase:
    return _file("audit.jsonl", "application/jsonl", json_lines(_events(request)))


@require_safe
@page
def audit_checkpoints(request: HttpRequest) -> HttpResponseBase:
    stored = checkpoints_audited(actor_of(request), company=request.GET.get("company", ""))
    lines = (f"{checkpoints.line(checkpoints.attested(one))}\n" for one in stored)
    return _file("checkpoints.jsonl", "application/jsonl", lines)


@require_safe
@page
def audit_public_key(request: HttpRequest) -> HttpResponse:
    response = HttpResponse(checkpoints.public_key_pem(), content_type="application/x-pem-file")
    response["Content-Disposition"] = 'inline; filename="audit.pem"'
    return response


def _asked(request: HttpRequest) -> audit_page.Asked:
    return audit_page.asked_of(actor_of(request), request.GET, team_picked(request))


def _events(request: HttpRequest) -> QuerySet[Event]:
    return audit_page.events(actor_of(request), _asked(request))


def _file(name: str, content_type: str, lines: Iterable[str]) -> HttpResponseBase:
    response = StreamingHttpResponse(lines, content_type=content_type)
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["Cache-Control"] = "private, no-store"
    return response
