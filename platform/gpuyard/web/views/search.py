"""Search by name or any id, inside the reader's rights."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_safe

from gpuyard.core import clock
from gpuyard.fleet.selectors import node_list
from gpuyard.web.actor import actor_of, page
from gpuyard.web.pages.rows import workload_rows
from scheduling.selectors import WorkloadFilters, workload_list

MOST = 20


@require_safe
@page
def search(request: HttpRequest) -> HttpResponse:
    actor, text = actor_of(request), request.GET.get("q", "").replace("\x00", "").strip()[:120]
    if not text:
        return render(request, "search.html", {"q": "", "section": "search"})
    found = list(workload_list(actor, WorkloadFilters(search=text))[:MOST])
    if len(found) == 1 and found[0].public_id == text:
        return redirect("web:workload", public_id=text)
    nodes = node_list(actor).filter(name__icontains=text) | node_list(actor).filter(public_id=text)
    context = {
        "q": text,
        "workloads": workload_rows(actor, found, clock.now()),
        "nodes": [node.name for node in nodes.distinct()[:MOST]],
        "section": "search",
    }
    return render(request, "search.html", context)
