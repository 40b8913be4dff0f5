"""Sign-ins and sign-outs stand in the log: of which person, from where, and how often in vain.

Connected to Django's signals, which every way of signing in sends.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.db import transaction
from django.http import HttpRequest

from gpuyard.audit.doors import address_of
from gpuyard.audit.services import Refusal, denial_count, event_draft, events_record
from gpuyard.core.models import User
from gpuyard.core.text import text_for_lookup
from tenants.directory import chains_of


def signals_connect() -> None:
    """Called once, when the app is ready."""
    user_logged_in.connect(_signed_in, dispatch_uid="tenants.signed_in")
    user_logged_out.connect(_signed_out, dispatch_uid="tenants.signed_out")
    user_login_failed.connect(_failed, dispatch_uid="tenants.sign_in_failed")


def _signed_in(request: HttpRequest | None, user: User, **kwargs: Any) -> None:
    _record("sign_in.success", request, user)


def _signed_out(request: HttpRequest | None, user: User | None, **kwargs: Any) -> None:
    if user is not None:
        _record("sign_in.end", request, user)


def _record(action: str, request: HttpRequest | None, user: User) -> None:
    with transaction.atomic():
        events_record(
            event_draft(
                company_id=company_id,
                actor=user,
                action=action,
                subject=user,
                new={"address": address_of(request)},
            )
            for company_id in chains_of(user)
        )


def _failed(credentials: dict[str, Any], request: HttpRequest | None = None, **kwargs: Any) -> None:
    """Under the name of an account that exists. Any other name may be a password, typed a field too early."""
    name = text_for_lookup(credentials.get("username", ""))
    claimed = User.objects.filter(username=name).first()
    refusal = Refusal(
        action="sign_in.failure",
        method="POST",
        route="sign-in",
        status=403,
        path=request.path if request else "",
        address=address_of(request),
        code="credentials_wrong",
    )
    with transaction.atomic():
        for company_id in chains_of(claimed):
            denial_count(refusal, company_id=company_id, actor=claimed)
