"""Who is reading: signed in, in their time zone, with refusals as pages."""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _

from gpuyard.core.errors import Forbidden, Invalid, NotFound
from gpuyard.core.models import User
from tenants.selectors import companies_visible
from tenants.signins import codes_wanted, sign_in_seen

View = Callable[..., HttpResponseBase]


def actor_of(request: HttpRequest) -> User:
    return cast(User, request.user)


def page(view: View) -> View:
    """For every page: a stranger's object is 404, a missing right 403, nonsense 400, times are the reader's."""

    @wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return _sign_in_first(request)
        if codes_wanted(actor_of(request)):
            messages.info(request, _("Admins sign in with codes: turn them on first."))
            return redirect("mfa_activate_totp")
        sign_in_seen(request)
        try:
            with timezone.override(zone_of(request)):
                return view(request, *args, **kwargs)
        except NotFound as exc:
            raise Http404(str(exc)) from exc
        except Forbidden as exc:
            raise PermissionDenied(str(exc)) from exc
        except Invalid as exc:  # what a form sends is told beside its fields; this came in an address
            raise BadRequest(str(exc)) from exc

    return wrapper


def _sign_in_first(request: HttpRequest) -> HttpResponse:
    if request.headers.get("HX-Request"):
        # A redirect would be swapped into the live part; reloading the page shows the sign-in instead.
        return HttpResponse(status=401, headers={"HX-Refresh": "true"})
    return cast(HttpResponse, redirect_to_login(request.get_full_path(), settings.LOGIN_URL))


def zone_of(request: HttpRequest) -> zoneinfo.ZoneInfo:
    """The reader's own zone, else their company's, else UTC; kept for the session."""
    name = request.session.get("zone")
    if name is None:
        actor = actor_of(request)
        company = None if actor.time_zone else companies_visible(actor).order_by("name").first()
        name = actor.time_zone or (company.time_zone if company else "UTC")
        request.session["zone"] = name
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):
        return zoneinfo.ZoneInfo("UTC")
