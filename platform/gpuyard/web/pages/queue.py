"""Who waits, in the order of the next pass, and what teams use of what they were promised."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.web import wording
from gpuyard.web.contexts import QuotaLine
from gpuyard.web.pages import passes, rows
from gpuyard.web.pages.why import hopeless_first, is_never
from gpuyard.web.scheduler_contexts import QueuePage, QueueRow
from scheduling.explanations import Explanation, verdicts_explain
from scheduling.models import Workload
from scheduling.selectors import last_pass_at, queue_list, quota_use
from scheduling.usage import Use
from tenants.models import Quota, Team
from tenants.selectors import teams_visible

MOST_ROWS, MOST_LANES, PASS_ROWS = 200, 30, 8
CSV_HEADER = ("place", "id", "name", "team", "kind", "gpus", "tier", "priority", "waited_s", "reason")


def build(actor: User, team: Team | None) -> QueuePage:
    as_of = clock.now()
    waiting = _waiting(actor, team)
    verdicts = _verdicts(actor, waiting)
    shown = [_row(one, verdicts.get(one.pk), as_of.timestamp()) for one in waiting]
    never = sum(is_never(known) for known in verdicts.values())
    return QueuePage(
        as_of=as_of,
        summary=_summary(len(shown), never),
        rows=shown,
        lanes=quota_lines(actor, team),
        last_pass_at=last_pass_at(),
        passes=passes.latest(actor, PASS_ROWS) if actor.is_platform_admin else None,
    )


def csv_rows(actor: User, team: Team | None) -> Iterator[tuple[object, ...]]:
    waiting = _waiting(actor, team)
    verdicts, now = _verdicts(actor, waiting), clock.now().timestamp()
    for one in waiting:
        row = _row(one, verdicts.get(one.pk), now)
        yield (
            row.position or None,
            row.id,
            row.name,
            row.team,
            row.kind,
            row.gpus,
            row.tier,
            row.priority,
            round(row.waited_s),
            row.reason,
        )


def _waiting(actor: User, team: Team | None) -> list[Workload]:
    found = queue_list(actor)
    if team is not None:
        found = found.filter(team__path__contains=[team.pk])
    return list(found[:MOST_ROWS])


def _verdicts(actor: User, waiting: list[Workload]) -> dict[UUID, Explanation]:
    pairs = [(one, one.verdict) for one in waiting if hasattr(one, "verdict")]
    return verdicts_explain(actor, pairs) if pairs else {}


def _row(workload: Workload, known: Explanation | None, now_s: float) -> QueueRow:
    reasons = hopeless_first(known) if known else []
    first = reasons[0].text if reasons else _("the next pass looks at it within seconds")
    return QueueRow(
        position=known.position if known else 0,
        id=workload.public_id,
        name=workload.name,
        team=workload.team.name,
        kind=workload.kind,
        gpus=rows.gpu_count(workload),
        tier=rows.tiers_of(workload),
        priority=workload.priority,
        waited_s=max(0.0, now_s - (workload.queued_at or workload.created_at).timestamp()),
        reason=wording.sentence(first),
        eta=known.eta if known else None,
        more_reasons=max(0, len(reasons) - 1),
    )


def _summary(waiting: int, never: int) -> str:
    if not waiting:
        return _("Nobody of your teams waits.")
    text = ngettext("%(n)s workload waits", "%(n)s workloads wait", waiting) % {"n": waiting}
    if not never:
        return f"{text}."
    hopeless = ngettext(
        "%(n)s of them can never start as asked", "%(n)s of them can never start as asked", never
    )
    return f"{text}; {hopeless % {'n': never}}."


def quota_lines(actor: User, team: Team | None, most: int = MOST_LANES) -> list[QuotaLine]:
    """Use against guarantee and limit, for the picked team and those below it, or all that the reader sees."""
    teams = teams_visible(actor)
    if team is not None:
        teams = teams.filter(path__contains=[team.pk])
    named = {one.pk: one for one in teams[:500]}
    quotas = list(
        Quota.objects.filter(team__in=named, tier__isnull=False)
        .select_related("tier")
        .order_by("team__path", "-tier__cost_rank", "tier__name")[:most]
    )
    used = quota_use({row.team_id for row in quotas})
    return [_line(named[row.team_id].name, row, used) for row in quotas]


def _line(team: str, quota: Quota, used: Use) -> QuotaLine:
    assert quota.tier is not None
    assert quota.tier_id is not None
    units = used.get((quota.team_id, quota.tier_id), 0)
    now, guaranteed = units / UNITS_PER_GPU, quota.guaranteed / UNITS_PER_GPU
    return QuotaLine(
        team=team,
        tier=quota.tier.name,
        used=now,
        guaranteed=guaranteed,
        limit=None if quota.limit is None else quota.limit / UNITS_PER_GPU,
        note=_quota_note(now, guaranteed),
    )


def _quota_note(used: float, guaranteed: float) -> str:
    if not guaranteed:
        return _("No guarantee: every start is borrowed.")
    if used < guaranteed:
        return _("%(left)s more inside the guarantee of %(all)s.") % {
            "left": wording.number(guaranteed - used),
            "all": wording.number(guaranteed),
        }
    if used == guaranteed:
        return _("Guarantee of %s, all in use; the next start is borrowed.") % wording.number(guaranteed)
    return _("%(over)s borrowed beyond the guarantee of %(all)s.") % {
        "over": wording.number(used - guaranteed),
        "all": wording.number(guaranteed),
    }
