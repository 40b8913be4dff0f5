"""Lines and charges from the ledger: exact, once, and only for time that is final."""

import threading
from collections.abc import Callable
from datetime import UTC, timedelta
from decimal import Decimal

import psycopg
import pytest
from django.db import connections
from django.db.models import Sum

from billing.metering import MeterRun, meter
from billing.models import Charge, MeterMark, UsageLine
from gpuyard.core import clock
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.fleet.models import Gpu, GpuTelemetry, Node
from scheduling.models import Allocation
from tests import factories
from tests.billing.ledgers import GPU_HOUR, HOUR, MINUTE, at_hour, end, fleet, held


def sums(**where: object) -> dict[str, int]:
    rows = UsageLine.objects.filter(**where).values_list("bucket").annotate(total=Sum("unit_us"))
    return {bucket: int(total) for bucket, total in rows}


@pytest.mark.django_db
def test_a_finished_run_is_charged_from_start_to_end() -> None:
    since = at_hour()
    _node, (gpu,) = fleet(since=since)
    allocation = held(gpu, since + HOUR)
    end(allocation, since + 2 * HOUR + 30 * MINUTE)
    run = meter()
    assert run.broken == ()
    (total,) = Charge.objects.values_list("workload").annotate(total=Sum("unit_us"))
    assert total == (allocation.workload_id, GPU_HOUR * 3 // 2)
    assert sums(allocation=allocation) == {"transition": GPU_HOUR * 3 // 2}
    mark = MeterMark.objects.get(gpu=gpu)
    window = mark.metered_until - since
    assert sum(sums().values()) == UNITS_PER_GPU * (window // timedelta(microseconds=1))


@pytest.mark.django_db
def test_lines_carry_both_rates_and_point_at_their_charge() -> None:
    since = at_hour()
    _node, (gpu,) = fleet(since=since)
    allocation = held(gpu, since)
    meter()
    line = UsageLine.objects.filter(allocation=allocation).earliest("starts_at")
    assert (line.cost_rate, line.price_rate, line.currency) == (Decimal("1.5"), Decimal(2), "EUR")
    assert line.charge is not None
    assert line.charge.team_id == allocation.team_id
    assert line.ends_at - line.starts_at == HOUR


@pytest.mark.django_db
def test_metering_again_adds_nothing() -> None:
    since = at_hour()
    _node, (gpu,) = fleet(since=since)
    held(gpu, since)
    meter(everything=True)
    before = UsageLine.objects.count(), Charge.objects.count()
    assert meter(everything=True) == MeterRun()
    assert (UsageLine.objects.count(), Charge.objects.count()) == before


@pytest.mark.django_db
def test_many_small_runs_come_to_the_same_as_one() -> None:
    since = at_hour()
    _node, (gpu,) = fleet(since=since)
    allocation = held(gpu, since + 20 * MINUTE)
    end(allocation, since + 70 * MINUTE)
    for minutes in (1, 13, 20, 59, 60, 61, 90):
        meter(until=since + minutes * MINUTE, everything=True)
    meter(until=since + 3 * HOUR)
    assert sums() == {"transition": GPU_HOUR * 50 // 60, "unallocated": 3 * GPU_HOUR - GPU_HOUR * 50 // 60}
    assert Charge.objects.aggregate(total=Sum("unit_us"))["total"] == GPU_HOUR * 50 // 60


@pytest.mark.django_db
def test_nothing_after_the_last_sync_is_metered() -> None:
    since = at_hour()
    node, (gpu,) = fleet(since=since, last_sync_at=since + HOUR)
    held(gpu, since)
    meter(everything=True)
    assert MeterMark.objects.get(gpu=gpu).metered_until == since + HOUR
    Node.objects.filter(pk=node.pk).update(state="lost")
    assert meter(everything=True).gpus == 0


@pytest.mark.django_db
def test_a_lost_nodes_free_gpus_go_on_being_metered() -> None:
    since = at_hour()
    _node, (gpu,) = fleet(since=since, last_sync_at=since + HOUR, state="lost")
    meter()
    assert MeterMark.objects.get(gpu=gpu).metered_until > since + 2 * HOUR


@pytest.mark.django_db
def test_unconfirmed_time_is_down_and_not_charged() -> None:
    since = at_hour()
    _node, (gpu,) = fleet(since=since)
    allocation = held(gpu, since)
    silent = psycopg.types.multirange.Multirange(
        [psycopg.types.range.Range(since + HOUR, since + 2 * HOUR, "[)")]
    )
    Allocation.objects.filter(pk=allocation.pk).update(uncharged=silent)
    meter(until=since + 3 * HOUR)
    assert sums() == {"transition": 2 * GPU_HOUR, "down": GPU_HOUR}
    assert not UsageLine.objects.filter(bucket="down").exclude(price_rate=0, charge=None).exists()


@pytest.mark.django_db
def test_telemetry_tells_active_from_idle_and_unknown() -> None:
    since = at_hour()
    _node, (gpu,) = fleet(since=since)
    held(gpu, since, running_at=since)
    seconds, busy = [0.0] * 60, [0.0] * 60
    seconds[0], busy[0] = 60.0, 60.0 * 90
    seconds[1], busy[1] = 60.0, 60.0 * 4.9
    nothing = [None] * 60
    GpuTelemetry.objects.create(
        gpu=gpu,
        hour=since,
        seconds=seconds,
        busy=busy,
        memory_used_mib=nothing,
        power_w=nothing,
        temperature_c=nothing,
    )
    meter(until=since + HOUR)
    minute = GPU_HOUR // 60
    assert sums() == {"active": minute, "idle_held": minute, "unknown": 58 * minute}


@pytest.mark.django_db
def test_a_claim_that_started_was_reserved_before() -> None:
    since = at_hour()
    _node, (gpu,) = fleet(since=since)
    held(gpu, since + HOUR, claimed_at=since)
    meter(until=since + 2 * HOUR)
    assert sums() == {"reserved": GPU_HOUR, "transition": GPU_HOUR}


@pytest.mark.django_db
def test_lines_split_at_the_companys_midnight() -> None:
    midnight = clock.now().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    local_midnight = midnight - timedelta(days=2, hours=5, minutes=30)  # Kolkata has half an hour
    _node, (gpu,) = fleet(since=local_midnight - HOUR)
    team = factories.team(factories.company(time_zone="Asia/Kolkata"))
    workload = factories.workload(team, gpu.tier)
    replica = factories.replica(factories.attempt(workload, gpu.tier), gpu.node)
    end(factories.allocation(replica, gpu, since=local_midnight - HOUR), local_midnight + HOUR)
    meter()
    days = dict(Charge.objects.values_list("day").annotate(total=Sum("unit_us")))
    assert days == {
        (local_midnight - HOUR).date(): GPU_HOUR,
        (local_midnight + timedelta(hours=12)).date(): GPU_HOUR,
    }


@pytest.mark.django_db
def test_a_gpu_whose_facts_contradict_does_not_stop_the_others() -> None:
    since = at_hour()
    _node, (good, _odd) = fleet(2, since=since)
    Gpu.objects.filter(pk=_odd.pk).update(compute_slices=1)  # now less than what is held of it
    held(_odd, since)
    run = meter()
    assert run.broken == (_odd.pk,)
    assert MeterMark.objects.get(gpu=good).metered_until > since
    assert MeterMark.objects.get(gpu=_odd).metered_until == since


@pytest.mark.django_db(transaction=True)
def test_rival_runs_meter_every_moment_once() -> None:
    since = at_hour()
    _node, gpus = fleet(8, since=since)
    for gpu in gpus:
        held(gpu, since + HOUR)
    until = since + 3 * HOUR

    def run() -> None:
        meter(until=until, everything=True)
        connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(sums().values()) == 8 * 3 * GPU_HOUR
    assert Charge.objects.aggregate(total=Sum("unit_us"))["total"] == 8 * 2 * GPU_HOUR


@pytest.mark.django_db(transaction=True)
def test_a_start_that_is_not_committed_yet_is_waited_for(
    other_connection: Callable[..., psycopg.Connection[tuple[object, ...]]],
) -> None:
    """A pass that holds the node's row has stamped its start; a sync cannot overtake it, and nor can a run."""
    since = at_hour()
    node, (_gpu,) = fleet(since=since)
    committing = other_connection(autocommit=False)
    committing.execute("SELECT 1 FROM fleet_node WHERE id = %s FOR NO KEY UPDATE", (node.pk,))
    done = threading.Event()

    def run() -> None:
        meter(everything=True)
        done.set()
        connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    assert not done.wait(0.5)
    committing.commit()
    thread.join()
    assert done.is_set()
