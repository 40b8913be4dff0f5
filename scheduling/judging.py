"""Why each waiting workload waits, stored: only what changed since the last pass is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection

from gpuyard.core.bulk import json_text
from gpuyard.core.money import UNITS_PER_GPU
from scheduling.engine.blockers import leaving_blocker
from scheduling.engine.decisions import Claim, Plan
from scheduling.evicting import Leaving
from scheduling.moments import from_us
from scheduling.placing import Placing

CHANGED_MEANWHILE = "changed_meanwhile"

_VERDICTS = """
INSERT INTO scheduling_verdict (workload_id, pass_number, position, blockers, smallest_change, eta, eta_basis,
  reserved, decided_at)
SELECT waiting.id, %(pass)s, rows.position, rows.blockers, rows.change, rows.eta, rows.basis, rows.reserved, yard_now()
FROM unnest(%(workload)s::uuid[], %(position)s::int[], %(blockers)s::jsonb[], %(change)s::jsonb[],
            %(eta)s::timestamptz[], %(basis)s::text[], %(reserved)s::jsonb[])
  AS rows (id, position, blockers, change, eta, basis, reserved)
JOIN scheduling_workload waiting ON waiting.id = rows.id AND waiting.state = 'waiting'
ON CONFLICT (workload_id) DO UPDATE SET pass_number = excluded.pass_number, position = excluded.position,
  blockers = excluded.blockers, smallest_change = excluded.smallest_change, eta = excluded.eta,
  eta_basis = excluded.eta_basis, reserved = excluded.reserved, decided_at = excluded.decided_at,
  before = jsonb_build_object('position', scheduling_verdict.position, 'eta', scheduling_verdict.eta,
    'codes', jsonb_path_query_array(scheduling_verdict.blockers, '$[*].code'))
WHERE (scheduling_verdict.position, scheduling_verdict.blockers, scheduling_verdict.smallest_change,
       scheduling_verdict.eta, scheduling_verdict.eta_basis, scheduling_verdict.reserved)
  IS DISTINCT FROM (excluded.position, excluded.blockers, excluded.smallest_change, excluded.eta,
                    excluded.eta_basis, excluded.reserved)
"""
# workload, position, blockers and smallest change as JSON, ETA and what it rests on, the reserved nodes as JSON
_Row = tuple[str, int, str, str | None, datetime | None, str, str | None]


def verdicts_store(plan: Plan, pass_number: int, refused: Mapping[UUID, str]) -> int:
    """The plan's verdicts, and one for each start that did not survive the commit; returns how many changed."""
    reserved = {
        one.workload_id: json_text({"tier": one.tier_id, "nodes": one.nodes}) for one in plan.reservations
    }
    rows: list[_Row] = [
        (
            verdict.workload_id,
            verdict.position,
            json_text([{"code": blocker.code, "data": dict(blocker.data)} for blocker in verdict.blockers]),
            json_text(dict(verdict.smallest_change)) if verdict.smallest_change else None,
            from_us(verdict.eta_us) if verdict.eta_us is not None else None,
            verdict.eta_basis or "",
            reserved.get(verdict.workload_id),
        )
        for verdict in plan.verdicts
    ]
    told = {row[0] for row in rows}
    for workload_id, reason in refused.items():
        if str(workload_id) not in told:
            rows.append(_plain(str(workload_id), CHANGED_MEANWHILE, {"what": reason}))
    return _store(rows, pass_number)


def leaving_verdicts_store(claims: Sequence[Placing], leaving: Sequence[Leaving], pass_number: int) -> None:
    """A claim waits only for others to leave: how many GPUs they still hold, and how many workloads they are."""
    units: Counter[str | None] = Counter()
    workloads: Counter[str | None] = Counter()
    for one in leaving:
        workloads[one.stop.for_workload_id] += 1
        units[one.stop.for_workload_id] += sum(held.units for held in one.replicas)
    rows = []
    for placing in claims:
        key, gpus = placing.subject.id, len(placing.pieces)
        held = min(float(gpus), units[key] / UNITS_PER_GPU)
        assert isinstance(placing.decided, Claim)
        blocker = leaving_blocker(placing.decided.tier_id, gpus, held, workloads[key])
        rows.append(_plain(key, blocker.code, blocker.data))
    _store(rows, pass_number)


def _plain(workload_id: str, code: str, data: Mapping[str, Any]) -> _Row:
    return workload_id, 0, json_text([{"code": code, "data": dict(data)}]), None, None, "", None


def _store(rows: Sequence[_Row], pass_number: int) -> int:
    if not rows:
        return 0
    names = ("workload", "position", "blockers", "change", "eta", "basis", "reserved")
    columns = {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    with connection.cursor() as cursor:
        cursor.execute(_VERDICTS, {"pass": pass_number, **columns})
        return int(cursor.rowcount)
