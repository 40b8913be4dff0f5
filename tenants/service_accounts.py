"""Service accounts: what programs of a team sign in as. They have roles like people, and tokens but no password."""

from __future__ import annotations

from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from gpuyard.audit.services import event_record
from gpuyard.core import clock
from gpuyard.core.errors import Conflict, Invalid, NotFound
from gpuyard.core.models import User, UserKind
from gpuyard.core.text import text_check, text_for_lookup
from tenants.models import ApiToken, Role, ServiceAccount, Team
from tenants.selectors import ADMIN, role_require, visible_q
from tenants.services import membership_add

READERS = (Role.MANAGER, Role.AUDITOR, ADMIN)
_LONGEST_NAME = 40


@transaction.atomic
def service_account_create(*, actor: User, team: Team, name: str, role: str = Role.MEMBER) -> ServiceAccount:
    """A new account with one role on the team, by one of its managers. It can do nothing before it has a token."""
    role_require(actor, team, Role.MANAGER, ADMIN)
    name = text_check(name, field="name", longest=_LONGEST_NAME)
    if ServiceAccount.objects.filter(team=team, name=name, disabled_at__isnull=True).exists():
        raise Conflict(
            "name_taken",
            _("The team has a service account of this name."),
            field="name",
            remedy=_("Choose another one."),
        )
    user = User(kind=UserKind.SERVICE)
    user.username = (
        f"{name}@{user.public_id}"  # the id, so that a name is free again once its account is closed
    )
    user.set_unusable_password()
    user.save(force_insert=True)
    account = ServiceAccount.objects.create(user=user, team=team, name=name, created_by=actor)
    event_record(
        company_id=team.company_id,
        actor=actor,
        action="service_account.create",
        subject=account,
        new={"name": name, "user": user.username, "role": role},
    )
    membership_add(actor=actor, team=team, user=user, role=role)
    return account


@transaction.atomic
def service_account_close(*, actor: User, account: ServiceAccount, reason: str = "") -> ServiceAccount:
    """Ends an account for good: its tokens are refused at once, its roles are gone."""
    role_require(actor, account.team, Role.MANAGER, ADMIN)
    reason = text_check(reason, field="reason", longest=500, is_optional=True)
    account.disabled_at = now = clock.now()
    if not ServiceAccount.objects.filter(pk=account.pk, disabled_at__isnull=True).update(disabled_at=now):
        raise Invalid("account_closed", _("This service account is closed already."))
    User.objects.filter(pk=account.user_id).update(is_active=False)
    ended = ApiToken.objects.filter(user_id=account.user_id, revoked_at__isnull=True).update(revoked_at=now)
    roles = list(account.user.memberships.values_list("role", flat=True))
    account.user.memberships.all().delete()
    event_record(
        company_id=account.team.company_id,
        actor=actor,
        action="service_account.close",
        subject=account,
        old={"roles": roles, "tokens": ended},
        reason=reason,
    )
    return account


def service_account_list(actor: User) -> QuerySet[ServiceAccount]:
    """The open accounts of teams that the actor manages or audits."""
    rows = ServiceAccount.objects.filter(visible_q(actor, roles=READERS), disabled_at__isnull=True)
    return rows.select_related("user", "team").order_by("team__path", "name", "pk")


def service_account_get(actor: User, public_id: str) -> ServiceAccount:
    """An account of a team that the actor may see, with the right to read about it (`Forbidden` without)."""
    rows = ServiceAccount.objects.filter(visible_q(actor)).select_related("user", "team")
    account = rows.filter(user__public_id=text_for_lookup(public_id)).first()
    if account is None:
        raise NotFound("account_unknown", _("There is no such service account, or you may not see it."))
    role_require(actor, account.team, *READERS)
    return account


def service_token_list(actor: User, account: ServiceAccount) -> QuerySet[ApiToken]:
    """The tokens of an account, newest first."""
    role_require(actor, account.team, *READERS)
    return ApiToken.objects.filter(user_id=account.user_id)
