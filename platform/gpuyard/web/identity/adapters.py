"""How allauth meets the platform: who may sign in, how guessing is slowed down, what is stored of second factors."""

from __future__ import annotations

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.internal.flows.reauthentication import get_reauthentication_flows
from allauth.core import context
from allauth.mfa.adapter import DefaultMFAAdapter
from django.http import HttpRequest
from django.urls import reverse

from gpuyard.audit.doors import address_of
from gpuyard.core.models import User
from gpuyard.notify.vault import opened, sealed
from tenants.lockout import try_begin, try_succeeded


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc] # allauth has no types
    """Accounts are made by admins, invitations and providers: nobody signs up here."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        if not try_begin(str(credentials.get("username", "")), address_of(request)):
            raise self.validation_error("too_many_login_attempts")

    def authenticate(self, request: HttpRequest, **credentials: Any) -> User | None:
        user: User | None = super().authenticate(request, **credentials)
        if user is not None:
            try_succeeded(str(credentials.get("username", "")), address_of(request))
        return user

    def is_reauthentication_required(self, *, app: str, **kwargs: Any) -> bool:
        """Not of people who have nothing here to show: their provider has neither passwords nor codes with us."""
        return bool(get_reauthentication_flows(context.request.user))

    def get_client_ip(self, request: HttpRequest) -> str:
        return address_of(request)

    def get_password_change_redirect_url(self, request: HttpRequest) -> str:
        return reverse("web:account")

    def add_message(self, *args: Any, **kwargs: Any) -> None:
        """None of allauth's: our pages say what has happened."""


class MfaAdapter(DefaultMFAAdapter):  # type: ignore[misc] # allauth has no types
    """Whoever reads a dump of the database cannot make anybody's codes."""

    def encrypt(self, text: str) -> str:
        return sealed(text)

    def decrypt(self, encrypted_text: str) -> str:
        return opened(encrypted_text)
