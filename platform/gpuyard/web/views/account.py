"""One's own account, and the service accounts of one's teams."""

from __future__ import annotations

from datetime import timedelta
from typing import cast
from uuid import UUID

from allauth.account.decorators import reauthentication_required
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.cache import patch_cache_control
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from gpuyard.core.errors import Conflict, DomainError, Invalid
from gpuyard.web.actor import View, actor_of, page
from gpuyard.web.pages import account as pages
from tenants.models import ServiceAccount
from tenants.selectors import team_get
from tenants.service_accounts import (
    service_account_close,
    service_account_create,
    service_account_get,
)
from tenants.services import time_zone_set
from tenants.signins import sign_ins_end
from tenants.tokens import token_create, token_revoke


def you_again(view: View) -> View:
    """Wants the password, or a code, once more, unless it was given in the last minutes."""
    return cast(View, reauthentication_required(view))


@require_safe
@page
def account(request: HttpRequest) -> HttpResponse:
    return _account(request, pages.token_form())


def _account(request: HttpRequest, form: pages.TokenForm, status: int = 200) -> HttpResponse:
    context = pages.account_build(actor_of(request), request.session.session_key, form)
    return _private(render(request, "account.html", {"page": context}, status=status))


@require_POST
@page
def time_zone(request: HttpRequest) -> HttpResponse:
    time_zone_set(actor=actor_of(request), time_zone=request.POST.get("zone", ""))
    request.session.pop("zone", None)
    messages.success(request, _("Saved."))
    return redirect("web:account")


@require_POST
@page
def sign_in_end(request: HttpRequest) -> HttpResponse:
    """One of them, or, without an id, all but this."""
    wanted = request.POST.get("id", "")
    count = sign_ins_end(
        actor=actor_of(request),
        sign_in_id=_uuid(wanted) if wanted else None,
        keep=request.session.session_key,
    )
    messages.success(request, _("Signed out elsewhere: %(count)s") % {"count": count})
    return redirect("web:account")


# --- Tokens --------------------------------------------------------------------------------------------------


@require_POST
@page
@you_again
def token_new(request: HttpRequest) -> HttpResponse:
    form, status = _made(request, None)
    return _account(request, form, status)


@require_POST
@page
def token_end(request: HttpRequest, token_id: UUID) -> HttpResponse:
    token = token_revoke(actor=actor_of(request), token_id=token_id)
    messages.success(request, _("Revoked: %s") % token.name)
    return redirect("web:account" if token.user_id == actor_of(request).pk else "web:service_accounts")


def _made(request: HttpRequest, program: ServiceAccount | None) -> tuple[pages.TokenForm, int]:
    typed, days = request.POST, request.POST.get("days", "")
    try:
        token, secret = token_create(
            actor=actor_of(request),
            name=typed.get("name", ""),
            scopes=typed.getlist("scopes"),
            lifetime=timedelta(days=int(days) if days.isascii() and days.isdigit() and len(days) < 4 else 0),
            networks=typed.get("networks", "").replace(",", " ").split(),
            account=program,
        )
    except Invalid as exc:
        return pages.token_form(typed, error=_told(exc)), 422
    return pages.token_form(secret=secret, secret_of=token.name), 200


# --- Service accounts ------------------------------------------------------------------------------------------


@require_safe
@page
def service_accounts(request: HttpRequest) -> HttpResponse:
    return _programs(request, pages.token_form())


def _programs(request: HttpRequest, form: pages.TokenForm, status: int = 200) -> HttpResponse:
    context = pages.programs_build(actor_of(request), form)
    return _private(render(request, "service_accounts.html", {"page": context}, status=status))


@require_POST
@page
@you_again
def service_account_new(request: HttpRequest) -> HttpResponse:
    actor, typed = actor_of(request), request.POST
    team = team_get(actor, typed.get("team", ""))
    try:
        made = service_account_create(
            actor=actor, team=team, name=typed.get("name", ""), role=typed.get("role", "")
        )
    except (Invalid, Conflict) as exc:
        return _programs(request, pages.token_form(error=_told(exc)), 422)
    messages.success(request, _("Made: %s. Give it a token next.") % made.name)
    return redirect("web:service_accounts")


@require_POST
@page
@you_again
def service_token_new(request: HttpRequest, public_id: str) -> HttpResponse:
    form, status = _made(request, service_account_get(actor_of(request), public_id))
    return _programs(request, form, status)


@require_POST
@page
def service_account_end(request: HttpRequest, public_id: str) -> HttpResponse:
    actor = actor_of(request)
    made = service_account_get(actor, public_id)
    service_account_close(actor=actor, account=made)
    messages.success(request, _("Closed: %s") % made.name)
    return redirect("web:service_accounts")


def _private(response: HttpResponse) -> HttpResponse:
    patch_cache_control(response, private=True, no_store=True)
    return response


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Invalid("id_invalid", _("This is no id.")) from None


def _told(exc: DomainError) -> str:
    return " ".join(f"{one.message} {one.remedy or ''}".strip() for one in exc.errors) or str(exc)
