"""Asking for quota: a grant (more guarantee for a time), or another quota. The team above shares out, so it decides.

The case is one of the parent team: "a manager of the team" in a rule is a manager of the team that gives. Approving
takes the guarantee at once, in the case's transaction; where it has gone meanwhile, nothing happens and the approver
reads why.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TypeVar

from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from gpuyard.audit.services import event_record
from gpuyard.core import clock
from gpuyard.core.errors import Conflict, Forbidden, Invalid, NotFound
from gpuyard.core.models import User
from gpuyard.core.states import state_move
from gpuyard.core.text import text_check, text_for_lookup
from gpuyard.fleet.models import Tier
from tenants.asked import ask_facts, ask_label
from tenants.cases import case_open
from tenants.constraints import guarantees_fit, unique
from tenants.grant_news import grant_settle
from tenants.models import ASK_EDGES, AskState, Grant, QuotaAsk, QuotaChange, Role, Team
from tenants.quotas import MOST_UNITS, Amounts, amounts_check, amounts_of, quota_at, sharer_require
from tenants.selectors import ADMIN, ANY_ROLE, company_of, role_require, visible_q

LONGEST_GRANT = timedelta(days=366)
_ASKERS = (Role.MEMBER, Role.MANAGER)
_A = TypeVar("_A", bound=QuotaAsk)


# --- Asking ----------------------------------------------------------------------------------------------------


@transaction.atomic
def grant_ask(
    *,
    actor: User,
    team: Team,
    tier: Tier,
    units: int,
    ends_at: datetime,
    reason: str,
    starts_at: datetime | None = None,
    renews: Grant | None = None,
) -> Grant:
    """Asks for `units` more guarantee until `ends_at`; by a member or manager of the team."""
    parent = _parent_require(actor, team, _ASKERS)
    now = clock.now()
    begins = starts_at or now
    grant_check(units, begins, ends_at, now)
    grant = Grant(
        company_id=team.company_id,
        team=team,
        tier=tier,
        requester=actor,
        units=units,
        starts_at=max(begins, now),
        ends_at=ends_at,
        reason=text_check(reason, field="reason", longest=2000),
        renews=renews,
    )
    with unique("tenants_grant_one_renewal", "renews", _("This grant is being renewed already.")):
        grant.save(force_insert=True)
    return _asked(grant, parent, "grant", "grant.ask")


@transaction.atomic
def grant_renew(
    *, actor: User, grant_public_id: str, ends_at: datetime, reason: str, units: int | None = None
) -> Grant:
    """Asks for a grant that begins where this one ends."""
    old = grant_get(actor, grant_public_id)
    if old.state != AskState.APPROVED or old.ends_at <= clock.now():
        raise Conflict(
            "grant_ended", _("This grant has ended."), remedy=_("Ask for a new one on the team's page.")
        )
    grant_settle(old)
    return grant_ask(
        actor=actor,
        team=old.team,
        tier=_tier(old),
        units=units or old.units,
        starts_at=old.ends_at,
        ends_at=ends_at,
        reason=reason,
        renews=old,
    )


@transaction.atomic
def quota_ask(
    *,
    actor: User,
    team: Team,
    tier: Tier | None,
    amounts: Amounts,
    reason: str,
    starts_at: datetime | None = None,
) -> QuotaChange:
    """Asks for another quota; by a manager of the team. One open request per team and tier."""
    parent = _parent_require(actor, team, (Role.MANAGER,))
    amounts_check(tier, amounts)
    if amounts == amounts_of(quota_at(team, tier)):
        raise Invalid(
            "quota_unchanged",
            _("This changes nothing."),
            field="guaranteed",
            remedy=_("Change a value first."),
        )
    if starts_at is not None and starts_at <= clock.now():
        raise _past("starts_at")
    change = QuotaChange(
        company_id=team.company_id,
        team=team,
        tier=tier,
        requester=actor,
        **asdict(amounts),
        starts_at=starts_at,
        reason=text_check(reason, field="reason", longest=2000),
    )
    message = _("A change of this quota is being asked for already.")
    with unique("tenants_quotachange_one_open", "tier", message):
        change.save(force_insert=True)
    return _asked(change, parent, "quota_change", "quota.ask")


def grant_check(units: int, starts_at: datetime, ends_at: datetime, now: datetime) -> None:
    """Raises `Invalid` with the field that cannot be."""
    if isinstance(units, bool) or not 0 < units <= MOST_UNITS:
        raise Invalid(
            "out_of_range",
            _("A grant gives some GPUs."),
            field="gpus",
            remedy=_("Give a number above 0."),
        )
    if ends_at <= max(starts_at, now):
        raise Invalid(
            "ends_too_early",
            _("It would end before it starts."),
            field="ends_at",
            remedy=_("Give a later end."),
        )
    if ends_at - starts_at > LONGEST_GRANT:
        raise Invalid(
            "grant_too_long",
            _("A grant lasts for a year at most."),
            field="ends_at",
            remedy=_("Give an earlier end, or ask for another quota."),
        )


def _parent_require(actor: User, team: Team, roles: Iterable[str]) -> Team:
    role_require(actor, team, *roles)
    if team.archived_at is not None:
        raise Conflict("team_archived", _("This team is archived."), remedy=_("Ask for another team."))
    if team.parent is None:
        raise Forbidden(
            "company_quota", _("A company's quota is set by a platform admin."), remedy=_("Ask one of them.")
        )
    return team.parent


def _past(field: str) -> Invalid:
    message, remedy = _("This moment has passed."), _("Give a later one, or none for now.")
    return Invalid("starts_in_past", message, field=field, remedy=remedy)


def _asked(ask: _A, parent: Team, kind: str, action: str) -> _A:
    facts = ask_facts(ask)
    event_record(
        company_id=ask.company_id,
        actor=ask.requester,
        action=action,
        subject=ask,
        new={"team": ask.team.name, "asked": facts.asked},
        reason=ask.reason,
    )
    case_open(
        company=company_of(ask.team),
        team=parent,
        subject_type=kind,
        subject_id=ask.pk,
        subject_label=ask_label(ask),
        requester=ask.requester,
        justification=ask.reason,
        facts=facts,
    )
    ask.refresh_from_db()
    return ask


def _tier(grant: Grant) -> Tier:
    assert grant.tier is not None  # a constraint
    return grant.tier


# --- Ending ----------------------------------------------------------------------------------------------------


@transaction.atomic
def grant_revoke(*, actor: User, grant_public_id: str, reason: str) -> Grant:
    """Ends a grant before its time, by those who share out to the team. Nothing is stopped because of it."""
    grant = grant_get(actor, grant_public_id)
    sharer_require(actor, grant.team)
    reason = text_check(reason, field="reason", longest=2000)
    now = clock.now()
    if grant.ends_at <= now:
        raise Conflict("grant_ended", _("This grant has ended."), remedy=_("There is nothing to revoke."))
    with guarantees_fit():
        state_move(
            Grant,
            grant.pk,
            old=AskState.APPROVED,
            new=AskState.REVOKED,
            edges=ASK_EDGES,
            ended_at=now,
        )
    grant_settle(grant)
    event_record(
        company_id=grant.company_id,
        actor=actor,
        action="grant.revoke",
        subject=grant,
        old={"ends_at": grant.ends_at.isoformat(), "units": grant.units},
        new={"ended_at": now.isoformat()},
        reason=reason,
    )
    return grant_get(actor, grant_public_id)


# --- Reading ---------------------------------------------------------------------------------------------------


def grant_list(actor: User, team: Team | None = None) -> QuerySet[Grant]:
    """The grants of the teams that the actor sees (of one and those below it), the newest first."""
    found = Grant.objects.filter(visible_q(actor)).select_related("team", "tier", "requester", "renews")
    if team is not None:
        role_require(actor, team, *ANY_ROLE, ADMIN)
        found = found.filter(team__path__contains=[team.pk])
    return found.order_by("-created_at", "-id")


def grant_get(actor: User, public_id: str) -> Grant:
    """One of these."""
    found = grant_list(actor).select_related("team__parent").filter(public_id=text_for_lookup(public_id))
    grant = found.first()
    if grant is None:
        raise NotFound("grant_unknown", _("There is no such grant, or you may not see it."))
    return grant


def quota_change_list(actor: User, team: Team | None = None) -> QuerySet[QuotaChange]:
    """The changes of quotas that were asked for, likewise."""
    found = QuotaChange.objects.filter(visible_q(actor)).select_related("team", "tier", "requester")
    if team is not None:
        role_require(actor, team, *ANY_ROLE, ADMIN)
        found = found.filter(team__path__contains=[team.pk])
    return found.order_by("-created_at", "-id")


def quota_change_get(actor: User, public_id: str) -> QuotaChange:
    """One of these."""
    found = quota_change_list(actor).filter(public_id=text_for_lookup(public_id)).first()
    if found is None:
        raise NotFound("quota_change_unknown", _("There is no such request, or you may not see it."))
    return found
