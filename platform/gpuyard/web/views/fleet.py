"""The fleet: every GPU, by pool and node; and what is free of it."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from gpuyard.web.actor import actor_of, page
from gpuyard.web.downloads import csv_response
from gpuyard.web.live import respond
from gpuyard.web.pages import fleet as fleet_page
from gpuyard.web.pages import free_space as free_space_page
from gpuyard.web.shell import team_picked


@require_safe
@page
def fleet(request: HttpRequest) -> HttpResponse:
    context = fleet_page.build(actor_of(request), team_picked(request), request.GET.get("tier", ""))
    return respond(request, "fleet.html", {"page": context, "section": "fleet"}, as_of=context.as_of)


@require_safe
@page
def fleet_csv(request: HttpRequest) -> HttpResponse:
    rows = fleet_page.csv_rows(actor_of(request), request.GET.get("tier", ""))
    return csv_response("fleet", fleet_page.CSV_HEADER, rows)


@require_safe
@page
def free_space(request: HttpRequest) -> HttpResponse:
    tier = request.GET.get("tier", "")
    context = free_space_page.build(actor_of(request), team_picked(request), tier)
    return respond(request, "free_space.html", {"page": context, "section": "fleet"}, as_of=context.as_of)


@require_safe
@page
def free_space_csv(request: HttpRequest) -> HttpResponse:
    tier = request.GET.get("tier", "")
    rows = free_space_page.csv_rows(actor_of(request), team_picked(request), tier)
    return csv_response("free-space", free_space_page.CSV_HEADER, rows)
