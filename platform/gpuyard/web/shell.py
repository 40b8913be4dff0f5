"""What stands around every page: the team picked, the navigation, and what waits for the reader."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext as _

from gpuyard.core.models import User
from gpuyard.notify.selectors import unread_count
from gpuyard.web.actor import actor_of
from tenants.inbox import cases_to_decide
from tenants.models import Role, Team
from tenants.selectors import ADMIN, team_get, teams_visible

MOST_TEAMS = 100  # in the picker; more are found by search
SEES_COSTS = frozenset({Role.MANAGER, Role.FINANCE, Role.AUDITOR, ADMIN})
SEES_POLICY = frozenset({Role.AUDITOR, ADMIN})
SEES_AUDIT = frozenset({Role.AUDITOR, ADMIN})
DECIDES = frozenset({Role.MANAGER, Role.FINANCE, ADMIN})
REQUESTS = frozenset({Role.MEMBER, Role.MANAGER})


@dataclass(frozen=True, kw_only=True)
class NavItem:
    key: str
    label: str
    url: str
    shortcut: str  # pressed after `g`


@dataclass(frozen=True, kw_only=True)
class TeamChoice:
    id: str
    path: str  # "vision / nlp"
    depth: int = 0
    selected: bool = False


@dataclass(frozen=True, kw_only=True)
class Shell:
    user_name: str
    teams: Sequence[TeamChoice]
    nav: Sequence[NavItem]
    approvals_waiting: int
    unread: int  # of the bell
    may_request: bool
    may_approve: bool

    @property
    def team(self) -> TeamChoice | None:
        return next((team for team in self.teams if team.selected), None)


def shell(request: HttpRequest) -> dict[str, Any]:
    """The context processor. Nothing is asked of the database until a template reads it."""
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated or not hasattr(request, "session"):
        return {"shell": None}
    return {"shell": SimpleLazyObject(lambda: _shell(request))}


def team_picked(request: HttpRequest) -> Team | None:
    """The team that lists are limited to: `?team=`, remembered until another is picked; empty means all."""
    wanted = request.GET.get("team")
    if wanted is None:
        wanted = request.session.get("team", "")
        known = teams_visible(actor_of(request)).filter(public_id=wanted).first() if wanted else None
        return known
    team = team_get(actor_of(request), wanted) if wanted else None
    if request.session.get("team", "") != wanted:
        request.session["team"] = wanted
    return team


def roles_of(actor: User) -> frozenset[str]:
    """Every role the reader has somewhere: decides what is worth showing, never what is allowed."""
    roles = frozenset(actor.memberships.values_list("role", flat=True))
    return roles | {ADMIN} if actor.is_platform_admin else roles


def team_paths(teams: Iterable[Team]) -> dict[UUID, str]:
    """`vision / detection`: the names down to each team, without the company's where there is more."""
    rows = list(teams)
    names = {team.pk: team.name for team in rows}
    companies = {team.pk for team in rows if team.parent_id is None}
    return {
        team.pk: " / ".join(
            names[key] for key in team.path if key in names and (key not in companies or key == team.pk)
        )
        for team in rows
    }


def _shell(request: HttpRequest) -> Shell:
    actor = actor_of(request)
    roles = roles_of(actor)
    teams = list(teams_visible(actor)[:MOST_TEAMS])
    picked = team_picked(request)
    paths = team_paths(teams)
    waiting = cases_to_decide(actor).count()  # also of who stands in for somebody, or is in a group
    may_decide = waiting > 0 or not roles.isdisjoint(DECIDES)
    return Shell(
        user_name=actor.get_full_name() or actor.username,
        teams=tuple(
            TeamChoice(
                id=team.public_id,
                path=paths[team.pk],
                depth=max(0, len(team.path) - 2),
                selected=picked is not None and team.pk == picked.pk,
            )
            for team in teams
        ),
        nav=_nav(roles),
        approvals_waiting=waiting,
        unread=unread_count(actor),
        may_request=not roles.isdisjoint(REQUESTS),
        may_approve=may_decide,
    )


def _nav(roles: Collection[str]) -> tuple[NavItem, ...]:
    items = [
        ("home", _("Home"), "h"),
        ("workloads", _("Workloads"), "w"),
        ("queue", _("Queue"), "q"),
        ("fleet", _("Fleet"), "f"),
    ]
    if not SEES_COSTS.isdisjoint(roles):
        items.append(("costs", _("Costs"), "o"))
    if not SEES_POLICY.isdisjoint(roles):
        items.append(("policy", _("Policy"), "p"))
    if not SEES_AUDIT.isdisjoint(roles):
        items.append(("audit", _("Audit"), "l"))
    return tuple(
        NavItem(key=key, label=label, url=reverse(f"web:{key}"), shortcut=shortcut)
        for key, label, shortcut in items
    )
