"""Who may see and do what, and the tenants' lists. Every query starts from the actor.

A role counts on its team and below it, so the roles on a team are those on any team of its path. What an actor has
no role on does not exist for them (`NotFound`); what they see but may not do is `Forbidden`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import F, Q, QuerySet
from django.utils.translation import gettext as _

from gpuyard.core.errors import Forbidden, NotFound
from gpuyard.core.models import User
from gpuyard.core.text import text_for_lookup
from tenants.models import (
    ApiToken,
    ApprovalPolicy,
    Membership,
    PoolDedication,
    Quota,
    Role,
    Team,
)

ADMIN = "admin"
_CASE_RELATED = ("team", "company", "requester", "policy")
_CASE_STEPS = ("steps__decided_by", "steps__team")
ANY_ROLE: tuple[str, ...] = tuple(Role.values)

# --- Roles ------------------------------------------------------------------------------------------------


def roles_on(actor: User, team: Team) -> frozenset[str]:
    """The actor's roles on this team, those inherited from above included; an admin also has "admin" everywhere."""
    roles = set(Membership.objects.filter(user=actor, team_id__in=team.path).values_list("role", flat=True))
    return frozenset(roles | {ADMIN} if actor.is_platform_admin else roles)


def visible_q(actor: User, team: str = "team", *, roles: Sequence[str] = ANY_ROLE) -> Q:
    """The condition "the actor has one of these roles on it" for rows whose team is at the path `team`.

    `team=""` for teams themselves. Without `roles`, any role will do, and an admin sees all.
    """
    if actor.is_platform_admin and (ADMIN in roles or tuple(roles) == ANY_ROLE):
        return Q()
    mine = Membership.objects.filter(user=actor, role__in=roles).values("team_id")
    return Q(**{f"{team}__path__overlap" if team else "path__overlap": ArraySubquery(mine)})


def teams_visible(actor: User) -> QuerySet[Team]:
    """The teams on which, or above which, the actor has any role; parents come before their children."""
    return Team.objects.filter(visible_q(actor, ""), archived_at__isnull=True).order_by("path")


def team_ids_with(actor: User, *roles: str) -> list[UUID]:
    """The teams, with all below them, on which the actor has one of `roles` ("admin" for a platform admin)."""
    return list(Team.objects.filter(visible_q(actor, "", roles=roles)).values_list("id", flat=True))


def team_get(actor: User, public_id: str, *, roles: Iterable[str] = ()) -> Team:
    """A team that the actor may see; `Forbidden` if they have none of the `roles` there."""
    team = Team.objects.filter(visible_q(actor, ""), public_id=text_for_lookup(public_id)).first()
    if team is None:
        raise NotFound("team_unknown", _("There is no such team, or you are not in it."))
    if wanted := frozenset(roles):
        role_require(actor, team, *wanted)
    return team


def role_require(actor: User, team: Team, *roles: str) -> None:
    """Raises unless the actor has one of the roles on the team: `NotFound` for a stranger, else `Forbidden`."""
    held = roles_on(actor, team)
    if not held:
        raise NotFound("team_unknown", _("There is no such team, or you are not in it."))
    if held.isdisjoint(roles):
        raise _role_missing(team, roles)


def company_require(actor: User, company: Team, *roles: str) -> None:
    """Raises `NotFound` unless the actor has a role anywhere in the company; with `roles`, `Forbidden` unless
    they have one of them on the company itself.
    """
    if not companies_visible(actor).filter(pk=company.pk).exists():
        raise NotFound("company_unknown", _("There is no such company, or you are not in it."))
    if roles and roles_on(actor, company).isdisjoint(roles):
        raise _role_missing(company, roles)


def _role_missing(team: Team, roles: Iterable[str]) -> Forbidden:
    return Forbidden(
        "role_missing",
        _("You need the role %(roles)s on the team %(team)s.")
        % {"roles": _(" or ").join(sorted(roles)), "team": team.name},
        remedy=_("Ask a manager of the team."),
    )


def company_of(team: Team) -> Team:
    """The company of a team, which owns currency and time zone."""
    return team if team.parent_id is None else Team.objects.get(pk=team.company_id)


def company_get(actor: User, public_id: str) -> Team:
    """A company in which the actor has any role, on whichever of its teams."""
    found = companies_visible(actor).filter(public_id=text_for_lookup(public_id)).first()
    if found is None:
        raise NotFound("company_unknown", _("There is no such company, or you are not in it."))
    return found


def companies_visible(actor: User) -> QuerySet[Team]:
    """The companies in which the actor has any role, on whichever of their teams."""
    if actor.is_platform_admin:
        return Team.objects.filter(parent__isnull=True)
    mine = Membership.objects.filter(user=actor).values("team__company_id")
    return Team.objects.filter(parent__isnull=True, id__in=mine)


def member_list(actor: User, team: Team) -> QuerySet[Membership]:
    """Who has which role on this team itself."""
    role_require(actor, team, *ANY_ROLE, ADMIN)
    return Membership.objects.filter(team=team).select_related("user").order_by("user__username", "role")


def membership_get(actor: User, membership_id: UUID) -> Membership:
    """A membership of a team that the actor may see."""
    found = (
        Membership.objects.filter(visible_q(actor), pk=membership_id).select_related("user", "team").first()
    )
    if found is None:
        raise NotFound("membership_unknown")
    return found


def token_list(actor: User) -> QuerySet[ApiToken]:
    """The actor's own tokens, newest first."""
    return ApiToken.objects.filter(user=actor)


# --- Quotas and pools ---------------------------------------------------------------------------------------


def quota_list(actor: User, team: Team) -> QuerySet[Quota]:
    """The quotas that act on this team: its own and those above it, the team's own last."""
    role_require(actor, team, *ANY_ROLE, ADMIN)
    rows = Quota.objects.in_force().filter(team_id__in=team.path).select_related("team", "tier")
    return rows.order_by("team__path", F("tier__name").asc(nulls_last=True))


def pools_closed_to(team: Team) -> set[UUID]:
    """The pools that are dedicated to other subtrees."""
    rows = PoolDedication.objects.values_list("pool_id", "team_id")
    dedicated = {pool_id for pool_id, _team_id in rows}
    return dedicated - {pool_id for pool_id, team_id in rows if team_id in team.path}


# --- Approval -----------------------------------------------------------------------------------------------


def policy_active(company_id: UUID) -> ApprovalPolicy:
    """The company's approval rules in force. A company always has some, from its creation on."""
    return ApprovalPolicy.objects.get(company_id=company_id, active=True)
