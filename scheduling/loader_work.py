"""What runs, what it holds, what was taken back and what was asked for lately, as a pass knows it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from scheduling.engine import snapshot as engine
from scheduling.loader_fleet import Taken
from scheduling.rows import rows_read

MIX_WINDOW_S = 14 * 86_400
MIX_SUBMISSIONS = 5_000

# --- What is held ------------------------------------------------------------------------------------------

# Times as whole microseconds: extract() is exact, a float of seconds would lose the last digits.
_LIVE = """
SELECT a.workload_id::text, r.id::text, a.tier_id::text, a.team_id::text, a.gpu_id::text,
  a.scope::text, CASE WHEN a.scope IS NOT NULL THEN a.slots END, a.units, a.state,
  (extract(epoch FROM lower(a.span)) * 1000000)::bigint,
  r.node_id::text, r.index, r.cpu_m, r.memory_mib, t.borrowed, t.band,
  (extract(epoch FROM t.running_at) * 1000000)::bigint,
  w.kind, w.preemptible, (s.document->>'time_limit_s')::bigint
FROM scheduling_allocation a
JOIN scheduling_replica r ON r.id = a.replica_id
JOIN scheduling_attempt t ON t.id = a.attempt_id
JOIN scheduling_workload w ON w.id = a.workload_id
JOIN scheduling_workloadspec s ON s.id = r.spec_id
WHERE a.state IN ('claimed', 'held', 'stopping', 'unconfirmed')
ORDER BY a.workload_id, r.index, r.id, a.tier_id, a.id
"""


def live_load() -> tuple[tuple[engine.Live, ...], Taken]:
    """One row for each replica and tier that it holds, and what that leaves of the GPUs."""
    found: list[engine.Live] = []
    taken = Taken()
    group: list[tuple[Any, ...]] = []
    for row in rows_read(_LIVE):
        _take(taken, row)
        if group and row[1:3] != group[0][1:3]:
            found.append(_live(group))
            group = []
        group.append(row)
    if group:
        found.append(_live(group))
    return tuple(found), taken


def _take(taken: Taken, row: tuple[Any, ...]) -> None:
    team, gpu, scope, slots = row[3:7]
    if scope is None:
        taken.whole.add(gpu)
        return
    taken.pieces[gpu].extend((piece.lower, piece.upper) for piece in slots)
    taken.teams[gpu] = team
    taken.scopes[gpu].add(scope)


def _live(group: list[tuple[Any, ...]]) -> engine.Live:
    """The rows of one replica on one tier: its GPUs are held alike."""
    first = group[0]
    workload, _replica, tier, team, _gpu, _scope, slots, _units, state, _since = first[:10]
    node, index, cpu_m, memory_mib, borrowed, band, running_us, kind, preemptible, limit_s = first[10:]
    started_us = min(row[9] for row in group)
    has_end = limit_s is not None and state != "unconfirmed"  # nobody knows when a lost node's work ends
    return engine.Live(
        workload_id=workload,
        team_id=team,
        tier_id=tier,
        units=sum(row[7] for row in group),
        state=state,
        node_id=node,
        borrowed=borrowed,
        started_us=started_us,
        ends_us=(running_us or started_us) + limit_s * 1_000_000 if has_end else None,
        cpu_m=cpu_m,
        memory_mib=memory_mib,
        kind=kind,
        preemptible=preemptible,
        band=band,
        replica=index,
        gpu_ids=tuple(row[4] for row in group),
        slots=sum(piece.upper - piece.lower for piece in slots) if slots is not None else engine.WHOLE,
    )


# --- What runs, and what was taken back --------------------------------------------------------------------

_RUNNING = """
SELECT t.workload_id::text, t.state, (extract(epoch FROM coalesce(t.running_at, t.created_at)) * 1000000)::bigint,
  t.borrowed, coalesce(e.evictions, 0),
  (SELECT (extract(epoch FROM max(r.checkpoint_at)) * 1000000)::bigint
   FROM scheduling_replica r WHERE r.attempt_id = t.id)
FROM scheduling_attempt t
LEFT JOIN (
  SELECT workload_id, count(*) AS evictions FROM scheduling_eviction
  WHERE replicas IS NULL AND at > yard_now() - make_interval(secs => %(window_s)s) GROUP BY workload_id
) e ON e.workload_id = t.workload_id
WHERE t.state IN ('claiming', 'starting', 'running', 'stopping') ORDER BY t.workload_id, t.number
"""

_TEAMS = """
SELECT team_id::text, count(*) FROM scheduling_eviction
WHERE replicas IS NULL AND at > yard_now() - make_interval(secs => %(window_s)s) GROUP BY team_id ORDER BY team_id
"""


def running_load(window_s: int) -> Iterator[engine.Running]:
    """Workloads with a live attempt. One that is moved has two: the claiming one counts, its old one leaves."""
    last: engine.Running | None = None
    for workload_id, state, started_us, borrowed, evictions, checkpoint_us in rows_read(
        _RUNNING, window_s=window_s
    ):
        if last is not None and last.workload_id != workload_id:
            yield last
        last = engine.Running(workload_id, state, started_us, borrowed, checkpoint_us, evictions)
    if last is not None:
        yield last


def evictions_load(window_s: int) -> Iterator[engine.TeamEvictions]:
    """How often each team's work was taken back as a whole."""
    for team_id, count in rows_read(_TEAMS, window_s=window_s):
        yield engine.TeamEvictions(team_id, count)


# --- What was asked for lately -----------------------------------------------------------------------------

_MIX = """
SELECT asked->>'cpu_m', asked->>'gpus_per_replica', asked->>'share', asked->>'gpu_memory_mib', asked->>'tiers',
  sum((asked->>'replicas_min')::bigint)
FROM (
  SELECT s.document->'request' AS asked
  FROM (
    SELECT spec_id FROM scheduling_workload
    WHERE created_at > yard_now() - make_interval(secs => %(window_s)s)
    ORDER BY created_at DESC LIMIT %(most)s
  ) newest JOIN scheduling_workloadspec s ON s.id = newest.spec_id
) requests GROUP BY 1, 2, 3, 4, 5
"""


def mix_load(tiers: Mapping[str, engine.Tier]) -> tuple[engine.MixRow, ...]:
    """How often each shape was asked for by the newest submissions. `tiers` by name."""
    counts: Counter[tuple[int, int, int, tuple[str, ...]]] = Counter()
    for cpu_m, gpus, share, gpu_memory_mib, names, count in rows_read(
        _MIX, window_s=MIX_WINDOW_S, most=MIX_SUBMISSIONS
    ):
        named = [tiers[name] for name in json.loads(names or "[]") if name in tiers]
        slots = engine.WHOLE
        if share is not None or gpu_memory_mib is not None:
            slots = _slots(int(share or 0), int(gpu_memory_mib or 0), named)
        shape = int(cpu_m), int(gpus or 1), slots, tuple(sorted(tier.id for tier in named))
        counts[shape] += int(count)
    return tuple(engine.MixRow(*shape, count) for shape, count in sorted(counts.items()))


def _slots(share: int, gpu_memory_mib: int, tiers: list[engine.Tier]) -> int:
    """Those of a share on the first of its tiers: the larger of what it asks in parts and in memory."""
    by_memory = -(-engine.WHOLE * gpu_memory_mib // tiers[0].memory_mib) if tiers else 0
    return max(1, min(engine.WHOLE, max(share, by_memory)))
