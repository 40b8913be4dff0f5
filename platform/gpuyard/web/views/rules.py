"""A company's approval rules: reading, trying a change, putting it in force, going back."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from gpuyard.core.errors import Conflict, DomainError, Invalid, NotFound
from gpuyard.core.models import User
from gpuyard.web.actor import actor_of, page
from gpuyard.web.live import respond
from gpuyard.web.pages import rules as rules_page
from tenants.models import Team
from tenants.rules import (
    approval_policy_activate,
    approval_policy_get,
    approval_policy_preview,
    approval_policy_rollback,
)
from tenants.selectors import ADMIN, companies_visible, company_get, company_require

LONGEST = 200_000


@require_http_methods(["GET", "POST"])
@page
def rules(request: HttpRequest) -> HttpResponse:
    """GET: the rules; `?restore=N` shows what going back would do. POST: tries what was typed."""
    actor = actor_of(request)
    company = _company(actor, request)
    if request.method == "POST":
        company_require(actor, company, ADMIN)
        return _try(request, actor, company, request.POST.get("document", ""))
    restore = request.GET.get("restore", "")
    if not restore:
        return _show(request, rules_page.build(actor, company))
    company_require(actor, company, ADMIN)
    number = _number(restore)
    old = approval_policy_get(actor, company, number)
    preview = approval_policy_preview(actor=actor, company=company, document=old.document)
    card = rules_page.preview_card(preview, rules_page.as_text(old.document), restores=number)
    return _show(request, rules_page.build(actor, company, preview=card))


def _company(actor: User, request: HttpRequest) -> Team:
    named = request.GET.get("company") or request.POST.get("company", "")
    found = company_get(actor, named) if named else companies_visible(actor).order_by("name").first()
    if found is None:
        raise NotFound("company_unknown", _("You are in no company yet."))
    return found


def _try(request: HttpRequest, actor: User, company: Team, text: str) -> HttpResponse:
    try:
        preview = approval_policy_preview(actor=actor, company=company, document=_parse(text))
    except Invalid as exc:
        context = rules_page.build(actor, company, document=text, errors=_told(exc))
        return _show(request, context, 422)
    if not preview.changes:
        errors = [_("Nothing is changed yet. Change a rule, then look at its effect.")]
        return _show(request, rules_page.build(actor, company, document=text, errors=errors), 422)
    card = rules_page.preview_card(preview, text)
    return _show(request, rules_page.build(actor, company, document=text, preview=card))


def _parse(text: str) -> Any:
    try:
        if len(text) > LONGEST:
            raise ValueError(text[:1])
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise Invalid(
            "not_json",
            _("This is no JSON document."),
            field="document",
            remedy=_("Check brackets, commas and quotes."),
        ) from exc


@require_POST
@page
def rules_apply(request: HttpRequest) -> HttpResponse:
    """Puts in force what was previewed, or goes back to an old version."""
    actor, sent = actor_of(request), request.POST
    company = _company(actor, request)
    company_require(actor, company, ADMIN)
    reason, based_on, text = (
        sent.get("reason", ""),
        _number(sent.get("based_on", "")),
        sent.get("document", ""),
    )
    try:
        if sent.get("restores"):
            number = _number(sent["restores"])
            made = approval_policy_rollback(
                actor=actor, company=company, version=number, based_on=based_on, note=reason
            )
        else:
            made = approval_policy_activate(
                actor=actor, company=company, document=_parse(text), based_on=based_on, note=reason
            )
    except (Invalid, Conflict) as exc:
        context = rules_page.build(actor, company, document=text, errors=_told(exc))
        return _show(request, context, exc.status if isinstance(exc, Conflict) else 422)
    messages.success(request, _("Version %s is in force for new requests.") % made.version)
    return redirect(f"{reverse('web:rules')}?company={company.public_id}")


def _show(request: HttpRequest, context: Any, status: int = 200) -> HttpResponse:
    response = respond(
        request, "rules.html", {"page": context, "section": "policy"}, parts=(), as_of=context.as_of
    )
    response.status_code = status
    return response


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 11):
        raise NotFound("policy_version_unknown", _("There is no such version of the policy."))
    return int(text)


def _told(exc: DomainError) -> list[str]:
    lines = [
        ": ".join(part for part in (one.field or "", f"{one.message} {one.remedy or ''}".strip()) if part)
        for one in exc.errors
    ]
    return lines or [str(exc)]
