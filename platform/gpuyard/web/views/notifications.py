"""What one was told, how one wants to be told, webhooks, and the log of sendings."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.cache import patch_cache_control
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gpuyard.core.errors import Conflict, DomainError, Invalid
from gpuyard.notify import endpoints
from gpuyard.notify.services import choices_set, notifications_read
from gpuyard.web.actor import actor_of, page, zone_of
from gpuyard.web.live import respond
from gpuyard.web.pages import notifications as pages
from tenants.endpoints import endpoint_get, message_get, team_endpoint_create
from tenants.selectors import team_get


@require_safe
@page
def notifications(request: HttpRequest) -> HttpResponse:
    context = pages.news_build(actor_of(request), request.GET.dict())
    parts = {"page": context, "section": "notifications"}
    return respond(request, "notifications.html", parts, as_of=context.as_of)


@require_POST
@page
def notifications_mark(request: HttpRequest) -> HttpResponse:
    """Marks one as read (and leads to what it speaks of), or all of them."""
    actor, wanted = actor_of(request), request.POST.get("id", "")
    if not wanted:
        notifications_read(actor=actor)
        messages.success(request, _("All are read."))
        return redirect("web:notifications")
    try:
        notifications_read(actor=actor, ids=[UUID(wanted)])
    except ValueError:
        return redirect("web:notifications")
    return redirect("web:notifications")


@require_http_methods(["GET", "HEAD", "POST"])
@page
def notification_settings(request: HttpRequest) -> HttpResponse:
    actor, zone = actor_of(request), str(zone_of(request))
    if request.method != "POST":
        context = pages.settings_build(actor, zone)
        return render(request, "notification_settings.html", {"page": context, "section": "notifications"})
    hour = request.POST.get("hour", "")
    try:
        choices_set(
            actor=actor,
            pace=request.POST.get("pace", ""),
            hour=int(hour) if hour.isascii() and hour.isdigit() and len(hour) < 3 else 8,
            time_zone=zone,
            choices=pages.settings_of(request.POST),
        )
    except Invalid as exc:
        messages.error(request, _told(exc))
        return redirect("web:notification_settings")
    messages.success(request, _("Saved. It counts from the next notice on."))
    return redirect("web:notification_settings")


# --- Webhooks ------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "HEAD", "POST"])
@page
def webhooks(request: HttpRequest) -> HttpResponse:
    """GET: those one may see. POST: a new one; its secret is on the answer, and nowhere else ever."""
    actor = actor_of(request)
    if request.method != "POST":
        return _hooks(request, {})
    form = request.POST
    given: dict[str, Any] = {name: form.get(name, "") for name in ("kind", "name", "url")}
    try:
        if team := form.get("team", ""):
            endpoint, secret = team_endpoint_create(
                actor=actor, team=team_get(actor, team), events=form.getlist("events"), **given
            )
        else:
            endpoint, secret = endpoints.endpoint_create(actor=actor, **given)
    except (Invalid, Conflict) as exc:
        return _hooks(request, {"typed": form, "error": _told(exc)}, 422)
    if not secret:
        messages.success(request, _("Made: %s") % endpoint.name)
        return redirect("web:webhooks")
    return _hooks(request, {"secret": secret, "secret_of": endpoint.name})


def _hooks(request: HttpRequest, fields: dict[str, Any], status: int = 200) -> HttpResponse:
    context = pages.hooks_build(actor_of(request), **fields)
    parts = {"page": context, "section": "notifications"}
    response = render(request, "webhooks.html", parts, status=status)
    patch_cache_control(response, private=True, no_store=True)
    return response


@require_POST
@page
def webhook_rotate(request: HttpRequest, endpoint_id: UUID) -> HttpResponse:
    actor = actor_of(request)
    endpoint = endpoint_get(actor, endpoint_id, to_change=True)
    try:
        secret = endpoints.endpoint_rotate(actor=actor, endpoint=endpoint)
    except Conflict as exc:
        messages.error(request, _told(exc))
        return redirect("web:webhooks")
    return _hooks(request, {"secret": secret, "secret_of": endpoint.name})


@require_POST
@page
def webhook_test(request: HttpRequest, endpoint_id: UUID) -> HttpResponse:
    actor = actor_of(request)
    endpoint = endpoint_get(actor, endpoint_id, to_change=True)
    try:
        endpoints.endpoint_test(actor=actor, endpoint=endpoint)
    except Conflict as exc:
        messages.error(request, _told(exc))
    else:
        messages.success(request, _("A test is on its way: this page shows how it goes."))
    return redirect("web:deliveries")


@require_POST
@page
def webhook_remove(request: HttpRequest, endpoint_id: UUID) -> HttpResponse:
    actor = actor_of(request)
    endpoint = endpoint_get(actor, endpoint_id, to_change=True)
    endpoints.endpoint_remove(actor=actor, endpoint=endpoint)
    messages.success(request, _("Removed: %s") % endpoint.name)
    return redirect("web:webhooks")


# --- The log of sendings ---------------------------------------------------------------------------------------


@require_safe
@page
def deliveries(request: HttpRequest) -> HttpResponse:
    context = pages.sendings_build(actor_of(request), request.GET.dict())
    parts = {"page": context, "section": "notifications"}
    return respond(request, "deliveries.html", parts, as_of=context.as_of)


@require_POST
@page
def delivery_again(request: HttpRequest, message_id: UUID) -> HttpResponse:
    actor = actor_of(request)
    message = message_get(actor, message_id, to_change=True)
    try:
        endpoints.message_again(actor=actor, message=message)
    except Conflict as exc:
        messages.error(request, _told(exc))
    else:
        messages.success(request, _("It is on its way once more."))
    return redirect("web:deliveries")


def _told(exc: DomainError) -> str:
    return " ".join(f"{one.message} {one.remedy or ''}".strip() for one in exc.errors) or str(exc)
