"""What teams may use: versions of quotas, and what is left to be shared out. All numbers are units of 1/7000 GPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from gpuyard.audit.services import event_record
from gpuyard.core import clock
from gpuyard.core.errors import Conflict, Invalid, NotFound
from gpuyard.core.models import User
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.core.text import text_check
from gpuyard.fleet.models import Tier
from tenants.constraints import guarantees_fit, unique
from tenants.models import Quota, Role, Team
from tenants.selectors import ADMIN, ANY_ROLE, role_require, visible_q

MOST_UNITS = 10_000_000 * UNITS_PER_GPU
MOST_WEIGHT = 1_000_000


@dataclass(frozen=True)
class Amounts:
    """The four values of a quota. No limit: None; all of an unused guarantee may be lent: no `lend_limit`."""

    guaranteed: int = 0
    limit: int | None = None
    lend_limit: int | None = None
    weight: int = 1


def amounts_of(row: Quota | None) -> Amounts:
    """A version's values; those of a team without a quota."""
    if row is None:
        return Amounts()
    return Amounts(row.guaranteed, row.limit, row.lend_limit, row.weight)


def amounts_check(tier: Tier | None, amounts: Amounts) -> None:
    """Raises `Invalid` with the field that cannot be."""
    for field, value in asdict(amounts).items():
        if value is not None:
            _number_check(field, value, MOST_WEIGHT if field == "weight" else MOST_UNITS)
    if amounts.limit is not None and amounts.limit < amounts.guaranteed:
        message, remedy = _("The limit is below the guarantee."), _("Raise it or lower the guarantee.")
        raise Invalid("limit_below_guarantee", message, field="limit", remedy=remedy)
    if tier is None:
        for field in ("guaranteed", "lend_limit"):
            if getattr(amounts, field):
                message = _("For all tiers together there is a limit only.")
                raise Invalid(
                    "guarantee_without_tier", message, field=field, remedy=_("Choose a tier, or give 0.")
                )


def _number_check(field: str, value: int, most: int) -> None:
    least = 1 if field == "weight" else 0
    if isinstance(value, bool) or not least <= value <= most:
        raise Invalid(
            "out_of_range",
            _("This number is out of range."),
            field=field,
            remedy=_("Give a number from %(least)s to %(most)s.") % {"least": least, "most": most},
        )


# --- Changing --------------------------------------------------------------------------------------------------


@transaction.atomic
def quota_set(
    *,
    actor: User,
    team: Team,
    tier: Tier | None,
    guaranteed: int,
    limit: int | None,
    lend_limit: int | None = None,
    weight: int = 1,
    starts_at: datetime | None = None,
    reason: str = "",
) -> Quota:
    """What a team may use of a tier (None: of all together), from now or from `starts_at` on.

    By a manager of a team above it; a company's own quota is an admin's. Nothing is stopped because of it.
    """
    sharer_require(actor, team)
    amounts = Amounts(guaranteed, limit, lend_limit, weight)
    amounts_check(tier, amounts)
    if starts_at is not None and starts_at <= clock.now():
        raise Invalid(
            "starts_in_past",
            _("This moment has passed."),
            field="starts_at",
            remedy=_("Give a later one, or none for now."),
        )
    reason = text_check(reason, field="reason", longest=2000, is_optional=True)
    return quota_store(team, tier, amounts, actor=actor, starts_at=starts_at, reason=reason)


def quota_store(
    team: Team,
    tier: Tier | None,
    amounts: Amounts,
    *,
    actor: User | None,
    starts_at: datetime | None = None,
    reason: str = "",
) -> Quota:
    """The next version; whoever calls has proved the right to it. Versions that begin later stay."""
    moment = starts_at or clock.now()
    before = quota_at(team, tier, moment)
    with guarantees_fit(), unique("tenants_quota_version", "starts_at", _("Another version begins then.")):
        quota = Quota.objects.create(
            team=team, tier=tier, **asdict(amounts), starts_at=moment, set_by=actor, reason=reason
        )
    label = tier.name if tier else "*"
    later = {"starts_at": moment.isoformat()} if starts_at else {}
    event_record(
        company_id=team.company_id,
        actor=actor,
        action="quota.set",
        subject=team,
        old={"tier": label, **asdict(amounts_of(before))} if before else None,
        new={"tier": label, **asdict(amounts), **later},
        reason=reason,
    )
    return quota


@transaction.atomic
def quota_cancel(*, actor: User, quota_id: UUID) -> None:
    """Takes back a version that has not begun. What began is history."""
    seen = Quota.objects.filter(visible_q(actor), pk=quota_id).select_related("tier", "team__parent")
    if (quota := seen.first()) is None:
        raise NotFound("quota_unknown", _("There is no such version of the quota."))
    team = quota.team
    sharer_require(actor, team)
    with guarantees_fit():
        gone, _rows = Quota.objects.filter(pk=quota_id, starts_at__gt=clock.now()).delete()
    if not gone:
        raise Conflict(
            "quota_begun", _("This version has begun."), remedy=_("Set another one, which begins now.")
        )
    event_record(
        company_id=team.company_id,
        actor=actor,
        action="quota.cancel",
        subject=team,
        old={
            "tier": quota.tier.name if quota.tier else "*",
            "starts_at": quota.starts_at.isoformat(),
            **asdict(amounts_of(quota)),
        },
    )


def sharer_require(actor: User, team: Team) -> None:
    """Raises unless the actor shares out to this team: a manager above it; an admin for a company."""
    if team.parent is None:
        role_require(actor, team, ADMIN)
        return
    try:
        role_require(actor, team.parent, Role.MANAGER, ADMIN)
    except NotFound:
        # A member of this team sees it, so it exists for them.
        role_require(actor, team, ADMIN)


# --- Reading ---------------------------------------------------------------------------------------------------


def quota_at(team: Team, tier: Tier | None, at: datetime | None = None) -> Quota | None:
    """The version of one quota in force now, or then; its `granted` is what grants add."""
    return Quota.objects.in_force(at).filter(team=team, tier=tier).first()


def quota_history(actor: User, team: Team) -> QuerySet[Quota]:
    """All versions of a team's own quotas, those that lie ahead too, the newest first."""
    role_require(actor, team, *ANY_ROLE, ADMIN)
    return Quota.objects.filter(team=team).select_related("tier", "set_by").order_by("-starts_at", "-id")


def promised_at(team: Team, tier: Tier, at: datetime | None = None) -> int:
    """What a team is guaranteed of a tier, grants included; also where grants are all it has."""
    row = quota_at(team, tier, at)
    return row.promised if row else 0


def undistributed(team: Team, tier: Tier, at: datetime | None = None) -> int:
    """What of a team's guarantee is not shared out to the teams right below it."""
    below = Quota.objects.in_force(at).filter(team__parent=team, tier=tier)
    return promised_at(team, tier, at) - sum(row.promised for row in below)
