"""What a change of the scheduling policy would do right now: the next pass, planned with the old rules and the new.

Nothing is stored and nothing starts: the engine is asked twice about the same snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from gpuyard.core.models import User
from gpuyard.core.policy import PolicyChange
from scheduling.decay import usage_rows
from scheduling.engine.decisions import Plan, Verdict
from scheduling.engine.plan import plan
from scheduling.engine.snapshot import Snapshot
from scheduling.loader import snapshot_load
from scheduling.models import Workload
from scheduling.moments import from_us
from scheduling.policies import (
    policy_admin_require,
    policy_changes,
    policy_draft,
    policy_state,
)
from scheduling.policy_document import policy_from

MOST_ROWS = 200
What = Literal["starts", "starts_not", "stops", "stops_not", "waits"]


@dataclass(frozen=True)
class Wait:
    """Why a workload would wait, as codes, and when it may start."""

    blockers: tuple[str, ...]
    eta: datetime | None


@dataclass(frozen=True)
class PreviewRow:
    """One workload that fares otherwise. `before` and `after` are set where it waits."""

    what: What
    public_id: str
    name: str
    team: str
    before: Wait | None = None
    after: Wait | None = None


@dataclass(frozen=True)
class PolicyPreview:
    """`starts` and the like count with the rules in force and with the draft; `rows` are the first that differ."""

    as_of: datetime
    based_on: int
    changes: tuple[PolicyChange, ...]
    starts: tuple[int, int]
    stops: tuple[int, int]
    waits: tuple[int, int]
    rows: tuple[PreviewRow, ...]
    differing: int

    @property
    def left_out(self) -> int:
        return self.differing - len(self.rows)


def policy_preview(*, actor: User, changes: Any) -> PolicyPreview:
    """Plans the present snapshot with the policy in force and with the changed one. For platform admins."""
    policy_admin_require(actor)
    base = policy_state(actor)
    document = policy_draft(changes, base)
    draft = policy_from(document)
    loaded = snapshot_load()
    other = loaded.snapshot
    if draft.usage_half_life_s != loaded.policy.usage_half_life_s:
        other = replace(other, usage=usage_rows(draft.usage_half_life_s, loaded.now))
    old = plan(loaded.snapshot, loaded.policy, loaded.now_us)
    new = plan(other, draft, loaded.now_us)
    found = list(_differences(old, new))
    return PolicyPreview(
        as_of=loaded.now,
        based_on=base.number,
        changes=policy_changes(base.document, document),
        starts=(len(_starts(old)), len(_starts(new))),
        stops=(len(old.stops), len(new.stops)),
        waits=(len(old.verdicts), len(new.verdicts)),
        rows=tuple(_rows(found[:MOST_ROWS], loaded.snapshot)),
        differing=len(found),
    )


_Difference = tuple[What, str, Verdict | None, Verdict | None]


def _starts(decided: Plan) -> set[str]:
    """Claims too: they start as soon as others have left."""
    return {one.workload_id for one in decided.starts} | {one.workload_id for one in decided.claims}


def _stops(decided: Plan) -> set[str]:
    return {one.workload_id for one in decided.stops}


def _differences(old: Plan, new: Plan) -> Iterable[_Difference]:
    starts = (_starts(old), _starts(new))
    stopped, stopped_then = _stops(old), _stops(new)
    before = {one.workload_id: one for one in old.verdicts}
    after = {one.workload_id: one for one in new.verdicts}
    for key in sorted(starts[1] - starts[0]):
        yield "starts", key, before.get(key), None
    for key in sorted(starts[0] - starts[1]):
        yield "starts_not", key, None, after.get(key)
    for key in sorted(stopped_then - stopped):
        yield "stops", key, None, None
    for key in sorted(stopped - stopped_then):
        yield "stops_not", key, None, None
    for key, verdict in after.items():
        if key in before and _told(before[key]) != _told(verdict):
            yield "waits", key, before[key], verdict


def _told(verdict: Verdict) -> tuple[frozenset[str], int | None]:
    """What people would see differ: the causes, and the estimate to the minute."""
    minute = None if verdict.eta_us is None else verdict.eta_us // 60_000_000
    return frozenset(blocker.code for blocker in verdict.blockers), minute


def _rows(found: Iterable[_Difference], snapshot: Snapshot) -> Iterable[PreviewRow]:
    rows = list(found)
    teams = {team.id: team.name for team in snapshot.teams}
    keys = [UUID(key) for _what, key, _before, _after in rows]
    known: Mapping[UUID, Workload] = Workload.objects.in_bulk(keys)
    for what, key, before, after in rows:
        workload = known[UUID(key)]
        team = teams.get(str(workload.team_id), "")
        yield PreviewRow(what, workload.public_id, workload.name, team, _wait(before), _wait(after))


def _wait(verdict: Verdict | None) -> Wait | None:
    if verdict is None:
        return None
    codes = tuple(dict.fromkeys(blocker.code for blocker in verdict.blockers))
    return Wait(codes, None if verdict.eta_us is None else from_us(verdict.eta_us))
