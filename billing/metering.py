"""Writes usage lines and charges for time that is final: the thin database part around `billing.segments`.

A GPU is metered from its mark up to a cut before which nothing can change any more. Marks move in the transaction
that stores the lines, so that a run which is killed, repeated or has a rival changes nothing.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction

from billing.days import HOUR_US, from_us, local_day, to_us
from billing.loading import Loaded, Owner, load
from billing.models import ALLOCATED, Charge, MeterMark, UsageLine
from billing.rates import NOTHING
from billing.segments import Range, Segment, TimelineBroken, segments
from gpuyard.core.clock import now
from gpuyard.core.ids import uuid7
from gpuyard.core.money import units_for
from gpuyard.fleet.models import NodeState

logger = logging.getLogger(__name__)

RATES_LOCK = "billing.rates"
"""Advisory lock: shared by metering, exclusive for a change of rates, so that no line misses a new rate."""
STEP_US = 300 * 1_000_000
"""A GPU on which nothing ended waits this long for its next lines: lines grow with events, not with runs."""
BATCH_GPUS = 256
_INSERT_ROWS = 2000
_ALLOCATED = frozenset(str(bucket) for bucket in ALLOCATED)


@dataclass(frozen=True)
class MeterRun:
    """What a run did. `broken`: GPUs left alone because their stored facts contradict one another."""

    gpus: int = 0
    lines: int = 0
    charges: int = 0
    broken: tuple[UUID, ...] = ()

    def __add__(self, other: MeterRun) -> MeterRun:
        return MeterRun(
            self.gpus + other.gpus,
            self.lines + other.lines,
            self.charges + other.charges,
            self.broken + other.broken,
        )


def currency() -> str:
    """The currency of cost rates, and of lines that no company pays for."""
    return str(getattr(settings, "GPUYARD_CURRENCY", "EUR"))


def meter(*, until: datetime | None = None, everything: bool = False) -> MeterRun:
    """Meters every GPU up to its cut, at most `until`; `everything` also where only a moment has passed."""
    run = MeterRun()
    for batch in _batches():
        cuts = _cuts(sorted({node_id for _gpu, node_id in batch}))
        run += _meter_batch(batch, cuts, None if until is None else to_us(until), everything)
    return run


_UNFINISHED = """
SELECT g.id, g.node_id FROM fleet_gpu g LEFT JOIN billing_metermark m ON m.gpu_id = g.id
WHERE g.retired_at IS NULL OR m.gpu_id IS NULL OR m.metered_until < g.retired_at ORDER BY g.node_id, g.id
"""


def _batches() -> Iterator[list[tuple[UUID, UUID]]]:
    with connection.cursor() as cursor:
        cursor.execute(_UNFINISHED)
        rows = list(cursor.fetchall())
    for start in range(0, len(rows), BATCH_GPUS):
        yield rows[start : start + BATCH_GPUS]


# --- The cut -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _NodeCut:
    """Up to when what holds GPUs of a node is final, and up to when all else is."""

    held: int | None
    free: int | None


@transaction.atomic
def _cuts(node_ids: list[UUID]) -> dict[UUID, _NodeCut]:
    """Reads the cuts behind every transaction that is still stamping times on these nodes.

    Whoever stamps a start or an end locks the node's row first. Once we have had these locks for a moment, all
    stamped before the cut is committed and visible to the statements that follow.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id, state, last_sync_at FROM fleet_node WHERE id = ANY(%s) ORDER BY id FOR SHARE",
            [node_ids],
        )
        rows = cursor.fetchall()
    at = to_us(now())
    return {node_id: _node_cut(state, last_sync_at, at) for node_id, state, last_sync_at in rows}


def _node_cut(state: str, last_sync_at: datetime | None, at: int) -> _NodeCut:
    """An end is stamped between the last answered sync and now, whatever the node's state.

    A silent node's free GPUs wait for nothing: what changes them is stamped with the moment it happens.
    """
    synced = None if last_sync_at is None else to_us(last_sync_at)
    is_silent = state in (NodeState.LOST, NodeState.RETIRED)
    return _NodeCut(held=synced, free=at if is_silent else synced)


