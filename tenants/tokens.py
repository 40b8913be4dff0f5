"""Tokens of the REST API: a person's own, and those of a team's service accounts."""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from collections.abc import Collection, Sequence
from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.utils.translation import gettext as _

from gpuyard.audit.services import event_record
from gpuyard.core import clock
from gpuyard.core.errors import Forbidden, Invalid, NotFound
from gpuyard.core.models import User
from gpuyard.core.text import text_check
from tenants.models import ApiToken, Role, ServiceAccount
from tenants.scopes import TOKEN_SCOPES, scopes_beyond
from tenants.selectors import ADMIN, role_require, visible_q

TOKEN_PREFIX = "gpy_"  # noqa: S105 - what tokens look like, not one of them
MOST_NETWORKS = 20
_LONGEST_TOKEN_LIFE = timedelta(days=366)


@transaction.atomic
def token_create(
    *,
    actor: User,
    name: str,
    scopes: Collection[str],
    lifetime: timedelta,
    networks: Sequence[str] = (),
    made_with: ApiToken | None = None,
    account: ServiceAccount | None = None,
) -> tuple[ApiToken, str]:
    """A token for the actor's own use of the API, or for a service account that they manage.

    Also returns its secret, which is shown this once and never stored. A token that is made with another one has none
    but its scopes, its networks and its life at most: a leaked token must not make itself a stronger or longer one.
    """
    if account is not None:
        role_require(actor, account.team, Role.MANAGER, ADMIN)
        if account.disabled_at is not None:
            raise Invalid("account_disabled", _("This service account is closed."), remedy=_("Create one."))
    wanted = _scopes_checked(scopes)
    allowed = networks_checked(networks)
    if not timedelta(0) < lifetime <= _LONGEST_TOKEN_LIFE:
        raise Invalid(
            "lifetime_invalid",
            _("A token lives for a year at most."),
            field="lifetime",
            remedy=_("Choose from 1 to 366 days."),
        )
    expires_at = clock.now() + lifetime
    if made_with is not None:
        _scopes_within(wanted, made_with)
        allowed = _networks_within(allowed, made_with)
        expires_at = min(expires_at, made_with.expires_at)
    secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
    token = ApiToken.objects.create(
        user=account.user if account else actor,
        name=text_check(name, field="name", longest=80),
        prefix=secret[:8],
        digest=hashlib.sha256(secret.encode()).hexdigest(),
        scopes=wanted,
        networks=allowed,
        expires_at=expires_at,
    )
    _token_event(actor, token, "token.create")
    return token, secret


def networks_checked(networks: Sequence[str]) -> list[str]:
    """Addresses and networks in their usual spelling; `Invalid` names the first that is none."""
    if len(networks) > MOST_NETWORKS:
        raise Invalid(
            "too_many",
            _("These are too many networks."),
            field="networks",
            remedy=_("Give at most %(most)s.") % {"most": MOST_NETWORKS},
        )
    found = []
    for one in networks:
        try:
            found.append(str(ipaddress.ip_network(one.strip(), strict=False)))
        except ValueError:
            raise Invalid(
                "network_invalid",
                _("This is no network: %(text)s.") % {"text": one[:60]},
                field="networks",
                remedy=_("Give addresses such as 10.1.2.3, or networks such as 10.1.0.0/16."),
            ) from None
    return sorted(set(found))


def is_from_within(address: str, networks: Sequence[str]) -> bool:
    """Whether a request from there may use a token with these networks; none listed: from anywhere."""
    if not networks:
        return True
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:
        found = found.ipv4_mapped
    return any(found in ipaddress.ip_network(one) for one in networks)


def _scopes_checked(scopes: Collection[str]) -> list[str]:
    wanted = sorted(set(scopes))
    if not wanted or not set(wanted) <= set(TOKEN_SCOPES):
        raise Invalid(
            "scope_unknown",
            _("There is no such scope."),
            field="scopes",
            remedy=_("Choose from %(scopes)s.") % {"scopes": ", ".join(TOKEN_SCOPES)},
        )
    return wanted


def _scopes_within(wanted: list[str], made_with: ApiToken) -> None:
    if beyond := scopes_beyond(made_with.scopes, wanted):
        raise Forbidden(
            "scope_beyond_own",
            _("A token cannot give what it lacks: %(scopes)s.") % {"scopes": ", ".join(beyond)},
            remedy=_("Ask for fewer scopes, or use a token that has them."),
        )


def _networks_within(wanted: list[str], made_with: ApiToken) -> list[str]:
    if not wanted or not made_with.networks:
        return wanted or list(made_with.networks)
    own = [ipaddress.ip_network(one) for one in made_with.networks]
    for one in map(ipaddress.ip_network, wanted):
        if not any(one.version == wide.version and one.subnet_of(wide) for wide in own):  # type: ignore[arg-type]
            raise Forbidden(
                "network_beyond_own",
                _("A token cannot give what it lacks: %(network)s.") % {"network": one},
                remedy=_("Stay within its own networks, or use a token that has them."),
            )
    return wanted


@transaction.atomic
def token_revoke(*, actor: User, token_id: UUID) -> ApiToken:
    """Ends one of the actor's own tokens, or one of a service account they manage, at once; an admin anybody's."""
    token = ApiToken.objects.select_related("user").filter(pk=token_id).first()
    if token is None or not (token.user == actor or actor.is_platform_admin or _is_managed(actor, token)):
        raise NotFound("token_unknown", _("There is no such token."))
    token.revoked_at = clock.now()
    if ApiToken.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=token.revoked_at):
        _token_event(actor, token, "token.revoke")
    return token


def _is_managed(actor: User, token: ApiToken) -> bool:
    managed = ServiceAccount.objects.filter(visible_q(actor, roles=[Role.MANAGER]))
    return managed.filter(user_id=token.user_id).exists()


def _token_event(actor: User, token: ApiToken, action: str) -> None:
    account = ServiceAccount.objects.filter(user_id=token.user_id).select_related("team").first()
    event_record(
        company_id=account.team.company_id if account else None,
        team_id=account.team_id if account else None,
        actor=actor,
        action=action,
        subject=token,
        new={
            "name": token.name,
            "scopes": token.scopes,
            "networks": token.networks,
            "expires_at": token.expires_at.isoformat(),
            "user": token.user.username,
        },
    )
