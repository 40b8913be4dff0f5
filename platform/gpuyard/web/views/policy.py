"""The scheduling policy: reading it, trying a change, putting it in force, going back; and rights to bands."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from gpuyard.core import clock
from gpuyard.core.errors import Conflict, DomainError, Invalid, NotFound
from gpuyard.core.models import User
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.web.actor import actor_of, page
from gpuyard.web.live import respond
from gpuyard.web.pages import policy as policy_page
from gpuyard.web.pages.policy import Typed
from gpuyard.web.policy_contexts import PolicyPage
from scheduling.bands import band_grant, band_revoke
from scheduling.policies import (
    policy_admin_require,
    policy_changes,
    policy_rollback,
    policy_set,
    policy_state,
)
from scheduling.policy_models import BandGrant
from scheduling.policy_preview import policy_preview
from tenants.models import Team
from tenants.selectors import team_get

LONGEST_DAYS = 3660


@require_http_methods(["GET", "POST"])
@page
def policy(request: HttpRequest) -> HttpResponse:
    """GET: the rules; `?restore=N` shows what going back to version N would do. POST: tries what was typed."""
    actor = actor_of(request)
    if request.method == "POST":
        return _try(request, actor)
    restore = request.GET.get("restore", "")
    if not restore:
        return _show(request, policy_page.build(actor))
    return _show_restore(request, actor, _number(restore))


def _try(request: HttpRequest, actor: User) -> HttpResponse:
    policy_admin_require(actor)
    try:
        base = policy_state(actor, _number(request.POST.get("based_on", "")))
        changes = policy_page.changes_of(request.POST, base)
        found = policy_preview(actor=actor, changes=changes)
    except Invalid as exc:
        typed = Typed(request.POST, policy_page.errors_of(exc))
        return _show(request, policy_page.build(actor, typed=typed), 422)
    if not found.changes:
        typed = Typed(
            request.POST, {"": _("Nothing is changed yet. Change a rule, then look at its effect.")}
        )
        return _show(request, policy_page.build(actor, typed=typed), 422)
    preview = policy_page.preview_of(found)
    return _show(request, policy_page.build(actor, typed=Typed(request.POST), preview=preview))


def _show_restore(
    request: HttpRequest, actor: User, number: int, *, reason: str = "", error: str = "", status: int = 200
) -> HttpResponse:
    policy_admin_require(actor)
    old, base = policy_state(actor, number), policy_state(actor)
    changes = {one.name: one.new for one in policy_changes(base.document, old.document)}
    if not changes:
        return _show(request, policy_page.build(actor, error=_("That version says what is in force now.")))
    found = policy_preview(actor=actor, changes=changes)
    preview = policy_page.preview_of(found, restores=number, reason=reason, error=error)
    return _show(request, policy_page.build(actor, preview=preview), status)


@require_POST
@page
def policy_apply(request: HttpRequest) -> HttpResponse:
    """Puts in force what was previewed."""
    actor, reason = actor_of(request), request.POST.get("reason", "")
    policy_admin_require(actor)
    try:
        changes = json.loads(request.POST.get("changes", ""))
    except (ValueError, RecursionError):
        return redirect("web:policy")
    based_on = _number(request.POST.get("based_on", ""))
    try:
        state = policy_set(actor=actor, changes=changes, based_on=based_on, reason=reason)
    except Conflict as exc:
        return _show(request, policy_page.build(actor, error=_told(exc)), 409)
    except Invalid as exc:
        return _show_again(request, actor, changes, reason, exc)
    messages.success(request, _("Version %s is in force from the next pass on.") % state.number)
    return redirect("web:policy")


def _show_again(
    request: HttpRequest, actor: User, changes: Any, reason: str, refused: Invalid
) -> HttpResponse:
    """The preview once more, with what is wrong with the reason; else only what is wrong."""
    try:
        found = policy_preview(actor=actor, changes=changes)
    except Invalid as exc:
        return _show(request, policy_page.build(actor, error=_told(exc)), 422)
    preview = policy_page.preview_of(found, reason=reason, error=_told(refused))
    return _show(request, policy_page.build(actor, preview=preview), 422)


@require_POST
@page
def policy_restore(request: HttpRequest) -> HttpResponse:
    """Goes back to an old version."""
    actor, reason = actor_of(request), request.POST.get("reason", "")
    policy_admin_require(actor)
    number, based_on = (_number(request.POST.get(name, "")) for name in ("number", "based_on"))
    try:
        state = policy_rollback(actor=actor, number=number, based_on=based_on, reason=reason)
    except Conflict as exc:
        return _show(request, policy_page.build(actor, error=_told(exc)), 409)
    except Invalid as exc:
        return _show_restore(request, actor, number, reason=reason, error=_told(exc), status=422)
    messages.success(request, _("Version %s is in force from the next pass on.") % state.number)
    return redirect("web:policy")


def _show(request: HttpRequest, context: PolicyPage, status: int = 200) -> HttpResponse:
    response = respond(
        request, "policy.html", {"page": context, "section": "policy"}, parts=(), as_of=context.as_of
    )
    response.status_code = status
    return response


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 11):
        raise NotFound("policy_version_unknown", _("There is no such version of the policy."))
    return int(text)


def _told(exc: DomainError) -> str:
    return " ".join(f"{one.message} {one.remedy or ''}".strip() for one in exc.errors) or str(exc)


# --- Bands -------------------------------------------------------------------------------------------------


@require_POST
@page
def policy_band_grant(request: HttpRequest) -> HttpResponse:
    """Gives a team a right to a band."""
    actor = actor_of(request)
    policy_admin_require(actor)
    try:
        grant = _grant(actor, request)
    except (Invalid, Conflict, NotFound) as exc:
        form = policy_page.grant_form_of(actor, request.POST, [_told(exc)])
        return _show(request, policy_page.build(actor, grant_form=form), 422)
    messages.success(
        request, _("%(team)s may use band %(band)s now.") % {"team": grant.team.name, "band": grant.band}
    )
    return redirect("web:policy")


def _grant(actor: User, request: HttpRequest) -> BandGrant:
    sent = request.POST
    team: Team = team_get(actor, sent.get("team", ""))
    return band_grant(
        actor=actor,
        team=team,
        band=int(sent["band"]) if sent.get("band", "").isdecimal() and len(sent["band"]) < 3 else 0,
        cap=_cap(sent.get("gpus", "")),
        reason=sent.get("reason", ""),
        expires_at=_expiry(sent.get("days", "").strip()),
    )


def _cap(text: str) -> int:
    try:
        gpus = Decimal(text.strip()) if len(text.strip()) < 10 else Decimal(0)
    except InvalidOperation:
        gpus = Decimal(0)
    units = gpus * UNITS_PER_GPU if gpus.is_finite() and abs(gpus) < 10_000_000 else Decimal(0)
    if units < 1:
        raise Invalid(
            "gpus_invalid",
            _("This is no number of GPUs."),
            field="gpus",
            remedy=_("Give how many GPUs the team may hold this way, such as 8."),
        )
    return int(units)


def _expiry(text: str) -> datetime | None:
    if not text:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= 6
    if not (is_number and 1 <= int(text) <= LONGEST_DAYS):
        raise Invalid(
            "days_invalid",
            _("This is no number of days."),
            field="days",
            remedy=_("Give whole days from 1 to %(most)s, or leave it empty.") % {"most": LONGEST_DAYS},
        )
    return clock.now() + timedelta(days=int(text))


@require_POST
@page
def policy_band_revoke(request: HttpRequest, grant_id: UUID) -> HttpResponse:
    """Takes a right back."""
    actor = actor_of(request)
    try:
        grant = band_revoke(actor=actor, grant_id=grant_id, reason=request.POST.get("reason", ""))
    except (Invalid, Conflict) as exc:
        messages.error(request, _told(exc))
    else:
        words = _("%(team)s has no right to band %(band)s any more.")
        messages.success(request, words % {"team": grant.team.name, "band": grant.band})
    return redirect("web:policy")
