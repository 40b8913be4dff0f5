"""Sign-ins and sign-outs stand in the log: of which person, from where, and how often in vain.

Connected to Django's signals, which every way of signing in sends.
"""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

from allauth.account.signals import password_changed
from allauth.core import context
from allauth.mfa import signals as codes
from django.apps import apps
from django.conf import settings
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models.signals import post_delete, post_save
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _

from gpuyard.audit.doors import address_of
from gpuyard.audit.services import Refusal, denial_count, event_draft, event_record, events_record
from gpuyard.core import clock
from gpuyard.core.errors import NotFound
from gpuyard.core.models import User
from gpuyard.core.text import text_for_lookup
from tenants.directory import chains_of
from tenants.models import SignIn

SEEN = "seen"  # in the session: when its use was noted
SEEN_EVERY_S = 600


def signals_connect() -> None:
    """Called once, when the app is ready."""
    user_logged_in.connect(_signed_in, dispatch_uid="tenants.signed_in")
    user_logged_out.connect(_signed_out, dispatch_uid="tenants.signed_out")
    user_login_failed.connect(_failed, dispatch_uid="tenants.sign_in_failed")
    password_changed.connect(_password_changed, dispatch_uid="tenants.password_changed")
    # its rows, not its signals: those come after the commit, and a kill between would leave no event
    factors = apps.get_model("mfa", "Authenticator")
    post_save.connect(_codes_on, sender=factors, dispatch_uid="tenants.codes_on")
    post_delete.connect(_codes_off, sender=factors, dispatch_uid="tenants.codes_off")
    codes.authentication_failed.connect(_code_wrong, dispatch_uid="tenants.code_wrong")


def _signed_in(request: HttpRequest | None, user: User, **kwargs: Any) -> None:
    _record("sign_in.success", request, user)
    if request is not None and hasattr(request, "session"):
        _session_note(request, user)


def _signed_out(request: HttpRequest | None, user: User | None, **kwargs: Any) -> None:
    if user is not None:
        _record("sign_in.end", request, user)
        if request is not None and hasattr(request, "session"):
            SignIn.objects.filter(session_key=request.session.session_key).delete()


def _session_note(request: HttpRequest, user: User) -> None:
    session = request.session
    session[SEEN] = time.time()
    if not session.session_key:
        session.save()
    SignIn.objects.update_or_create(
        session_key=session.session_key,
        defaults={
            "user": user,
            "address": address_of(request),
            "agent": text_for_lookup(request.headers.get("User-Agent", ""))[:200],
        },
    )


# --- The list of one's sign-ins -------------------------------------------------------------------------------


def sign_in_seen(request: HttpRequest) -> None:
    """Notes that a session is in use, once in a while."""
    now, session = time.time(), request.session
    if now - session.get(SEEN, 0) < SEEN_EVERY_S:
        return
    session[SEEN] = now
    known = SignIn.objects.filter(session_key=session.session_key)
    if not known.update(seen_at=clock.now(), address=address_of(request)) and isinstance(request.user, User):
        _session_note(request, request.user)  # its key has changed, with the password


def sign_in_list(actor: User) -> list[SignIn]:
    """The actor's own sessions that still work, the last used first."""
    rows = list(SignIn.objects.filter(user=actor)[:200])
    keys = [row.session_key for row in rows]
    alive = set(
        Session.objects.filter(session_key__in=keys, expire_date__gt=timezone.now()).values_list(
            "session_key", flat=True
        )
    )
    return [row for row in rows if row.session_key in alive]


@transaction.atomic
def sign_ins_end(*, actor: User, sign_in_id: UUID | None = None, keep: str | None = None) -> int:
    """Ends one of the actor's own sessions, or all of them but the session `keep`. Returns how many."""
    rows = SignIn.objects.filter(user=actor)
    rows = rows.filter(pk=sign_in_id) if sign_in_id else rows.exclude(session_key=keep)
    ended = list(rows)
    if sign_in_id and not ended:
        raise NotFound("sign_in_unknown", _("There is no such sign-in."))
    keys = [one.session_key for one in ended]
    Session.objects.filter(session_key__in=keys).delete()
    rows.delete()
    for company_id in chains_of(actor) if ended else ():
        event_record(
            company_id=company_id,
            actor=actor,
            action="sign_in.revoke",
            subject=actor,
            new={"addresses": [one.address for one in ended]},
        )
    return len(ended)


def codes_wanted(person: User) -> bool:
    """Where admins need a second factor, they do nothing before they have one."""
    if not (settings.GPUYARD_ADMINS_NEED_CODES and person.is_platform_admin):
        return False
    from allauth.mfa.models import Authenticator  # not before the apps are loaded

    return not Authenticator.objects.filter(user=person, type=Authenticator.Type.TOTP).exists()


# --- What is logged -------------------------------------------------------------------------------------------


def _record(action: str, request: HttpRequest | None, user: User, **told: Any) -> None:
    with transaction.atomic():
        events_record(
            event_draft(
                company_id=company_id,
                actor=user,
                action=action,
                subject=user,
                new={"address": address_of(request), **told},
            )
            for company_id in chains_of(user)
        )


def _password_changed(request: HttpRequest, user: User, **kwargs: Any) -> None:
    _record("sign_in.password_change", request, user)


def _codes_on(instance: Any, created: bool, **kwargs: Any) -> None:
    if created:
        _record("sign_in.codes_on", context.request, instance.user, kind=instance.type)


def _codes_off(instance: Any, **kwargs: Any) -> None:
    _record("sign_in.codes_off", context.request, instance.user, kind=instance.type)


def _code_wrong(request: HttpRequest, user: User, **kwargs: Any) -> None:
    _failure(request, user, "code_wrong")


def _failed(credentials: dict[str, Any], request: HttpRequest | None = None, **kwargs: Any) -> None:
    """Under the name of an account that exists. Any other name may be a password, typed a field too early."""
    name = text_for_lookup(credentials.get("username", ""))
    _failure(request, User.objects.filter(username=name).first(), "credentials_wrong")


def _failure(request: HttpRequest | None, claimed: User | None, code: str) -> None:
    refusal = Refusal(
        action="sign_in.failure",
        method="POST",
        route="sign-in",
        status=403,
        path=request.path if request else "",
        address=address_of(request),
        code=code,
    )
    with transaction.atomic():
        for company_id in chains_of(claimed):
            denial_count(refusal, company_id=company_id, actor=claimed)