# --- One batch, one transaction ------------------------------------------------------------------------------


@transaction.atomic
def _meter_batch(
    batch: list[tuple[UUID, UUID]], cuts: dict[UUID, _NodeCut], until: int | None, everything: bool
) -> MeterRun:
    _lock_shared()
    gpu_ids = [gpu_id for gpu_id, _node in batch]
    marks = _marks_lock(gpu_ids)
    windows: dict[UUID, Range] = {}
    capacities: dict[UUID, int] = {}
    for gpu in _gpus(gpu_ids):
        window = _window(gpu, cuts[gpu.node_id], marks.get(gpu.id), until)
        if window and (everything or window[1] - window[0] >= STEP_US or gpu.ended_at > window[0]):
            windows[gpu.id], capacities[gpu.id] = window, gpu.capacity
    if not windows:
        return MeterRun()
    loaded = load(windows, capacities)
    found, broken = _segments(loaded, windows)
    _marks_move({gpu_id: windows[gpu_id] for gpu_id in found})
    lines, charges = _rows(found, loaded)
    Charge.objects.bulk_create(charges, batch_size=_INSERT_ROWS)
    UsageLine.objects.bulk_create(lines, batch_size=_INSERT_ROWS)
    return MeterRun(len(found), len(lines), len(charges), broken)


def _lock_shared() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock_shared(hashtextextended(%s, 0))", [RATES_LOCK])


_MARKS_ADD = """
INSERT INTO billing_metermark (gpu_id, metered_until)
SELECT gpu_id, min(lower(span)) FROM fleet_gpucondition WHERE gpu_id = ANY(%s) GROUP BY gpu_id ORDER BY gpu_id
ON CONFLICT DO NOTHING
"""


def _marks_lock(gpu_ids: list[UUID]) -> dict[UUID, int]:
    """The marks, locked: a rival run waits here, and then finds them moved."""
    with connection.cursor() as cursor:
        cursor.execute(_MARKS_ADD, [gpu_ids])
    rows = MeterMark.objects.filter(gpu__in=gpu_ids).order_by("gpu_id").select_for_update()
    return {mark.gpu_id: to_us(mark.metered_until) for mark in rows}


_MARKS_MOVE = """
UPDATE billing_metermark m SET metered_until = moved.until
FROM unnest(%s::uuid[], %s::timestamptz[], %s::timestamptz[]) AS moved (gpu_id, old, until)
WHERE m.gpu_id = moved.gpu_id AND m.metered_until = moved.old
"""


def _marks_move(windows: dict[UUID, Range]) -> None:
    gpu_ids = list(windows)
    old = [from_us(windows[gpu_id][0]) for gpu_id in gpu_ids]
    until = [from_us(windows[gpu_id][1]) for gpu_id in gpu_ids]
    with connection.cursor() as cursor:
        cursor.execute(_MARKS_MOVE, [gpu_ids, old, until])
        assert cursor.rowcount == len(gpu_ids), "a locked mark moved"


@dataclass(frozen=True)
class _Gpu:
    id: UUID
    node_id: UUID
    capacity: int
    is_held: bool
    ended_at: int
    """When the last allocation that has ended did; 0: none."""
    retired_at: int | None
    """The end of its last condition: there is no capacity after it."""


_GPUS = """
SELECT g.id, g.node_id, g.compute_slices, g.card_slices,
  EXISTS (SELECT 1 FROM scheduling_allocation a WHERE a.gpu_id = g.id
          AND a.state IN ('held', 'stopping', 'unconfirmed')),
  (SELECT max(upper(a.span)) FROM scheduling_allocation a WHERE a.gpu_id = g.id AND a.state = 'ended'),
  (SELECT CASE WHEN bool_or(upper_inf(c.span)) THEN NULL ELSE max(upper(c.span)) END
   FROM fleet_gpucondition c WHERE c.gpu_id = g.id)
FROM fleet_gpu g WHERE g.id = ANY(%s)
"""


