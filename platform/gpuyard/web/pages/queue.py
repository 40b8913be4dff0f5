"""Who waits, in the order of the next pass, and what teams use of what they were promised."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.fleet.models import Tier
from gpuyard.web import wording
from gpuyard.web.contexts import Choice, QuotaLine
from gpuyard.web.pages import clearing, passes, rows
from gpuyard.web.pages.why import blocker_label, hopeless_first, is_never
from gpuyard.web.scheduler_contexts import QueueLine, QueuePage, QueueRow
from scheduling.explanations import Explanation, verdicts_explain
from scheduling.models import Verdict, Workload
from scheduling.selectors import (
    LineCount,
    fair_shares,
    last_pass,
    queue_counts,
    queue_demand,
    queue_list,
    quota_use,
)
from tenants.models import Quota, Team
from tenants.selectors import teams_visible

MOST_ROWS, MOST_LANES, PASS_ROWS = 200, 30, 8
RESERVED = frozenset({"promise", "reservation"})
LEAST_MOVE_S = 60  # an estimate that moved by less has not changed for anybody
CSV_HEADER = (
    "place", "id", "name", "team", "kind", "gpus", "tier", "priority", "waited_s", "reason", "more_reasons",
    "starts_at", "starts_basis", "changed",
)  # fmt: skip


def build(actor: User, team: Team | None, tier: str = "") -> QueuePage:
    as_of = clock.now()
    counts = queue_counts(actor)
    demand = queue_demand()
    picked = tier if tier in demand else ""
    found = _waiting(actor, team, picked)
    total, waiting = found.count(), list(found[:MOST_ROWS])
    verdicts = _verdicts(actor, waiting)
    never = sum(is_never(known) for known in verdicts.values())
    return QueuePage(
        as_of=as_of,
        summary=_summary(total, never),
        lines=_lines(waiting, verdicts, counts, as_of, picked),
        more=total - len(waiting),
        tier_choices=_choices(counts, demand, picked),
        lanes=quota_lines(actor, team, tier=picked),
        clearing=clearing.build(actor, waiting, as_of),
        last_pass_at=last_pass()[1],
        passes=passes.latest(actor, PASS_ROWS) if actor.is_platform_admin else None,
    )


def csv_rows(actor: User, team: Team | None, tier: str = "") -> Iterator[tuple[object, ...]]:
    """Exactly the rows of the page, in its order."""
    for line in build(actor, team, tier).lines:
        for row in line.rows:
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
                row.more_reasons,
                row.eta.isoformat(timespec="seconds") if row.eta else None,
                row.basis,
                row.changed.replace(wording.NARROW, " "),
            )


def _waiting(actor: User, team: Team | None, tier: str) -> QuerySet[Workload]:
    found = queue_list(actor, tier)
    return found if team is None else found.filter(team__path__contains=[team.pk])


def _verdicts(actor: User, waiting: list[Workload]) -> dict[UUID, Explanation]:
    pairs = [(one, one.verdict) for one in waiting if hasattr(one, "verdict")]
    return verdicts_explain(actor, pairs) if pairs else {}


def _lines(
    waiting: list[Workload],
    verdicts: Mapping[UUID, Explanation],
    counts: list[LineCount],
    as_of: datetime,
    picked: str,
) -> list[QueueLine]:
    """One for each tier that somebody waits for, the dearest first, those of nobody of the reader's at the end."""
    by_tier: dict[str, list[QueueRow]] = {}
    tiers = rows.tiers_by_name()
    for one in waiting:
        by_tier.setdefault(_first_tier(one), []).append(_row(one, verdicts.get(one.pk), as_of, tiers))
    ranks = {name: tier.cost_rank for name, tier in tiers.items()}
    shown = [count for count in counts if count.tier == picked or not picked or count.tier in by_tier]
    shown.sort(key=lambda count: (not by_tier.get(count.tier), -ranks.get(count.tier, 0), count.tier))
    return [
        QueueLine(tier=count.tier, note=_line_note(count), rows=by_tier.get(count.tier, ()))
        for count in shown
    ]


def _first_tier(workload: Workload) -> str:
    """Empty where it asks for what a GPU can do instead of naming one."""
    assert workload.spec is not None
    return next(iter(workload.spec.document["request"].get("tiers") or ()), "")


def _line_note(count: LineCount) -> str:
    text = ngettext("%(n)s waits", "%(n)s wait", count.waiting) % {"n": wording.number(count.waiting)}
    if not count.others:
        return text
    if count.others == count.waiting:
        return _("%s, of other teams") % text
    return _("%(text)s, %(n)s of them of other teams") % {"text": text, "n": wording.number(count.others)}


def _choices(counts: list[LineCount], demand: Mapping[str, int], picked: str) -> list[Choice]:
    """A request that would take several tiers counts for each of them."""
    every = Choice(
        value="", label=_("All tiers"), count=sum(count.waiting for count in counts), selected=not picked
    )
    return [
        every,
        *(
            Choice(value=name, label=name, count=count, selected=name == picked)
            for name, count in sorted(demand.items())
        ),
    ]


