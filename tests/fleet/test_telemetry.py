"""Telemetry: every second of a GPU is added once, in its minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuyard.fleet.models import Gpu, GpuTelemetry
from gpuyard.fleet.reports import TelemetryBucket
from gpuyard.fleet.telemetry import telemetry_apply
from tests import factories as make

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 6, 1, 12, 0, 0, tzinfo=UTC)


def _bucket(gpu: Gpu, ended_ago_s: float, duration_s: float, **fields: Any) -> TelemetryBucket:
    return TelemetryBucket.model_validate(
        {
            "gpu_uuid": gpu.device_uuid,
            "ended_ago_s": ended_ago_s,
            "duration_s": duration_s,
            "utilisation_pct": 50.0,
            **fields,
        }
    )


def _apply(gpu: Gpu, *buckets: TelemetryBucket, now: datetime, since_s: float = 600.0) -> None:
    telemetry_apply(
        node=gpu.node, buckets=buckets, last_answered_at=now - timedelta(seconds=since_s), now=now
    )


def _row(hour: datetime = NOON) -> GpuTelemetry:
    return GpuTelemetry.objects.get(hour=hour)


def test_a_bucket_is_split_at_the_minute() -> None:
    gpu = make.gpu()
    _apply(gpu, _bucket(gpu, 0.0, 10.0), now=NOON + timedelta(minutes=5, seconds=4))
    row = _row()
    assert (row.seconds[4], row.seconds[5]) == (6.0, 4.0)
    assert (row.busy[4], row.busy[5]) == (300.0, 200.0)
    assert sum(row.seconds) == 10.0


def test_a_bucket_is_split_at_the_hour() -> None:
    gpu = make.gpu()
    _apply(gpu, _bucket(gpu, 0.0, 10.0), now=NOON + timedelta(seconds=3))
    assert _row().seconds[0] == 3.0
    assert _row(NOON - timedelta(hours=1)).seconds[59] == 7.0


def test_later_buckets_add_to_the_same_row() -> None:
    gpu = make.gpu()
    for second in (10, 12):
        _apply(gpu, _bucket(gpu, 0.0, 2.0), now=NOON + timedelta(seconds=second), since_s=2.0)
    assert _row().seconds[0] == 4.0


def test_a_bucket_sent_again_adds_nothing() -> None:
    gpu = make.gpu()
    _apply(gpu, _bucket(gpu, 0.0, 2.0), now=NOON + timedelta(seconds=10))
    _apply(gpu, _bucket(gpu, 2.0, 2.0), now=NOON + timedelta(seconds=12), since_s=2.0)
    assert _row().seconds[0] == 2.0


def test_an_unknown_utilisation_is_not_observed_time() -> None:
    gpu = make.gpu()
    bucket = _bucket(gpu, 0.0, 2.0, utilisation_pct=None, memory_used_mib=123)
    _apply(gpu, bucket, now=NOON + timedelta(seconds=10))
    row = _row()
    assert (row.seconds[0], row.busy[0], row.memory_used_mib[0]) == (0.0, 0.0, 123)


def test_a_minute_has_sixty_seconds() -> None:
    gpu = make.gpu()
    now = NOON + timedelta(minutes=1)
    _apply(gpu, *(_bucket(gpu, 0.0, 60.0) for _ in range(3)), now=now)
    row = _row()
    assert (row.seconds[0], row.busy[0]) == (60.0, 3000.0)


def test_gauges_keep_the_latest_value() -> None:
    gpu = make.gpu()
    buckets = [_bucket(gpu, ago, 2.0, power_w=watts) for ago, watts in ((0.0, 300.0), (4.0, 100.0))]
    _apply(gpu, *buckets, now=NOON + timedelta(seconds=30))
    assert _row().power_w[0] == 300.0


def test_gpus_of_other_nodes_are_ignored() -> None:
    gpu, other = make.gpu(), make.gpu()
    _apply(gpu, _bucket(other, 0.0, 2.0), now=NOON)
    assert not GpuTelemetry.objects.exists()