def _gpus(gpu_ids: list[UUID]) -> list[_Gpu]:
    with connection.cursor() as cursor:
        cursor.execute(_GPUS, [gpu_ids])
        return [
            _Gpu(
                id=gpu_id,
                node_id=node_id,
                capacity=units_for(compute_slices=slices, card_slices=card_slices),
                is_held=is_held,
                ended_at=0 if ended_at is None else to_us(ended_at),
                retired_at=None if retired_at is None else to_us(retired_at),
            )
            for gpu_id, node_id, slices, card_slices, is_held, ended_at, retired_at in cursor.fetchall()
        ]


def _window(gpu: _Gpu, cut: _NodeCut, mark: int | None, until: int | None) -> Range | None:
    """What of a GPU can be metered now."""
    at = cut.held if gpu.is_held else cut.free
    if mark is None or at is None:
        return None
    end = min(moment for moment in (at, gpu.retired_at, until) if moment is not None)
    return (mark, end) if mark < end else None


def _segments(
    loaded: Loaded, windows: dict[UUID, Range]
) -> tuple[dict[UUID, list[Segment]], tuple[UUID, ...]]:
    found: dict[UUID, list[Segment]] = {}
    broken: list[UUID] = []
    for gpu_id, window in windows.items():
        try:
            found[gpu_id] = segments(loaded.timelines[gpu_id], window)
        except TimelineBroken as problem:
            # The others go on; `verify_books` names what is wrong with this one.
            logger.error("GPU %s is not metered: %s", gpu_id, problem)
            broken.append(gpu_id)
    return found, tuple(broken)


# --- Lines and charges ---------------------------------------------------------------------------------------

_ChargeKey = tuple[UUID, UUID, UUID, UUID, Any, Decimal, str]


def _rows(found: dict[UUID, list[Segment]], loaded: Loaded) -> tuple[list[UsageLine], list[Charge]]:
    lines: list[UsageLine] = []
    owed: dict[_ChargeKey, list[UsageLine]] = defaultdict(list)
    for gpu_id, pieces in found.items():
        for piece in pieces:
            owner = None if piece.key is None else loaded.owners[piece.key]
            line = _line(gpu_id, piece, owner, loaded)
            lines.append(line)
            if owner is not None and piece.bucket in _ALLOCATED:
                owed[_charge_key(line, owner)].append(line)
    return lines, [_charge(key, of) for key, of in owed.items()]


def _line(gpu_id: UUID, piece: Segment, owner: Owner | None, loaded: Loaded) -> UsageLine:
    line = UsageLine(
        gpu_id=gpu_id,
        tier_id=piece.tier,
        bucket=piece.bucket,
        starts_at=from_us(piece.start),
        ends_at=from_us(piece.end),
        hour=from_us(piece.start - piece.start % HOUR_US),
        day=from_us(piece.start).date(),
        unit_us=piece.unit_us,
        cost_rate=loaded.rates.cost(piece.tier, piece.start) or NOTHING,
        price_rate=NOTHING,
        currency=currency(),
    )
    if owner is not None:
        company = loaded.companies[owner.company_id]
        line.allocation_id = owner.allocation_id
        line.company_id, line.team_id, line.workload_id = owner.company_id, owner.team_id, owner.workload_id
        line.day, line.currency = local_day(piece.start, company.zone), company.currency
        if piece.bucket in _ALLOCATED:
            line.price_rate = loaded.rates.price(owner.price, piece.start) or NOTHING
    return line


def _charge_key(line: UsageLine, owner: Owner) -> _ChargeKey:
    return (
        owner.company_id,
        owner.team_id,
        owner.workload_id,
        owner.price.tier,
        line.day,
        line.price_rate,
        line.currency,
    )


def _charge(key: _ChargeKey, lines: list[UsageLine]) -> Charge:
    company_id, team_id, workload_id, tier_id, day, price_rate, its_currency = key
    charge = Charge(
        id=uuid7(),
        company_id=company_id,
        team_id=team_id,
        workload_id=workload_id,
        tier_id=tier_id,
        day=day,
        unit_us=sum(line.unit_us for line in lines),
        price_rate=price_rate,
        currency=its_currency,
    )
    for line in lines:
        line.charge = charge
    return charge
