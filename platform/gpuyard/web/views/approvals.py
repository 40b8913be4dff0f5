"""The approvals inbox: deciding, and what requesters do with their own requests."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST, require_safe

from gpuyard.api.attempts import refusal_note
from gpuyard.core.errors import Conflict, DomainError, Forbidden, Invalid
from gpuyard.core.models import User
from gpuyard.web.actor import actor_of, page
from gpuyard.web.case_contexts import ApprovalsPage
from gpuyard.web.live import respond
from gpuyard.web.pages.approvals import build
from gpuyard.web.pages.case_forms import amend_changes, less_of
from scheduling.models import Workload
from tenants import services
from tenants.inbox import case_get
from tenants.models import Case


@require_safe
@page
def approvals(request: HttpRequest) -> HttpResponse:
    asked = {name: request.GET.get(name, "") for name in ("show", "kind")}
    return _show(request, build(actor_of(request), request.GET.get("case", ""), **asked))


def _show(request: HttpRequest, context: ApprovalsPage, status: int = 200) -> HttpResponse:
    response = respond(
        request,
        "approvals.html",
        {"page": context, "section": "approvals"},
        parts=("list",),
        as_of=context.as_of,
    )
    response.status_code = status
    return response


def told(exc: DomainError) -> str:
    """What is wrong and what to do, as one text."""
    return " ".join(f"{one.message} {one.remedy or ''}".strip() for one in exc.errors) or str(exc)


def _refuse(request: HttpRequest, exc: DomainError) -> None:
    if isinstance(exc, Forbidden):
        refusal_note(request, exc)
    messages.error(request, told(exc))


# --- Deciding ------------------------------------------------------------------------------------------------------


@require_POST
@page
def case_decide(request: HttpRequest, public_id: str) -> HttpResponse:
    """`decision`: approve (with less, if numbers were typed), send_back (the reason is the question) or reject."""
    actor, reason = actor_of(request), request.POST.get("reason", "")
    act = request.POST.get("decision", "")
    if act not in _DONE:
        return redirect("web:approvals")
    try:
        case = _decide(actor, public_id, act, request)
    except Invalid as exc:
        return _show(request, build(actor, public_id, reason=reason, error=told(exc)), 422)
    except (Conflict, Forbidden) as exc:
        _refuse(request, exc)
        return redirect(f"{reverse('web:approvals')}?case={public_id}")
    messages.success(request, str(_DONE[act]()) % case.subject_label)
    return redirect("web:approvals")


_DONE = {
    "approve": lambda: _("Approved: %s"),
    "reject": lambda: _("Rejected: %s"),
    "send_back": lambda: _("Sent back: %s"),
}


def _decide(actor: User, public_id: str, act: str, request: HttpRequest) -> Case:
    sent = request.POST
    reason, seen = sent.get("reason", ""), _round(sent.get("round", ""))
    if act == "send_back":
        return services.case_send_back(
            actor=actor, case_public_id=public_id, question=reason, seen_round=seen
        )
    less = less_of({name: str(value) for name, value in sent.items()}) if act == "approve" else {}
    return services.case_decide(
        actor=actor,
        case_public_id=public_id,
        approve=act == "approve",
        reason=reason,
        seen_round=seen,
        less=less or None,
    )


def _round(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


@require_POST
@page
def cases_decide(request: HttpRequest) -> HttpResponse:
    """Decides alike on all that were ticked."""
    actor, approve = actor_of(request), request.POST.get("decision") == "approve"
    wanted = request.POST.getlist("case")
    if not wanted or (not approve and request.POST.get("decision") != "reject"):
        messages.error(request, _("Nothing was ticked. Tick the requests to decide on."))
        return redirect("web:approvals")
    try:
        found = services.cases_decide(
            actor=actor, case_public_ids=wanted, approve=approve, reason=request.POST.get("reason", "")
        )
    except Invalid as exc:
        messages.error(request, told(exc))
        return redirect("web:approvals")
    done = sum(one.error is None for one in found)
    if done:
        words = (
            ngettext("%(n)s request approved.", "%(n)s requests approved.", done)
            if approve
            else ngettext("%(n)s request rejected.", "%(n)s requests rejected.", done)
        )
        messages.success(request, words % {"n": done})
    for one in found:
        if one.error is not None:
            if isinstance(one.error, Forbidden):
                refusal_note(request, one.error)
            messages.error(request, f"{one.case_public_id[:16]}: {told(one.error)}")
    return redirect("web:approvals")


# --- One's own -----------------------------------------------------------------------------------------------------


@require_POST
@page
def case_answer(request: HttpRequest, public_id: str) -> HttpResponse:
    """Answers a question."""
    actor, answer = actor_of(request), request.POST.get("answer", "")
    return _own(
        request,
        public_id,
        "answer",
        lambda: services.case_answer(actor=actor, case_public_id=public_id, answer=answer),
        _("Answered. It waits for a decision again."),
    )


@require_POST
@page
def case_amend(request: HttpRequest, public_id: str) -> HttpResponse:
    """Changes what is asked for, or why."""
    actor = actor_of(request)
    case = case_get(actor, public_id)

    def act() -> Case:
        return services.case_amend(
            actor=actor,
            case_public_id=public_id,
            changes=_changes(case, request),
            justification=request.POST.get("justification"),
            reason=request.POST.get("reason", ""),
        )

    return _own(request, public_id, "amend", act, _("Changed. Its thread says what that means for it."))


def _changes(case: Case, request: HttpRequest) -> dict[str, Any]:
    workload = Workload.objects.select_related("spec").filter(pk=case.subject_id).first()
    if workload is None:
        return {}
    return amend_changes(workload, {name: str(value) for name, value in request.POST.items()})


@require_POST
@page
def case_withdraw(request: HttpRequest, public_id: str) -> HttpResponse:
    """Takes a request back."""
    actor, reason = actor_of(request), request.POST.get("reason", "")
    return _own(
        request,
        public_id,
        "amend",
        lambda: services.case_withdraw(actor=actor, case_public_id=public_id, reason=reason),
        _("Withdrawn."),
    )


def _own(request: HttpRequest, public_id: str, form: str, act: Any, words: str) -> HttpResponse:
    actor = actor_of(request)
    case_get(actor, public_id)
    try:
        act()
    except Invalid as exc:
        return _show(request, build(actor, public_id, error=told(exc), error_at=form), 422)
    except (Conflict, Forbidden) as exc:
        _refuse(request, exc)
    else:
        messages.success(request, words)
    return redirect(f"{reverse('web:approvals')}?case={public_id}")
