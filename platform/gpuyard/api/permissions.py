"""What a token may do, besides what its user may do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils.translation import gettext as _
from rest_framework.permissions import SAFE_METHODS, BasePermission

from gpuyard.core.errors import Forbidden
from tenants.models import ApiToken

if TYPE_CHECKING:  # the framework loads this module while it loads its views
    from rest_framework.request import Request
    from rest_framework.views import APIView

READ = "read"
WRITE = "write"


class TokenScope(BasePermission):
    """GET, HEAD and OPTIONS need `read`, all else `write`. A browser session has no scopes: it may both."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        needed = READ if request.method in SAFE_METHODS else WRITE
        if not isinstance(request.auth, ApiToken) or needed in request.auth.scopes:
            return True
        raise Forbidden(
            "scope_missing",
            _("This token may not do that: it lacks the scope “%(scope)s”.") % {"scope": needed},
            remedy=_("Use a token with that scope."),
        )
