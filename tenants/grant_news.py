"""Grants that end soon: who uses them hears of it while there is time to renew. Once for each moment."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from uuid import UUID

from django.db.models import Exists, OuterRef
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from gpuyard.core import clock
from gpuyard.notify.events import APP, EMAIL, HOOK, EventType
from gpuyard.notify.reminders import Due, remind_once
from gpuyard.notify.services import Notice, about_settle
from tenants.asked import gpus_text, local_text
from tenants.models import AskState, Grant, Membership, Role

ENDING = EventType(
    "grant.ending", gettext_lazy("A grant of your team ends soon"), frozenset({APP, EMAIL, HOOK})
)
# the last one first: of several that are due, the nearest to the end is told
_BEFORE = (("day", timedelta(days=1)), ("week", timedelta(days=7)))


def grants_remind() -> int:
    """Tells of grants that end within a week, and again within a day; returns how many reminders were new.

    Only of those that count and that nobody is renewing. After a time without workers the latest is told, once.
    """
    now = clock.now()
    renewal = Grant.objects.filter(renews=OuterRef("pk"), state__in=(AskState.ASKED, AskState.APPROVED))
    ending = Grant.objects.filter(
        ~Exists(renewal), state=AskState.APPROVED, ends_at__gt=now, ends_at__lte=now + _BEFORE[-1][1]
    )
    found = list(ending.select_related("team__company", "tier").order_by("ends_at", "id"))
    return remind_once(due for grant in found for due in _due(grant))


def _due(grant: Grant) -> Iterator[Due]:
    now = clock.now()
    for word, before in _BEFORE:
        moment = grant.ends_at - before
        # a short grant begins with less than that left: its end is no news
        if grant.starts_at <= moment <= now:
            yield Due(f"grant:{grant.pk}:{word}", moment, partial(_notice, grant, word))
            return


def _notice(grant: Grant, word: str) -> Notice:
    assert grant.tier is not None
    subject = _("%(gpus)s GPUs of %(tier)s are %(team)s's until %(end)s")
    values = {
        "gpus": gpus_text(grant.units),
        "tier": grant.tier.name,
        "team": grant.team.name,
        "end": local_text(grant, grant.ends_at),
    }
    return Notice(
        recipients=_people(grant),
        event=ENDING.key,
        subject=subject % values,
        dedupe_key=f"grant:{grant.pk}:{word}:{grant.ends_at.isoformat()}",
        facts=((_("Then"), _("what runs goes on, as borrowed; renew the grant to keep it.")),),
        url=f"/queue?team={grant.team.public_id}",
        about=about_of(grant),
        company_id=grant.company_id,
        team_path=tuple(grant.team.path),
    )


def _people(grant: Grant) -> tuple[UUID, ...]:
    """Who asked, if still of the team, and the team's own managers."""
    there = Membership.objects.filter(team_id__in=grant.team.path, user__is_active=True)
    asker = there.filter(user_id=grant.requester_id)
    managers = there.filter(team=grant.team, role=Role.MANAGER)
    return tuple(sorted({row.user_id for row in asker | managers}))


def about_of(grant: Grant) -> str:
    """What news about it are about."""
    return f"grant:{grant.pk}:ending"


def grant_settle(grant: Grant) -> None:
    """It was renewed or revoked: there is nothing to do about its end."""
    about_settle(about_of(grant))
