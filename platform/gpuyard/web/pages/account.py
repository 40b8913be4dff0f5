"""One's own account: sign-ins, codes, tokens, time zone; and the service accounts of one's teams."""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from allauth.mfa.models import Authenticator
from django.http import QueryDict

from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.web.contexts import Choice
from gpuyard.web.shell import team_paths
from tenants.models import ApiToken, Role, ServiceAccount, SignIn
from tenants.scopes import TOKEN_SCOPES
from tenants.selectors import ADMIN, team_ids_with, teams_visible, token_list
from tenants.service_accounts import service_account_list
from tenants.signins import sign_in_list

LIFETIMES = (7, 30, 90, 365)
_MOST_SHOWN = 100


@dataclass(frozen=True, kw_only=True)
class SignInRow:
    id: str
    address: str
    agent: str
    created_at: datetime
    seen_at: datetime
    is_this: bool


@dataclass(frozen=True, kw_only=True)
class TokenRow:
    id: str
    name: str
    prefix: str
    scopes: str
    networks: str
    expires_at: datetime
    used_at: datetime | None
    used_from: str


@dataclass(frozen=True, kw_only=True)
class TokenForm:
    """What a form for a new token offers, and what was typed into it."""

    scopes: Sequence[Choice]
    lifetimes: Sequence[Choice]
    name: str
    networks: str
    error: str = ""
    secret: str = ""  # shown this once
    secret_of: str = ""


@dataclass(frozen=True, kw_only=True)
class AccountPage:
    as_of: datetime
    user: User
    has_password: bool
    has_codes: bool
    sign_ins: Sequence[SignInRow]
    tokens: Sequence[TokenRow]
    form: TokenForm
    zones: Sequence[Choice]


@dataclass(frozen=True, kw_only=True)
class ProgramRow:
    id: str
    name: str
    username: str
    team: str
    tokens: Sequence[TokenRow]
    may_change: bool


@dataclass(frozen=True, kw_only=True)
class ProgramsPage:
    as_of: datetime
    rows: Sequence[ProgramRow]
    teams: Sequence[Choice]
    roles: Sequence[Choice]
    form: TokenForm


def account_build(actor: User, session_key: str | None, form: TokenForm) -> AccountPage:
    return AccountPage(
        as_of=clock.now(),
        user=actor,
        has_password=actor.has_usable_password(),
        has_codes=Authenticator.objects.filter(user=actor, type=Authenticator.Type.TOTP).exists(),
        sign_ins=[_sign_in(row, session_key) for row in sign_in_list(actor)],
        tokens=_tokens(token_list(actor).filter(revoked_at=None)[:_MOST_SHOWN]),
        form=form,
        zones=[
            Choice(value=name, label=name, selected=name == actor.time_zone)
            for name in sorted(zoneinfo.available_timezones())
        ],
    )


def programs_build(actor: User, form: TokenForm) -> ProgramsPage:
    rows = list(service_account_list(actor)[:_MOST_SHOWN])
    managed = set(team_ids_with(actor, Role.MANAGER, ADMIN))
    visible = list(teams_visible(actor))
    paths = team_paths(visible)
    tokens = ApiToken.objects.filter(user__in=[row.user_id for row in rows], revoked_at=None)
    by_user: dict[object, list[ApiToken]] = {}
    for token in tokens:
        by_user.setdefault(token.user_id, []).append(token)
    return ProgramsPage(
        as_of=clock.now(),
        rows=[
            _program(row, paths.get(row.team_id, row.team.name), by_user.get(row.user_id, []), managed)
            for row in rows
        ],
        teams=[Choice(value=one.public_id, label=paths[one.pk]) for one in visible if one.pk in managed],
        roles=[
            Choice(value=value, label=str(label), selected=value == Role.MEMBER)
            for value, label in Role.choices
        ],
        form=form,
    )


def token_form(
    typed: QueryDict | None = None, *, error: str = "", secret: str = "", secret_of: str = ""
) -> TokenForm:
    given = typed or QueryDict()
    chosen = given.getlist("scopes") or ["read"]
    return TokenForm(
        scopes=[Choice(value=one, label=one, selected=one in chosen) for one in TOKEN_SCOPES],
        lifetimes=[
            Choice(value=str(days), label=str(days), selected=str(days) == given.get("days", "30"))
            for days in LIFETIMES
        ],
        name=given.get("name", ""),
        networks=given.get("networks", ""),
        error=error,
        secret=secret,
        secret_of=secret_of,
    )


def _sign_in(row: SignIn, session_key: str | None) -> SignInRow:
    return SignInRow(
        id=str(row.pk),
        address=row.address,
        agent=row.agent,
        created_at=row.created_at,
        seen_at=row.seen_at,
        is_this=row.session_key == session_key,
    )


def _tokens(rows: Iterable[ApiToken]) -> list[TokenRow]:
    return [
        TokenRow(
            id=str(row.pk),
            name=row.name,
            prefix=row.prefix,
            scopes=", ".join(row.scopes),
            networks=", ".join(row.networks),
            expires_at=row.expires_at,
            used_at=row.last_used_at,
            used_from=row.last_used_from,
        )
        for row in rows
    ]


def _program(row: ServiceAccount, path: str, tokens: list[ApiToken], managed: set[UUID]) -> ProgramRow:
    return ProgramRow(
        id=row.user.public_id,
        name=row.name,
        username=row.user.username,
        team=path,
        tokens=_tokens(tokens),
        may_change=row.team_id in managed,
    )
