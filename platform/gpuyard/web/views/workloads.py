"""The list of workloads, one workload, its log, stopping it."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_POST, require_safe

from gpuyard.core.errors import Conflict, Invalid
from gpuyard.web.actor import actor_of, page
from gpuyard.web.downloads import csv_response
from gpuyard.web.live import respond
from gpuyard.web.pages import logs, workload_list
from gpuyard.web.pages import workload as workload_page
from gpuyard.web.shell import team_picked
from scheduling.selectors import workload_get
from scheduling.services import array_stop
from scheduling.services import workload_stop as stop
from scheduling.states import WORKLOAD_ENDED

TABS = (
    ("overview", gettext_lazy("Overview")),
    ("log", gettext_lazy("Log")),
    ("decisions", gettext_lazy("Decisions")),
    ("cost", gettext_lazy("Cost")),
    ("events", gettext_lazy("Events")),
)
LIVE_S, ENDED_S = 3, 30


@require_safe
@page
def workloads(request: HttpRequest) -> HttpResponse:
    asked = workload_list.asked_of(request.GET, team_picked(request))
    context = workload_list.build(actor_of(request), asked)
    return respond(request, "workloads.html", {"page": context, "section": "workloads"}, as_of=context.as_of)


@require_safe
@page
def workloads_csv(request: HttpRequest) -> HttpResponse:
    asked = workload_list.asked_of(request.GET, team_picked(request))
    return csv_response(
        "workloads", workload_list.CSV_HEADER, workload_list.csv_rows(actor_of(request), asked)
    )


@require_safe
@page
def workload(request: HttpRequest, public_id: str) -> HttpResponse:
    found = workload_get(actor_of(request), public_id)
    tab = request.GET.get("tab", "")
    context = workload_page.build(
        actor_of(request),
        found,
        tab=tab if tab in dict(TABS) else "overview",
        rank=request.GET.get("rank", ""),
    )
    return respond(
        request,
        "workload.html",
        {
            "page": context,
            "section": "workloads",
            "tabs": TABS,
            "ask": request.GET.get("ask"),
            "poll_s": ENDED_S if found.state in WORKLOAD_ENDED else LIVE_S,
        },
        as_of=context.as_of,
    )


@require_safe
@page
def workload_log(request: HttpRequest, public_id: str) -> HttpResponse:
    found = workload_get(actor_of(request), public_id)
    text = logs.text_of(actor_of(request), found, rank=request.GET.get("rank", ""))
    response = HttpResponse(text, content_type="text/plain; charset=utf-8")
    response["Content-Disposition"] = f'inline; filename="{found.public_id}.log"'
    response["X-Content-Type-Options"] = "nosniff"
    return response


@require_POST
@page
def workload_stop(request: HttpRequest, public_id: str) -> HttpResponse:
    found = workload_get(actor_of(request), public_id)
    try:
        if "whole_array" in request.POST:
            count = array_stop(actor=actor_of(request), workload=found)
            words = ngettext("%(n)s workload is taken back.", "%(n)s workloads are taken back.", count)
            messages.success(request, words % {"n": count})
            return redirect(
                f"{reverse('web:workloads')}?array={found.array.public_id if found.array else ''}"
            )
        stopped = stop(actor=actor_of(request), workload=found, reason=request.POST.get("reason", ""))
    except (Conflict, Invalid) as exc:
        messages.error(request, str(exc))
    else:
        words = _("%s is withdrawn.") if stopped.state in WORKLOAD_ENDED else _("%s is stopping.")
        messages.success(request, words % stopped.name)
    return redirect("web:workload", public_id=public_id)
