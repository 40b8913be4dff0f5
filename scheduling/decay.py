"""What teams used of each tier, counted half as much after each half-life, from the ledger by one SQL function.

What ended is folded into one row for each team and tier (`usage_fold`), so that a pass never reads the whole ledger;
what is held, or ended since the last fold, is added when it is asked for. Both ways give the same number, because
decaying what was folded is the same as decaying its parts. Time on a lost node (`uncharged`) is nobody's use.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, LiteralString

from django.db import connection, transaction

from gpuyard.core import clock
from scheduling.engine.snapshot import Usage
from scheduling.looks import one_look
from scheduling.models import TeamUsage

_PARTS: LiteralString = """
  SELECT a.team_id, a.tier_id, sum(a.units * scheduling_decayed_s(lower(piece),
    least(coalesce(upper(piece), seen.at), seen.at), seen.at, %(half_life)s::float8)) AS unit_s
  FROM seen, {rows} a, unnest(tstzmultirange(a.span) - a.uncharged) AS piece
  WHERE {state}
  GROUP BY a.team_id, a.tier_id
"""
_HELD: LiteralString = "a.state IN ('held', 'stopping', 'unconfirmed')"
_ENDED: LiteralString = "a.state = 'ended'"
_SEEN: LiteralString = "seen AS MATERIALIZED (SELECT coalesce(%(at)s::timestamptz, yard_now()) AS at)"

_FOLDED: LiteralString = """
  SELECT f.team_id, f.tier_id,
    f.unit_s * exp(-least(ln(2) * extract(epoch FROM seen.at - f.as_of)::float8 / f.half_life_s, 600)) AS unit_s
  FROM seen, scheduling_teamusage f
"""

_ALLOCATION: LiteralString = "scheduling_allocation"
_JUST_ENDED: LiteralString = (
    "(SELECT ended.* FROM scheduling_usagepending"
    " JOIN scheduling_allocation ended ON ended.id = allocation_id)"
)
_SUM: LiteralString = """
WITH {seen}, part AS ({parts})
SELECT team_id::text, tier_id::text, sum(unit_s) FROM part GROUP BY team_id, tier_id ORDER BY 1, 2
"""
_INCREMENTAL: LiteralString = _SUM.format(
    seen=_SEEN,
    parts=" UNION ALL ".join(
        (
            _FOLDED,
            _PARTS.format(rows=_ALLOCATION, state=_HELD),
            _PARTS.format(rows=_JUST_ENDED, state=_ENDED),
        )
    ),
)
_DIRECT: LiteralString = _SUM.format(
    seen=_SEEN,
    parts=_PARTS.format(rows=_ALLOCATION, state="a.state IN ('held', 'stopping', 'unconfirmed', 'ended')"),
)

_FOLD: LiteralString = """
WITH {seen}, gone AS (DELETE FROM scheduling_usagepending RETURNING allocation_id), part AS ({parts})
INSERT INTO scheduling_teamusage AS f (id, team_id, tier_id, unit_s, as_of, half_life_s)
SELECT gen_random_uuid(), part.team_id, part.tier_id, part.unit_s, seen.at, %(half_life)s FROM seen, part
ON CONFLICT (team_id, tier_id) DO UPDATE SET as_of = excluded.as_of, half_life_s = excluded.half_life_s,
  unit_s = excluded.unit_s + {earlier}
"""
_FOLD_MORE: LiteralString = _FOLD.format(
    seen=_SEEN,
    parts=_PARTS.format(
        rows="(SELECT ended.* FROM gone JOIN scheduling_allocation ended ON ended.id = gone.allocation_id)",
        state=_ENDED,
    ),
    earlier="f.unit_s * exp(-least(ln(2) * extract(epoch FROM excluded.as_of - f.as_of)::float8"
    " / f.half_life_s, 600))",
)
_FOLD_ANEW: LiteralString = _FOLD.format(
    seen=_SEEN, parts=_PARTS.format(rows=_ALLOCATION, state=_ENDED), earlier="0"
)

TOLERANCE = 1e-9
Use = dict[tuple[str, str], float]


def usage_fold(half_life_s: int) -> None:
    """Folds what ended since the last time; all of the ledger again if the half-life is another one now."""
    if half_life_s <= 0:
        return
    with transaction.atomic(), connection.cursor() as cursor:
        statement = _FOLD_ANEW if _is_other(half_life_s) else _FOLD_MORE
        cursor.execute(statement, {"half_life": half_life_s, "at": None})


def usage_at(half_life_s: int, at: datetime) -> Use:
    """(team, tier) → unit-seconds at this moment. With another half-life than the folded one it reads the ledger."""
    if half_life_s <= 0:
        return {}
    return _summed(_DIRECT if _is_other(half_life_s) else _INCREMENTAL, half_life_s, at)


def usage_direct(half_life_s: int, at: datetime) -> Use:
    """The same from every allocation there ever was: what `manage.py verify_usage` compares with."""
    return _summed(_DIRECT, half_life_s, at)


def usage_rows(half_life_s: int, at: datetime) -> tuple[Usage, ...]:
    """The use as a pass wants it, by team and tier."""
    rounded = ((key, round(unit_s)) for key, unit_s in usage_at(half_life_s, at).items())
    return tuple(Usage(team_id, tier_id, unit_s) for (team_id, tier_id), unit_s in rounded if unit_s > 0)


@dataclass(frozen=True)
class UsageReport:
    """How far the folded use is from the ledger's: the largest difference, relative to the larger of both."""

    half_life_s: int
    rows: int
    difference: float

    @property
    def agrees(self) -> bool:
        return self.difference <= TOLERANCE

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "agrees": self.agrees}


def usage_verify(half_life_s: int) -> UsageReport:
    """Compares both ways at one moment, in one look at the database."""
    if half_life_s <= 0:
        return UsageReport(half_life_s, 0, 0.0)
    with one_look():
        now = clock.now()
        folded, direct = usage_at(half_life_s, now), usage_direct(half_life_s, now)
    keys = folded.keys() | direct.keys()
    pairs = [(folded.get(key, 0.0), direct.get(key, 0.0)) for key in keys]
    apart = max((abs(one - other) / max(one, other, 1.0) for one, other in pairs), default=0.0)
    return UsageReport(half_life_s, len(keys), apart)


def _is_other(half_life_s: int) -> bool:
    return TeamUsage.objects.exclude(half_life_s=half_life_s).exists()


def _summed(statement: LiteralString, half_life_s: int, at: datetime) -> Use:
    with connection.cursor() as cursor:
        cursor.execute(statement, {"half_life": half_life_s, "at": at})
        return {(team_id, tier_id): float(unit_s) for team_id, tier_id, unit_s in cursor.fetchall()}
