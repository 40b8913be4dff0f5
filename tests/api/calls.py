"""Calling the API as somebody: with a token of theirs, as programs do."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rest_framework.test import APIClient

from gpuyard.api.authentication import token_digest
from gpuyard.core import clock
from gpuyard.core.models import User
from tenants.models import ApiToken


def token_for(user: User, *, lifetime: timedelta = timedelta(days=30), scopes: str = "read write") -> str:
    """The secret of a new token."""
    secret = f"gpy_{secrets.token_urlsafe(32)}"
    ApiToken.objects.create(
        user=user,
        name="test",
        prefix=secret[:8],
        digest=token_digest(secret),
        scopes=scopes.split(),
        expires_at=clock.now() + lifetime,
    )
    return secret


class Caller:
    """One user at the API; answers are parsed, and their status is checked."""

    def __init__(self, user: User | None) -> None:
        self.client = APIClient(raise_request_exception=True)
        if user:
            self.client.credentials(HTTP_AUTHORIZATION=f"Bearer {token_for(user)}")

    def get(self, path: str, *, status: int = 200, **params: Any) -> Any:
        return self._answer(self.client.get(f"/api/v1/{path}", params), status)

    def post(
        self, path: str, body: Any = None, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Any:
        sent = {} if body is None else body
        return self._answer(
            self.client.post(f"/api/v1/{path}", sent, format="json", headers=dict(headers or {})), status
        )

    def delete(self, path: str, *, status: int = 204) -> Any:
        return self._answer(self.client.delete(f"/api/v1/{path}"), status)

    @staticmethod
    def _answer(response: Any, status: int) -> Any:
        assert response.status_code == status, (response.status_code, response.content[:2000])
        return response.json() if response.content else None
