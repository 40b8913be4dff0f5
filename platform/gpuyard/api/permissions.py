"""What a token may do, besides what its user may do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils.translation import gettext as _
from rest_framework.permissions import BasePermission

from gpuyard.api.scopes import scope_of
from gpuyard.audit.doors import address_of
from gpuyard.core.errors import Forbidden
from gpuyard.core.models import User
from tenants.models import ApiToken
from tenants.scopes import scope_covers
from tenants.signins import codes_wanted
from tenants.tokens import is_from_within

if TYPE_CHECKING:  # the framework loads this module while it loads its views
    from rest_framework.request import Request
    from rest_framework.views import APIView


class TokenScope(BasePermission):
    """A token works from its networks and within its scopes. A browser session has neither: it may do all."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        if not isinstance(request.auth, ApiToken):
            if isinstance(request.user, User) and codes_wanted(request.user):
                raise Forbidden(
                    "codes_wanted",
                    _("Admins sign in with codes here."),
                    remedy=_("Turn them on at your account's page."),
                )
            return True
        address = address_of(request._request)
        if not is_from_within(address, request.auth.networks):
            raise Forbidden(
                "network_refused",
                _("This token may not be used from %(address)s.") % {"address": address or _("there")},
                remedy=_("Use it from one of its networks, or create one for this network."),
            )
        needed = scope_of(request)
        if scope_covers(request.auth.scopes, needed):
            return True
        raise Forbidden(
            "scope_missing",
            _("This token may not do that: it lacks the scope “%(scope)s”.") % {"scope": needed},
            remedy=_("Use a token with that scope."),
        )
