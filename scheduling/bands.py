"""Bands: the right of a team to have critical work go before all fair share, up to a cap, given by an admin.

A grant covers its band and the lower ones, for its team and all below it. Work that is beyond the cap, or whose grant
has ended, is not refused any more: it stands in line like all other work.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import F, Q, QuerySet, Sum
from django.utils.translation import gettext as _

from gpuyard.audit.services import event_record
from gpuyard.core import clock
from gpuyard.core.errors import Conflict, Forbidden, Invalid, NotFound
from gpuyard.core.models import User
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.core.text import text_check
from scheduling.models import Allocation
from scheduling.policy_models import HIGHEST_BAND, BandGrant
from scheduling.states import ALLOCATION_LIVE
from scheduling.wake import wake
from tenants.models import Team
from tenants.selectors import visible_q

MOST_CAP = 10_000_000 * UNITS_PER_GPU


# --- Reading -----------------------------------------------------------------------------------------------


def band_grants_live() -> QuerySet[BandGrant]:
    """The grants that count at this moment."""
    in_time = Q(expires_at__isnull=True) | Q(expires_at__gt=clock.YardNow())
    return BandGrant.objects.filter(in_time, revoked_at__isnull=True)


def band_grant_list(actor: User) -> QuerySet[BandGrant]:
    """The live grants of the actor's teams and of those above them; an admin sees all."""
    grants = band_grants_live().select_related("team", "granted_by").order_by("team__path", "-band")
    if actor.is_platform_admin:
        return grants
    paths = Team.objects.filter(visible_q(actor, "")).values_list("path", flat=True)
    return grants.filter(team__in={step for path in paths for step in path})


def band_grants_of(team: Team) -> QuerySet[BandGrant]:
    """The live grants that cover the team: its own and those of the teams above it."""
    return band_grants_live().filter(team__in=team.path).select_related("team", "granted_by")


def bands_used(grants: Iterable[BandGrant]) -> dict[UUID, int]:
    """Grant → the units that live work holds of it: what was started at its band or a lower one."""
    rows = list(grants)
    live = Allocation.objects.filter(
        state__in=ALLOCATION_LIVE, attempt__band__gt=0, team__path__overlap=[grant.team_id for grant in rows]
    )
    held = list(live.values_list("team__path", "attempt__band").annotate(sum=Sum("units")))
    return {
        grant.pk: sum(units for path, band, units in held if band <= grant.band and grant.team_id in path)
        for grant in rows
    }


def band_highest(team: Team) -> int:
    """The highest band that a grant gives the team; 0 without any."""
    return max(band_grants_of(team).values_list("band", flat=True), default=0)


def any_band(teams: Iterable[Team]) -> bool:
    """Whether any of the teams has a right to any band."""
    return band_grants_live().filter(team__in={step for team in teams for step in team.path}).exists()


def band_check(team: Team, band: Any) -> int:
    """The band that somebody asks for, or `Invalid` if no grant covers it."""
    if isinstance(band, bool) or not isinstance(band, int) or not 0 <= band <= HIGHEST_BAND:
        raise Invalid(
            "out_of_range",
            _("This is no band."),
            field="band",
            remedy=_("Give a whole number from 0 to %(most)s; 0 is usual.") % {"most": HIGHEST_BAND},
        )
    if band and band > (highest := band_highest(team)):
        raise Invalid(
            "band_not_granted",
            _("%(team)s has no right to band %(band)s.") % {"team": team.name, "band": band},
            field="band",
            remedy=_("Give at most %(most)s, or ask a platform admin for the right.") % {"most": highest},
        )
    return band


# --- Changing ----------------------------------------------------------------------------------------------


@transaction.atomic
def band_grant(
    *, actor: User, team: Team, band: int, cap: int, reason: str, expires_at: datetime | None = None
) -> BandGrant:
    """Lets a team have critical work of this band or a lower one, `cap` units in all. By a platform admin."""
    _admin_require(actor)
    _range_check("band", band, HIGHEST_BAND)
    _range_check("cap", cap, MOST_CAP)
    why = text_check(reason, field="reason", longest=400)
    now = clock.now()
    if expires_at is not None and expires_at <= now:
        raise Invalid(
            "expired",
            _("This moment has passed."),
            field="expires_at",
            remedy=_("Give a later one, or none."),
        )
    # one that ran out by itself is over: it must not stand in the way of a new one
    same = BandGrant.objects.filter(team=team, band=band, revoked_at__isnull=True)
    same.filter(expires_at__lte=now).update(revoked_at=F("expires_at"))
    try:
        with transaction.atomic():
            grant = BandGrant.objects.create(
                team=team, band=band, cap=cap, reason=why, granted_by=actor, expires_at=expires_at
            )
    except IntegrityError as exc:
        raise Conflict(
            "band_granted_already",
            _("%(team)s has this right already.") % {"team": team.name},
            field="band",
            remedy=_("Take the old one back first, or choose another band."),
        ) from exc
    grant.refresh_from_db()
    _record(actor, grant, "band.grant", why)
    return grant


@transaction.atomic
def band_revoke(*, actor: User, grant_id: UUID, reason: str) -> BandGrant:
    """Takes a right back. What runs goes on; what waits stands in line like all other work."""
    _admin_require(actor)
    why = text_check(reason, field="reason", longest=400)
    grant = BandGrant.objects.select_related("team", "granted_by").filter(pk=grant_id).first()
    if grant is None:
        raise NotFound("band_grant_unknown", _("There is no such right."))
    now = clock.now()
    if not BandGrant.objects.filter(pk=grant_id, revoked_at__isnull=True).update(revoked_at=now):
        raise Conflict("band_revoked_already", _("This right has been taken back already."))
    grant.revoked_at = now
    _record(actor, grant, "band.revoke", why)
    return grant


def _record(actor: User, grant: BandGrant, action: str, reason: str) -> None:
    event_record(
        company_id=grant.team.company_id,
        actor=actor,
        action=action,
        subject=grant.team,
        new={
            "band": grant.band,
            "cap": grant.cap,
            "expires_at": grant.expires_at.isoformat() if grant.expires_at else None,
        },
        reason=reason,
    )
    wake()


def _admin_require(actor: User) -> None:
    if not actor.is_platform_admin:
        raise Forbidden(
            "admin_only", _("Only a platform admin gives rights to bands."), remedy=_("Ask one of them.")
        )


def _range_check(field: str, value: Any, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise Invalid(
            "out_of_range",
            _("This number is out of range."),
            field=field,
            remedy=_("Give a whole number from 1 to %(most)s.") % {"most": most},
        )
