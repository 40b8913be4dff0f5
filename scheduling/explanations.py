"""Why a workload waits, and why it runs where it runs: stored decisions in words, for one reader.

The engine's data names teams by id. Teams that the reader may not see are "another team"; but those above the
workload's own team are named, because their limits bind it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _

from gpuyard.core.models import User
from gpuyard.fleet.models import Node, Tier
from scheduling.engine import explain
from scheduling.engine.decisions import (
    BLOCKER_CODES,
    DEPENDENCY,
    QUOTA_LIMIT,
    QUOTA_LIMIT_TOTAL,
    Blocker,
    ReplicaPlacement,
    Start,
    Stop,
)
from scheduling.engine.reasons import stop_reason
from scheduling.models import Attempt, Eviction, Verdict, Workload
from tenants.models import Team
from tenants.selectors import visible_q

_NAMED = ("team_id", "workload_id", "name")
CHANGED_MEANWHILE = "changed_meanwhile"
_QUOTAS = frozenset({QUOTA_LIMIT, QUOTA_LIMIT_TOTAL})
_WHOSE = frozenset({"team_id", "own"})


@dataclass(frozen=True)
class Reason:
    """One blocker: its stable code, its sentence, and its numbers as far as the reader may see them."""

    code: str
    text: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Explanation:
    """Why it waits: all reasons must clear. `headline` is the first one and how many more there are."""

    headline: str
    reasons: tuple[Reason, ...]
    change: str
    change_data: Mapping[str, Any] | None
    eta: datetime | None
    eta_basis: str
    position: int
    pass_number: int
    as_of: datetime


def verdict_explain(actor: User, workload: Workload) -> Explanation | None:
    """The verdict of the last pass for this reader; None: no pass has judged it yet. At most four queries."""
    verdict = Verdict.objects.filter(workload=workload.pk).first()
    return verdicts_explain(actor, [(workload, verdict)])[workload.pk] if verdict else None


def verdicts_explain(actor: User, rows: Iterable[tuple[Workload, Verdict]]) -> dict[UUID, Explanation]:
    """The same for a whole list, in three queries; one more where others must succeed first."""
    pairs = list(rows)
    awaited = {
        key
        for _workload, verdict in pairs
        for blocker in verdict.blockers
        if blocker["code"] == DEPENDENCY
        for key in blocker["data"]["workload_ids"]
    }
    names = _Names(actor, [workload for workload, _verdict in pairs], awaited)
    return {workload.pk: _explanation(verdict, names) for workload, verdict in pairs}


def _explanation(verdict: Verdict, names: _Names) -> Explanation:
    reasons = tuple(_reason(code, data, names) for code, data in _together(verdict.blockers))
    more = len(reasons) - 1
    first = reasons[0].text if reasons else _("it is about to be looked at again")
    return Explanation(
        headline=_("Waiting: %(reason)s (and %(more)s more)") % {"reason": first, "more": more}
        if more > 0
        else _("Waiting: %(reason)s") % {"reason": first},
        reasons=reasons,
        change=explain.change_sentence(verdict.smallest_change, names.known) if reasons else "",
        change_data=verdict.smallest_change,
        eta=verdict.eta,
        eta_basis=verdict.eta_basis,
        position=verdict.position,
        pass_number=verdict.pass_number,
        as_of=verdict.decided_at,
    )


def _together(blockers: Iterable[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Limits of a team and of those above it that differ in nothing but the team are one reason."""
    found: list[tuple[str, dict[str, Any]]] = []
    for blocker in blockers:
        code, data = blocker["code"], dict(blocker["data"])
        same = next((had for had in found if code in _QUOTAS and _is_same(had, code, data)), None)
        if same is None:
            found.append((code, data))
        else:
            same[1].setdefault("also_team_ids", []).append(data["team_id"])
    return [*found]


def _is_same(had: tuple[str, dict[str, Any]], code: str, data: Mapping[str, Any]) -> bool:
    return had[0] == code and all(
        had[1].get(key) == value for key, value in data.items() if key not in _WHOSE
    )


