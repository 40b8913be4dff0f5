"""The queue."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from gpuyard.web.actor import actor_of, page
from gpuyard.web.downloads import csv_response
from gpuyard.web.live import respond
from gpuyard.web.pages import queue as queue_page
from gpuyard.web.shell import team_picked


@require_safe
@page
def queue(request: HttpRequest) -> HttpResponse:
    context = queue_page.build(actor_of(request), team_picked(request), request.GET.get("tier", ""))
    return respond(request, "queue.html", {"page": context, "section": "queue"}, as_of=context.as_of)


@require_safe
@page
def queue_csv(request: HttpRequest) -> HttpResponse:
    rows = queue_page.csv_rows(actor_of(request), team_picked(request), request.GET.get("tier", ""))
    return csv_response("queue", queue_page.CSV_HEADER, rows)
