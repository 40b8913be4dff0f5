"""The forms for codes: guessing them is slowed down as guessing passwords is."""

from __future__ import annotations

from typing import Any

from allauth.account.adapter import get_adapter
from allauth.core import context
from allauth.mfa.base.forms import AuthenticateForm, ReauthenticateForm

from gpuyard.audit.doors import address_of
from tenants.lockout import try_begin, try_succeeded


class _Counted:
    user: Any

    def clean_code(self) -> str:
        # A right password has just been forgotten by the count: codes have one of their own.
        name, address = f"code of {self.user.pk}", address_of(context.request)
        if not try_begin(name, address):
            raise get_adapter().validation_error("too_many_login_attempts")
        code: str = super().clean_code()  # type: ignore[misc] # of allauth's form
        try_succeeded(name, address)
        return code


class CodeForm(_Counted, AuthenticateForm):  # type: ignore[misc] # allauth has no types
    pass


class CodeAgainForm(_Counted, ReauthenticateForm):  # type: ignore[misc] # allauth has no types
    pass
