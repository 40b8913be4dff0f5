"""Who decides while somebody is away."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from gpuyard.core.errors import Conflict, Forbidden, Invalid, NotFound
from gpuyard.core.models import User
from gpuyard.web.actor import actor_of, page
from gpuyard.web.live import respond
from gpuyard.web.pages import away as away_page
from gpuyard.web.views.approvals import told
from tenants.delegations import delegation_create, delegation_revoke, people_of
from tenants.selectors import company_get


@require_http_methods(["GET", "POST"])
@page
def away(request: HttpRequest) -> HttpResponse:
    """GET: who stands in for whom, as far as it concerns the reader; POST: hands one's own decisions over."""
    actor = actor_of(request)
    if request.method == "GET":
        return _show(request, actor)
    try:
        made = _create(actor, request)
    except (Invalid, Conflict, Forbidden, NotFound) as exc:
        return _show(request, actor, error=told(exc), status=422)
    words = _("%(delegate)s decides for you meanwhile, on what is open already, too.")
    messages.success(request, words % {"delegate": made})
    return redirect("web:away")


def _create(actor: User, request: HttpRequest) -> str:
    sent = request.POST
    company = company_get(actor, sent.get("company", ""))
    (delegate,) = people_of(actor, company, [sent.get("delegate", "")], field="delegate")
    delegation_create(
        actor=actor,
        company=company,
        delegate=delegate,
        starts_at=_moment(sent.get("starts_at", ""), "starts_at"),
        ends_at=_moment(sent.get("ends_at", ""), "ends_at"),
        kinds=sent.getlist("kinds"),
        reason=sent.get("reason", ""),
    )
    return delegate.username


def _moment(text: str, field: str) -> datetime:
    """As the browser's own field writes it, in the reader's time zone."""
    try:
        found = parse_datetime(text) if len(text) < 40 else None
    except ValueError:  # well written, but no such day
        found = None
    if found is None:
        raise Invalid(
            "date_invalid",
            _("This is no date and time."),
            field=field,
            remedy=_("Write one such as 2030-05-31T18:00."),
        )
    return timezone.make_aware(found) if timezone.is_naive(found) else found


def _show(request: HttpRequest, actor: User, *, error: str = "", status: int = 200) -> HttpResponse:
    context = away_page.build(actor, request.POST, error=error)
    response = respond(
        request, "away.html", {"page": context, "section": "approvals"}, parts=(), as_of=context.as_of
    )
    response.status_code = status
    return response


@require_POST
@page
def away_end(request: HttpRequest, delegation_id: UUID) -> HttpResponse:
    """Ends a delegation at once."""
    delegation_revoke(actor=actor_of(request), delegation_id=delegation_id)
    messages.success(request, _("It has ended."))
    return redirect("web:away")
