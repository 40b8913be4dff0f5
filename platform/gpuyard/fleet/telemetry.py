"""Adds agents' telemetry to the hour rows, each second of each GPU once.

A bucket says how long ago it ended, never when. Only what lies between the last answered sync and now is taken:
what lies before was counted by that sync (or was metered without it), so a bucket sent again adds nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from gpuyard.fleet.models import Gpu, GpuTelemetry, Node
from gpuyard.fleet.reports import TelemetryBucket

_MINUTES = 60
_MAX_SPAN = timedelta(hours=25)  # of what an agent buffers while it is cut off; bounds the work of one sync


@dataclass
class _Minute:
    """What is added to one minute of one GPU. Gauges: the last value wins."""

    seconds: float = 0.0
    busy: float = 0.0
    memory_used_mib: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None


@dataclass
class _Hour:
    minutes: dict[int, _Minute] = field(default_factory=lambda: defaultdict(_Minute))


def telemetry_apply(
    *, node: Node, buckets: Sequence[TelemetryBucket], last_answered_at: datetime, now: datetime
) -> int:
    """Adds what is new; returns how many GPU hours were touched. The caller holds the node's row locked."""
    if not buckets:
        return 0
    gpus = dict(
        Gpu.objects.filter(
            node=node, retired_at=None, device_uuid__in={one.gpu_uuid for one in buckets}
        ).values_list("device_uuid", "id")
    )
    start = max(last_answered_at, now - _MAX_SPAN)
    hours: dict[tuple[UUID, datetime], _Hour] = defaultdict(_Hour)
    for bucket in sorted(buckets, key=lambda one: -one.ended_ago_s):
        if bucket.gpu_uuid in gpus:
            _bucket_add(hours, gpus[bucket.gpu_uuid], bucket, start, now)
    _hours_store(hours)
    return len(hours)


def _bucket_add(
    hours: dict[tuple[UUID, datetime], _Hour],
    gpu_id: UUID,
    bucket: TelemetryBucket,
    start: datetime,
    now: datetime,
) -> None:
    ended = now - timedelta(seconds=bucket.ended_ago_s)
    began = max(ended - timedelta(seconds=bucket.duration_s), start)
    for minute_start, seconds in _minutes(began, ended):
        minute = hours[gpu_id, minute_start.replace(minute=0)].minutes[minute_start.minute]
        if bucket.utilisation_pct is not None:
            minute.seconds += seconds
            minute.busy += bucket.utilisation_pct * seconds
        if bucket.memory_used_mib is not None:
            minute.memory_used_mib = bucket.memory_used_mib
        if bucket.power_w is not None:
            minute.power_w = bucket.power_w
        if bucket.temperature_c is not None:
            minute.temperature_c = bucket.temperature_c


def _minutes(began: datetime, ended: datetime) -> Iterator[tuple[datetime, float]]:
    """Each minute that [began, ended) touches, with the seconds of it inside."""
    at = began.astimezone(UTC)
    ended = ended.astimezone(UTC)
    while at < ended:
        minute = at.replace(second=0, microsecond=0)
        upto = min(minute + timedelta(minutes=1), ended)
        yield minute, (upto - at).total_seconds()
        at = upto


def _hours_store(hours: dict[tuple[UUID, datetime], _Hour]) -> None:
    """Two statements, however many GPUs: the node's lock keeps others from writing in between."""
    if not hours:
        return
    stored = {
        (row.gpu_id, row.hour): row
        for row in GpuTelemetry.objects.filter(
            gpu__in={gpu_id for gpu_id, _ in hours}, hour__in={hour for _, hour in hours}
        )
    }
    rows = []
    for (gpu_id, hour), added in hours.items():
        row = stored.get((gpu_id, hour)) or _empty(gpu_id, hour)
        for index, minute in added.minutes.items():
            _minute_add(row, index, minute)
        rows.append(row)
    GpuTelemetry.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["gpu", "hour"], update_fields=_ARRAYS
    )


_ARRAYS = ("seconds", "busy", "memory_used_mib", "power_w", "temperature_c")


def _empty(gpu_id: UUID, hour: datetime) -> GpuTelemetry:
    return GpuTelemetry(
        gpu_id=gpu_id,
        hour=hour,
        seconds=[0.0] * _MINUTES,
        busy=[0.0] * _MINUTES,
        memory_used_mib=[None] * _MINUTES,
        power_w=[None] * _MINUTES,
        temperature_c=[None] * _MINUTES,
    )


def _minute_add(row: GpuTelemetry, index: int, minute: _Minute) -> None:
    # Overlapping buckets of a faulty agent must not make a minute longer than it is.
    room = max(0.0, 60.0 - row.seconds[index])
    share = min(1.0, room / minute.seconds) if minute.seconds else 0.0
    row.seconds[index] += minute.seconds * share
    row.busy[index] += minute.busy * share
    for name in ("memory_used_mib", "power_w", "temperature_c"):
        value = getattr(minute, name)
        if value is not None:
            getattr(row, name)[index] = value
