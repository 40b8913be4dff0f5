"""Costs by team and day, and their CSV."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from billing.selectors import cost_csv
from gpuyard.web.actor import actor_of, page
from gpuyard.web.live import respond
from gpuyard.web.pages import costs as costs_page
from gpuyard.web.shell import team_picked


@require_safe
@page
def costs(request: HttpRequest) -> HttpResponse:
    asked = costs_page.asked_of(request.GET, team_picked(request))
    context = costs_page.build(actor_of(request), asked)
    return respond(request, "costs.html", {"page": context, "section": "costs"}, as_of=context.as_of)


@require_safe
@page
def costs_csv(request: HttpRequest) -> HttpResponseBase:
    asked = costs_page.asked_of(request.GET, team_picked(request))
    lines = cost_csv(actor_of(request), asked.filters)
    response = StreamingHttpResponse(lines, content_type="text/csv; charset=utf-8")
    name = f"costs-{asked.filters.since}-{asked.filters.until}.csv"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["Cache-Control"] = "private, no-store"
    return response
