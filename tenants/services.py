"""Companies, teams, people and roles: what changes them. See also `tenants.cases`, `.quotas` and `.tokens`.

Each service checks the actor's right, changes one thing and records it in the same transaction.
"""

from __future__ import annotations

import zoneinfo

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.translation import gettext as _

from gpuyard.audit.services import event_record
from gpuyard.core import ids
from gpuyard.core.errors import FieldError, Forbidden, Invalid, NotFound
from gpuyard.core.models import User
from gpuyard.core.policy import document_dump, document_parse
from gpuyard.core.text import text_check
from tenants.cases import case_amend, case_answer, case_open, case_withdraw
from tenants.constraints import unique
from tenants.deciding import case_decide, case_send_back, cases_decide
from tenants.models import ApprovalPolicy, Membership, Role, Team
from tenants.policies import DEFAULT_DOCUMENT, ApprovalDocument
from tenants.quotas import quota_cancel, quota_set
from tenants.rules import approval_policy_activate
from tenants.selectors import ADMIN, role_require

__all__ = [
    "approval_policy_activate",
    "case_amend",
    "case_answer",
    "case_decide",
    "case_open",
    "case_send_back",
    "case_withdraw",
    "cases_decide",
    "company_create",
    "membership_add",
    "membership_remove",
    "quota_cancel",
    "quota_set",
    "team_create",
    "time_zone_set",
    "user_create",
]


# --- Companies, teams, people -------------------------------------------------------------------------------


@transaction.atomic
def company_create(*, actor: User | None, name: str, currency: str, time_zone: str) -> Team:
    """A new company with the default approval rules. By a platform admin, or by a command (no actor)."""
    _admin_require(actor)
    if not (len(currency) == 3 and currency.isascii() and currency.isalpha() and currency.isupper()):
        raise Invalid(
            "currency_invalid",
            _("This is no currency."),
            field="currency",
            remedy=_("Give its three capital letters, such as EUR."),
        )
    if time_zone not in zoneinfo.available_timezones():
        raise Invalid(
            "time_zone_unknown",
            _("There is no such time zone."),
            field="time_zone",
            remedy=_("Give one such as Europe/Berlin."),
        )
    key = ids.uuid7()
    company = Team(id=key, company_id=key, path=[key], currency=currency, time_zone=time_zone)
    _team_save(company, name)
    event_record(
        company_id=key, actor=actor, action="company.create", subject=company, new={"name": company.name}
    )
    document = document_dump(document_parse(ApprovalDocument, DEFAULT_DOCUMENT))
    ApprovalPolicy.objects.create(
        company=company, version=1, document=document, active=True, created_by=actor
    )
    return company


@transaction.atomic
def team_create(*, actor: User, parent: Team, name: str) -> Team:
    """A new team below `parent`, by a manager of it or a platform admin."""
    role_require(actor, parent, Role.MANAGER, ADMIN)
    key = ids.uuid7()
    team = Team(id=key, company_id=parent.company_id, parent=parent, path=[*parent.path, key])
    _team_save(team, name)
    event_record(
        company_id=team.company_id,
        actor=actor,
        action="team.create",
        subject=team,
        new={"name": team.name, "parent": parent.public_id},
    )
    return team


def _team_save(team: Team, name: str) -> None:
    team.name = text_check(name, field="name", longest=80)
    with unique("tenants_team_name", "name", _("A team of this name exists there. Choose another name.")):
        team.save(force_insert=True)
    team.refresh_from_db()


@transaction.atomic
def user_create(
    *,
    actor: User | None,
    username: str,
    password: str | None = None,
    email: str = "",
    is_platform_admin: bool = False,
) -> User:
    """A new account, by a platform admin or a command (no actor). Without a password nobody can sign in with one."""
    _admin_require(actor)
    user = User(
        username=text_check(username, field="username", longest=150),
        email=text_check(email, field="email", longest=254, is_optional=True),
        is_platform_admin=is_platform_admin,
    )
    if password is None:
        user.set_unusable_password()
    else:
        _password_check(password, user)
        user.set_password(password)
    with unique("username", "username", _("This name is taken. Choose another one.")):
        user.save(force_insert=True)
    event_record(
        company_id=None,
        actor=actor,
        action="user.create",
        subject=user,
        new={"username": user.username, "is_platform_admin": is_platform_admin},
    )
    return user


@transaction.atomic
def time_zone_set(*, actor: User, time_zone: str) -> User:
    """In which zone the actor reads times; empty: that of their company."""
    if time_zone and time_zone not in zoneinfo.available_timezones():
        raise Invalid(
            "time_zone_unknown",
            _("There is no such time zone."),
            field="time_zone",
            remedy=_("Give one such as Europe/Berlin."),
        )
    old, actor.time_zone = actor.time_zone, time_zone
    User.objects.filter(pk=actor.pk).update(time_zone=time_zone)
    event_record(
        company_id=None,
        actor=actor,
        action="user.time_zone",
        subject=actor,
        old={"time_zone": old},
        new={"time_zone": time_zone},
    )
    return actor


def _password_check(password: str, user: User) -> None:
    try:
        validate_password(password, user)
    except ValidationError as exc:
        remedy = _("Choose a longer and less common password.")
        errors = [FieldError("password", "password_weak", text, remedy) for text in exc.messages]
        raise Invalid("password_weak", _("The password is too weak."), errors=errors) from exc


@transaction.atomic
def membership_add(*, actor: User, team: Team, user: User, role: str) -> Membership:
    """Gives a role. Managers give member and manager; finance and auditor watch them, so an admin gives these."""
    _role_change_require(actor, team, role)
    membership, is_new = Membership.objects.get_or_create(user=user, team=team, role=role)
    if is_new:
        _membership_event(actor, membership, "membership.add")
    return membership


@transaction.atomic
def membership_remove(*, actor: User, membership: Membership) -> Membership:
    """Takes a role away, under the same rights."""
    _role_change_require(actor, membership.team, membership.role)
    key = membership.pk
    deleted, _rows = Membership.objects.filter(pk=key).delete()
    if not deleted:
        raise NotFound("membership_unknown", _("This role has been taken away already."))
    _membership_event(actor, membership, "membership.remove")
    return membership


def _role_change_require(actor: User, team: Team, role: str) -> None:
    if role not in Role.values:
        raise Invalid(
            "role_unknown",
            _("There is no such role."),
            field="role",
            remedy=_("Choose one of %(roles)s.") % {"roles": ", ".join(Role.values)},
        )
    by_manager = (Role.MANAGER,) if role in (Role.MEMBER, Role.MANAGER) else ()
    role_require(actor, team, ADMIN, *by_manager)


def _membership_event(actor: User, membership: Membership, action: str) -> None:
    event_record(
        company_id=membership.team.company_id,
        actor=actor,
        action=action,
        subject=membership.team,
        new={"user": membership.user.username, "role": membership.role},
    )


# --- Shared ----------------------------------------------------------------------------------------------


def _admin_require(actor: User | None) -> None:
    if actor is not None and not actor.is_platform_admin:
        raise Forbidden("admin_only", _("Only a platform admin may do this."), remedy=_("Ask one of them."))