def _reason(code: str, data: Mapping[str, Any], names: _Names) -> Reason:
    if code not in BLOCKER_CODES:
        return Reason(code, _("something changed while it was about to start; the next pass tries again"), {})
    shown = dict(data)
    if "holders" in data:
        shown["holders"] = [names.shown(held) for held in data["holders"]]
    if code == DEPENDENCY:
        shown["workload_ids"] = [names.workload(key) for key in data["workload_ids"]]
    return Reason(code, explain.sentence(Blocker(code, shown), names.known), shown)


class _Names:
    """What this reader may read instead of ids."""

    def __init__(self, actor: User, workloads: list[Workload], awaited: Collection[str] = ()) -> None:
        above = {team_id for workload in workloads for team_id in workload.team.path}
        companies = {workload.company_id for workload in workloads}
        visible = Team.objects.filter(visible_q(actor, ""), company__in=companies)
        teams = dict(visible.values_list("pk", "name"))
        teams |= dict(Team.objects.filter(pk__in=above - teams.keys()).values_list("pk", "name"))
        tiers = dict(Tier.objects.values_list("pk", "name"))
        self._teams = {str(key) for key in teams}
        self.known = {str(key): name for key, name in (teams | tiers).items()}
        seen = Workload.objects.filter(visible_q(actor, "team"), pk__in=awaited) if awaited else ()
        self._workloads = {str(workload.pk): workload.public_id for workload in seen}

    def workload(self, key: str) -> str:
        """By its public id, if the reader may see it."""
        return self._workloads.get(key, _("other work"))

    def shown(self, holder: Mapping[str, Any]) -> Mapping[str, Any]:
        """A holder without its team, and without what of it is named, if that is none of the reader's."""
        if holder["team_id"] in self._teams:
            return holder
        return {key: None if key in _NAMED else value for key, value in holder.items()}


def attempt_reasons(attempt: Attempt) -> str:
    """Why it started then and there. The caller has the attempt from a selector that checked the reader."""
    return attempts_reasons([attempt])[attempt.pk]


def attempts_reasons(attempts: Iterable[Attempt]) -> dict[UUID, str]:
    """The same for many, in two queries. An attempt that the pass did not explain has none: ""."""
    rows = list(attempts)
    teams = Team.objects.filter(pk__in={row.workload.team_id for row in rows}).values_list("pk", "name")
    nodes = Node.objects.filter(replicas__attempt__in=rows).distinct().values_list("pk", "name")
    tiers = [(row.tier_id, row.tier.name) for row in rows]
    names = {str(key): name for key, name in (*teams, *nodes, *tiers)}
    return {row.pk: _start_reason(row, names) for row in rows}


def _start_reason(attempt: Attempt, names: Mapping[str, str]) -> str:
    if not attempt.why_now or not attempt.why_here:
        return ""
    workload = attempt.workload
    assert workload.spec is not None
    gpus = int(workload.spec.document["request"]["gpus_per_replica"])
    placed = ReplicaPlacement(0, "", 0, tuple(str(number) for number in range(gpus)))
    start = Start(
        str(workload.pk),
        str(attempt.tier_id),
        attempt.borrowed,
        (placed,),
        attempt.why_now,
        attempt.why_here,
    )
    return explain.start_reason(start, names)


def evictions_texts(actor: User, evictions: Iterable[Eviction]) -> dict[UUID, str]:
    """Who gained, what was lost, why this one; one query.

    A team of one's own company is named, for one is to know for whom one's work was taken back; its workload
    only where the reader may see it. Of another company it is just another team.
    """
    rows = list(evictions)
    gainers = {row.gained_by.team_id for row in rows if row.gained_by}
    seen = set(Team.objects.filter(visible_q(actor, ""), pk__in=gainers).values_list("pk", flat=True))
    return {row.pk: _eviction_text(row, seen) for row in rows}


def _eviction_text(eviction: Eviction, seen: set[UUID]) -> str:
    gainer, why = eviction.gained_by, dict(eviction.why)
    names: dict[str, str] = {}
    if gainer and (gainer.company_id == eviction.company_id or gainer.team_id in seen):
        names[str(gainer.team_id)] = gainer.team.name
        why["gained_by_team"] = str(gainer.team_id)
    else:
        why["gained_by_team"] = None
    if gainer and gainer.team_id in seen:
        names[str(gainer.pk)] = gainer.name
    else:
        why["gained_by_workload"] = None
    replicas = None if eviction.replicas is None else tuple(eviction.replicas)
    return stop_reason(Stop("", eviction.reason, None, replicas, why), names)
