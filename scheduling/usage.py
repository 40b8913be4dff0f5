"""What teams use of each tier, from live allocations, and what that leaves of their quotas.

The quota tree is the engine's own: a page and the pass give the same answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Sum
from django.utils.translation import gettext as _

from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.fleet.models import Tier
from scheduling.engine import snapshot as engine
from scheduling.engine.fairshare import QuotaTree
from scheduling.models import Allocation
from scheduling.sizes import Size
from scheduling.states import ALLOCATION_LIVE
from tenants.models import Quota, Team

Use = dict[tuple[UUID, UUID], int]


def quota_use(team_ids: Iterable[UUID]) -> Use:
    """(team, tier) → units in use by the team and all below it, claims and the unconfirmed included."""
    wanted = set(team_ids)
    if not wanted:
        return {}
    live = Allocation.objects.filter(state__in=ALLOCATION_LIVE, team__path__overlap=list(wanted))
    totals: Use = defaultdict(int)
    for path, tier_id, units in live.values_list("team__path", "tier_id").annotate(sum=Sum("units")):
        for team_id in wanted.intersection(path):
            totals[team_id, tier_id] += units
    return dict(totals)


def quota_tree(company_id: UUID) -> QuotaTree:
    """The quotas of one company and their present use, in three queries."""
    teams = Team.objects.filter(company_id=company_id).values_list("id", "parent_id", "name", "path")
    quotas = Quota.objects.in_force().filter(team__company_id=company_id)
    live = Allocation.objects.filter(state__in=ALLOCATION_LIVE, company_id=company_id)
    used = live.values_list("team_id", "tier_id").annotate(sum=Sum("units"))
    return QuotaTree(
        engine.Snapshot(
            teams=tuple(
                engine.Team(str(key), str(parent) if parent else None, name, tuple(map(str, path)))
                for key, parent, name, path in teams
            ),
            quotas=tuple(
                engine.Quota(
                    str(row.team_id),
                    str(row.tier_id) if row.tier_id else None,
                    row.promised,
                    row.cap,
                    row.lend_limit,
                    row.weight,
                )
                for row in quotas
            ),
            live=tuple(_live(team_id, tier_id, units) for team_id, tier_id, units in used),
        )
    )


def _live(team_id: UUID, tier_id: UUID, units: int) -> engine.Live:
    return engine.Live("", str(team_id), str(tier_id), units, "held", "", False, 0, None)


@dataclass(frozen=True)
class QuotaCheck:
    """One tier of a request against the quotas that act on its team. All numbers are units of 1/7000 GPU.

    `asked` is what it may grow to, `least` what it needs to start. `used` and `guaranteed` are those of the nearest
    team with a quota for the tier; `room` is what the tightest limit on the way up leaves (None: no limit), and where
    that is too little, `limit` is the limit of `limit_team_id`.
    """

    tier: Tier
    asked: int
    least: int
    used: int
    guaranteed: int
    room: int | None
    limit: int | None
    limit_team_id: UUID | None

    @property
    def is_within_guarantee(self) -> bool:
        return self.used + self.asked <= self.guaranteed

    @property
    def is_within_limit(self) -> bool:
        return self.room is None or self.least <= self.room

    def text(self) -> str:
        """In GPUs, for people."""
        used, after, guaranteed = (_gpus(n) for n in (self.used, self.used + self.asked, self.guaranteed))
        text = _("%(used)s of %(guaranteed)s in use, %(after)s with this") % {
            "used": used,
            "guaranteed": guaranteed,
            "after": after,
        }
        if self.is_within_limit:
            return text
        return _("%(text)s; the limit leaves %(room)s") % {
            "text": text,
            "room": _gpus(max(0, self.room or 0)),
        }


def _gpus(units: int) -> str:
    return f"{units / UNITS_PER_GPU:.2f}".rstrip("0").rstrip(".")


def quota_checks(team: Team, size: Sequence[Size]) -> tuple[QuotaCheck, ...]:
    """A request's sizes against the quotas, tier by tier in its order of preference, in three queries."""
    tree, team_key = quota_tree(team.company_id), str(team.pk)
    checks = []
    for one in size:
        tier_key = str(one.tier.pk)
        hits = tree.limit_hits(team_key, tier_key, one.least)
        checks.append(
            QuotaCheck(
                tier=one.tier,
                asked=one.at_once,
                least=one.least,
                used=tree.share_used(team_key, tier_key),
                guaranteed=tree.share(team_key, tier_key),
                room=tree.limit_room(team_key, tier_key),
                limit=hits[0].limit if hits else None,
                limit_team_id=UUID(hits[0].team_id) if hits else None,
            )
        )
    return tuple(checks)
