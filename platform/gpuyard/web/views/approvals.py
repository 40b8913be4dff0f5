"""The approvals inbox and deciding."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from gpuyard.api.attempts import refusal_note
from gpuyard.core.errors import Conflict, Forbidden, Invalid
from gpuyard.web.actor import actor_of, page
from gpuyard.web.live import respond
from gpuyard.web.pages.approvals import build
from tenants.services import case_decide as decide


@require_safe
@page
def approvals(request: HttpRequest) -> HttpResponse:
    context = build(actor_of(request), request.GET.get("case", ""))
    return respond(
        request,
        "approvals.html",
        {"page": context, "section": "approvals"},
        parts=("list",),
        as_of=context.as_of,
    )


@require_POST
@page
def case_decide(request: HttpRequest, public_id: str) -> HttpResponse:
    actor, reason = actor_of(request), request.POST.get("reason", "")
    approve = request.POST.get("decision") == "approve"
    if not approve and request.POST.get("decision") != "reject":
        return redirect("web:approvals")
    try:
        case = decide(actor=actor, case_public_id=public_id, approve=approve, reason=reason)
    except Invalid as exc:
        error = " ".join(f"{one.message} {one.remedy or ''}".strip() for one in exc.errors) or str(exc)
        context = build(actor, public_id, reason=reason, error=error)
        response = respond(request, "approvals.html", {"page": context, "section": "approvals"})
        response.status_code = 422
        return response
    except (Conflict, Forbidden) as exc:
        if isinstance(exc, Forbidden):
            refusal_note(request, exc)
        messages.error(request, str(exc))
        return redirect("web:approvals")
    words = _("Approved: %s") if approve else _("Rejected: %s")
    messages.success(request, words % case.subject_label)
    return redirect("web:approvals")
