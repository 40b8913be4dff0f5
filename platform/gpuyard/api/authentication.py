"""Bearer tokens: scoped, expiring, stored as SHA-256."""

from __future__ import annotations

import hashlib
from datetime import timedelta

from django.db.models import Q
from django.utils.translation import gettext_lazy as _
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from gpuyard.audit.doors import address_of
from gpuyard.core.clock import YardNow
from gpuyard.core.errors import Text
from gpuyard.core.models import User
from tenants.models import ApiToken

_USE_NOTED_EVERY = timedelta(minutes=1)


class TokenRefused(AuthenticationFailed):
    """A 401 with a code of its own and a remedy (`core.problems` reads it)."""

    def __init__(self, code: str, message: Text, remedy: Text) -> None:
        super().__init__(str(message), code)
        self.remedy = remedy


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer <token>`. `request.auth` is the `ApiToken`; `TokenScope` checks its scopes."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        scheme, _space, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        token = self._token(secret.strip(), address_of(request._request))
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="gpuyard"'

    def _token(self, secret: str, address: str) -> ApiToken:
        token = (
            ApiToken.objects.select_related("user")
            .annotate(now=YardNow())
            .filter(digest=token_digest(secret), user__is_active=True)
            .first()
        )
        if token is None:
            raise TokenRefused(
                "token_unknown", _("This token is not known."), _("Check it, or create a new one.")
            )
        if token.revoked_at is not None:
            raise TokenRefused("token_revoked", _("This token was revoked."), _("Create a new token."))
        if token.expires_at <= token.now:
            raise TokenRefused("token_expired", _("This token has expired."), _("Create a new token."))
        # Once a minute is enough to show what is in use, and keeps reads from writing.
        ApiToken.objects.filter(pk=token.pk).filter(
            Q(last_used_at=None) | Q(last_used_at__lt=token.now - _USE_NOTED_EVERY)
        ).update(last_used_at=token.now, last_used_from=address)
        return token


def token_digest(secret: str) -> str:
    """How a token is stored and looked up. No salt is needed: it has 256 random bits."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
