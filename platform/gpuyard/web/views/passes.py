"""The scheduler's passes, and replaying one; for platform admins."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from gpuyard.core.errors import Conflict
from gpuyard.web import wording
from gpuyard.web.actor import actor_of, page
from gpuyard.web.downloads import csv_response
from gpuyard.web.live import respond
from gpuyard.web.pages import passes as passes_page
from scheduling.history import pass_get
from scheduling.records import Replay, pass_replay


@require_safe
@page
def passes(request: HttpRequest) -> HttpResponse:
    context = passes_page.build(actor_of(request), passes_page.asked_of(request.GET))
    return respond(request, "passes.html", {"page": context, "section": "queue"}, as_of=context.as_of)


@require_safe
@page
def passes_csv(request: HttpRequest) -> HttpResponse:
    rows = passes_page.csv_rows(actor_of(request), passes_page.asked_of(request.GET))
    return csv_response("passes", passes_page.CSV_HEADER, rows)


@require_safe
@page
def one(request: HttpRequest, number: int) -> HttpResponse:
    context = passes_page.build_one(actor_of(request), number)
    told = {"page": context, "section": "queue"}
    return respond(request, "pass.html", told, parts=(), as_of=context.as_of)


@require_POST
@page
def replay(request: HttpRequest, number: int) -> HttpResponse:
    record = pass_get(actor_of(request), number)
    try:
        found = pass_replay(record)
    except Conflict as exc:
        messages.error(request, str(exc))
    else:
        (messages.success if found.is_same else messages.error)(request, _told(found))
    return redirect("web:pass", number=number)


def _told(found: Replay) -> str:
    facts = {
        "number": wording.number(found.number),
        "counts": found.counts,
        "ms": wording.number(round(found.took_ms)),
    }
    if found.is_same:
        return _("Pass %(number)s again: the same plan, %(counts)s, in %(ms)s ms.") % facts
    text = _("Pass %(number)s again: a different plan, %(counts)s.") % facts
    return f"{text} {_('The engine has been changed since.')}" if found.is_other_engine else text