def _row(
    workload: Workload, known: Explanation | None, as_of: datetime, tiers: Mapping[str, Tier]
) -> QueueRow:
    reasons = hopeless_first(known) if known else []
    first = reasons[0].text if reasons else _("the next pass looks at it within seconds")
    verdict = getattr(workload, "verdict", None)
    changed = _changed(verdict) if verdict else ""
    return QueueRow(
        position=known.position if known else 0,
        id=workload.public_id,
        name=workload.name,
        team=workload.team.name,
        kind=workload.kind,
        gpus=rows.gpu_count(workload, None, tiers),
        tier=rows.tiers_of(workload),
        asks=rows.asks_of(workload),
        priority=workload.priority,
        waited_s=max(0.0, (as_of - (workload.queued_at or workload.created_at)).total_seconds()),
        reason=wording.sentence(first),
        is_never=known is not None and is_never(known),
        is_reserved=known is not None and known.eta_basis in RESERVED,
        eta=known.eta if known else None,
        basis=_basis(known.eta_basis) if known else "",
        more_reasons=max(0, len(reasons) - 1),
        changed=changed,
        changed_at=verdict.decided_at if verdict and changed else None,
    )


def _basis(code: str) -> str:
    return {
        "promise": _("promised"),
        "reservation": _("reserved"),
        "time_limits": _("by time limits"),
        "class_defaults": _("by usual run times"),
    }.get(code, "")


def _changed(verdict: Verdict) -> str:
    """What the last change of the verdict was, against the one before it."""
    before: Mapping[str, Any] = verdict.before or {}
    if not before:
        return ""
    codes = [blocker["code"] for blocker in verdict.blockers]
    gone = [blocker_label(code) for code in dict.fromkeys(before["codes"]) if code not in codes]
    new = [blocker_label(code) for code in dict.fromkeys(codes) if code not in before["codes"]]
    parts = [_moved(before["position"], verdict.position), _eta_moved(before["eta"], verdict.eta)]
    parts += [_("no longer: %s") % ", ".join(gone)] if gone else []
    parts += [_("new: %s") % ", ".join(new)] if new else []
    return ", ".join(part for part in parts if part)


def _moved(before: int, position: int) -> str:
    return _("was place %s") % before if before and position and before != position else ""


def _eta_moved(before: str | None, eta: datetime | None) -> str:
    if before is None or eta is None:
        return ""
    later_s = (eta - datetime.fromisoformat(before)).total_seconds()
    if abs(later_s) < LEAST_MOVE_S:
        return ""
    words = _("%s later than thought") if later_s > 0 else _("%s earlier than thought")
    return words % wording.duration(abs(later_s))


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


# ───────── teams ─────────


def quota_lines(actor: User, team: Team | None, most: int = MOST_LANES, *, tier: str = "") -> list[QuotaLine]:
    """Use against guarantee, limit and fair share, for the picked team and those below it, or all that one sees.

    A team has a line for each tier that it has a quota of, or a share of while somebody waits for it.
    """
    teams = teams_visible(actor)
    if team is not None:
        teams = teams.filter(path__contains=[team.pk])
    named = {one.pk: one for one in teams[:500]}
    tiers = {one.pk: one for one in Tier.objects.all() if one.name == tier or not tier}
    quotas = {
        (row.team_id, row.tier_id): row
        for row in Quota.objects.in_force().filter(team__in=named, tier__in=tiers)
        if row.tier_id is not None
    }
    shares = {key: units for key, units in fair_shares().items() if key[0] in named and key[1] in tiers}
    places = {team_id: number for number, team_id in enumerate(_down_the_tree(named.values()))}
    keys = sorted(
        quotas.keys() | shares.keys(),
        key=lambda key: (places[key[0]], -tiers[key[1]].cost_rank, tiers[key[1]].name),
    )[:most]
    used = quota_use({key[0] for key in keys})
    return [
        _line(named[key[0]].name, tiers[key[1]].name, quotas.get(key), used.get(key, 0), shares.get(key))
        for key in keys
    ]


def _down_the_tree(teams: Iterable[Team]) -> list[UUID]:
    """Each team right before those below it."""
    return [team.pk for team in sorted(teams, key=lambda team: [str(step) for step in team.path])]


def _line(team: str, tier: str, quota: Quota | None, units: int, share: int | None) -> QuotaLine:
    now = units / UNITS_PER_GPU
    guaranteed = quota.promised / UNITS_PER_GPU if quota else 0.0
    fair = None if share is None else share / UNITS_PER_GPU
    return QuotaLine(
        team=team,
        tier=tier,
        used=now,
        guaranteed=guaranteed,
        limit=quota.cap / UNITS_PER_GPU if quota and quota.cap is not None else None,
        note=_quota_note(now, guaranteed) + _share_note(fair),
        share=fair,
    )


def _share_note(share: float | None) -> str:
    if share is None:
        return ""
    return " " + _("Fair share now: %s.") % wording.number(round(share, 2))


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
