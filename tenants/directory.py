"""Teams as their people see them, with names and roles along the tree; and who reads which company's log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from uuid import UUID

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from gpuyard.audit.models import Checkpoint, Event
from gpuyard.audit.selectors import (
    ChainStatus,
    EventFilters,
    chain_status,
    checkpoints_stored,
    event_list,
    events_filter,
)
from gpuyard.core.errors import Forbidden, NotFound
from gpuyard.core.models import User
from gpuyard.core.text import text_for_lookup
from tenants.models import Membership, Role, Team

PLATFORM = "platform"
"""Stands for the platform's own chain, where a company's id is asked for."""
_READS_THE_LOG = (Role.AUDITOR, Role.MANAGER)


# --- Teams -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TeamView:
    """A team, the names from its company down to itself, and the reader's roles on it."""

    team: Team
    path: tuple[str, ...]
    roles: tuple[str, ...]


def teams_describe(actor: User, teams: Iterable[Team]) -> list[TeamView]:
    """The given teams (from a selector that checked the reader), in two queries."""
    rows = list(teams)
    names = dict(
        Team.objects.filter(pk__in={key for row in rows for key in row.path}).values_list("pk", "name")
    )
    roles: dict[UUID, set[str]] = {}
    for team_id, role in Membership.objects.filter(user=actor).values_list("team_id", "role"):
        roles.setdefault(team_id, set()).add(role)
    return [
        TeamView(
            team=row,
            path=tuple(names[key] for key in row.path),
            roles=tuple(sorted(set().union(*(roles.get(key, set()) for key in row.path)))),
        )
        for row in rows
    ]


def teams_joined(actor: User) -> QuerySet[Team]:
    """The teams on which the actor's own roles count: an admin sees more than these."""
    mine = Membership.objects.filter(user=actor).values_list("team_id", flat=True)
    found = Team.objects.filter(path__overlap=list(mine), archived_at__isnull=True)
    return found.select_related("parent", "company").order_by("path")


# --- The log -----------------------------------------------------------------------------------------------


def companies_audited(actor: User) -> QuerySet[Team]:
    """The companies whose log the actor reads: as auditor or manager of the company, or as platform admin."""
    companies = Team.objects.filter(parent__isnull=True)
    if not actor.is_platform_admin:
        mine = Membership.objects.filter(user=actor, role__in=_READS_THE_LOG)
        companies = companies.filter(pk__in=mine.values("team_id"))
    return companies.order_by("name")


def chains_of(person: User | None) -> list[UUID | None]:
    """Where a person's own acts stand that are about no team: sign-ins, refusals, downloads.

    In the chain of each company in which they have a role; an admin's, a stranger's and nobody's in the platform's.
    """
    if person is None or person.is_platform_admin:
        return [None]
    companies = Membership.objects.filter(user=person).values_list("team__company_id", flat=True)
    return [*sorted(set(companies))] or [None]


def events_audited(
    actor: User, *, company: str = "", team: str = "", filters: EventFilters | None = None
) -> QuerySet[Event]:
    """The events of those companies, or of one (by its public id, or `PLATFORM`), newest first.

    `team`: only what was about that team or one below it.
    """
    companies = _companies_require(actor)
    asked = filters or EventFilters()
    if team:
        asked = replace(asked, team_ids=_subtree(companies, team))
    if company == PLATFORM and actor.is_platform_admin:
        return event_list(company_id=None, filters=asked)
    if company:
        return event_list(company_id=company_audited(actor, company).pk, filters=asked)
    events = Event.objects.all()
    if not actor.is_platform_admin:
        events = events.filter(company_id__in=companies.values("pk"))
    return events_filter(events, asked)


def company_audited(actor: User, public_id: str) -> Team:
    """One of the companies whose log the actor reads."""
    found = _companies_require(actor).filter(public_id=text_for_lookup(public_id)).first()
    if found is None:
        raise NotFound("company_unknown", _("There is no such company, or you may not read its log."))
    return found


def _subtree(companies: QuerySet[Team], public_id: str) -> list[UUID]:
    known = Team.objects.filter(company__in=companies.values("pk"))
    team = known.filter(public_id=text_for_lookup(public_id)).first()
    if team is None:
        raise NotFound("team_unknown", _("There is no such team, or you may not read its company's log."))
    return list(Team.objects.filter(path__contains=[team.pk]).values_list("pk", flat=True))


def checkpoints_audited(actor: User, *, company: str = "") -> QuerySet[Checkpoint]:
    """The signed checkpoints of those companies' chains, or of one; oldest first."""
    companies = _companies_require(actor)
    if company == PLATFORM and actor.is_platform_admin:
        return checkpoints_stored(None)
    if company:
        return checkpoints_stored(company_audited(actor, company).pk)
    stored = Checkpoint.objects.order_by("company_id", "sequence")
    return stored if actor.is_platform_admin else stored.filter(company_id__in=companies.values("pk"))


def chains_audited(actor: User) -> list[tuple[Team | None, ChainStatus]]:
    """How far each of those companies' chains is sealed and verified; for an admin the platform's first."""
    chains: list[Team | None] = [None] if actor.is_platform_admin else []
    chains += _companies_require(actor)
    return [(company, chain_status(company.pk if company else None)) for company in chains]


def _companies_require(actor: User) -> QuerySet[Team]:
    companies = companies_audited(actor)
    if not (actor.is_platform_admin or companies.exists()):
        raise Forbidden(
            "log_not_yours",
            _("The log is read by the auditors and managers of a company."),
            remedy=_("Ask one of them."),
        )
    return companies
