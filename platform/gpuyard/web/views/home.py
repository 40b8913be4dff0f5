"""Home."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from gpuyard.web.actor import actor_of, page
from gpuyard.web.live import respond
from gpuyard.web.pages.home import build
from gpuyard.web.shell import team_picked


@require_safe
@page
def home(request: HttpRequest) -> HttpResponse:
    context = build(actor_of(request), team_picked(request))
    return respond(request, "home.html", {"page": context, "section": "home"}, as_of=context.as_of)
