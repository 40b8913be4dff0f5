"""The books hold after metering, and what an owner tampered with is named."""

import json
import re
from datetime import datetime
from decimal import Decimal
from io import StringIO

import pytest
from django.core.management import call_command
from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

from billing.metering import meter
from billing.verify import books_verify
from gpuyard.fleet.models import Gpu
from scheduling.models import Allocation, Workload
from tests.billing.ledgers import HOUR, MINUTE, at_hour, end, fleet, held
from tests.conftest import Connection


def busy_fleet() -> tuple[datetime, list[Gpu], list[Allocation]]:
    """Two GPUs over some hours: runs, a lost stretch, a started and a dropped claim, maintenance, a share."""
    since = at_hour(6)
    _node, gpus = fleet(3, since=since)
    first = end(held(gpus[0], since + 10 * MINUTE), since + 2 * HOUR)
    second = held(gpus[0], since + 3 * HOUR, claimed_at=since + HOUR, running_at=since + 3 * HOUR + MINUTE)
    third = held(gpus[1], since)
    silent = Multirange([Range(since + HOUR, since + 2 * HOUR, "[)")])
    Allocation.objects.filter(pk=third.pk).update(uncharged=silent)
    share = held(gpus[2], since + HOUR)
    return since, gpus, [first, second, third, share]


@pytest.mark.django_db
def test_the_books_hold_after_metering() -> None:
    busy_fleet()
    assert meter().broken == ()
    report = books_verify()
    assert report.problems == ()
    assert report.conserved
    assert report.gpus == 3
    parts = report.allocated_cost + report.unallocated_cost + report.other_cost
    assert parts == report.fleet_cost > 0
    assert report.charged > 0


@pytest.mark.django_db
def test_costs_are_time_times_rate() -> None:
    since = at_hour()
    _node, (gpu,) = fleet(since=since, cost="1.500000")
    end(held(gpu, since + HOUR, price="4.000000"), since + 3 * HOUR)
    meter(until=since + 4 * HOUR, everything=True)
    report = books_verify()
    assert (report.fleet_cost, report.allocated_cost, report.unallocated_cost, report.other_cost) == (
        Decimal("6.00"),
        Decimal("3.00"),
        Decimal("3.00"),
        Decimal("0.00"),
    )
    assert (report.charged, report.gpu_hours) == (Decimal("8.00"), Decimal("2.000000"))


@pytest.mark.django_db
def test_condition_changes_hold_too() -> None:
    from django.db import connection

    from gpuyard.core import ids

    _node, (gpu,) = fleet(since=at_hour())
    meter(everything=True)
    with connection.cursor() as cursor:
        for word in ("cordoned", "ready", "down"):
            cursor.execute(
                "SELECT gpu_condition_set(%s, %s, %s, %s, '')", [gpu.pk, ids.uuid7(), gpu.tier_id, word]
            )
        cursor.execute("UPDATE fleet_node SET last_sync_at = yard_now()")
    meter(everything=True)
    assert books_verify().problems == ()


@pytest.mark.django_db
def test_the_command_ends_with_one_json_object() -> None:
    busy_fleet()
    out = StringIO()
    call_command("verify_books", "--meter", stdout=out)
    report = json.loads(out.getvalue().splitlines()[-1])
    assert list(report) == [
        "conserved",
        "gpus",
        "fleet_cost",
        "allocated_cost",
        "unallocated_cost",
        "other_cost",
        "charged",
        "gpu_hours",
        "double_allocations",
        "problems",
    ]
    assert report["conserved"] is True
    assert report["double_allocations"] == 0


@pytest.mark.django_db
def test_empty_books_hold() -> None:
    assert books_verify().conserved


# --- Tampering by the owner ------------------------------------------------------------------------------------


def problems_of(kind: str) -> list[str]:
    return [problem for problem in books_verify().problems if problem.startswith(kind)]


def owner_writes(owner: Connection, table: str, *statements: str) -> None:
    """Past the guards, which stand again afterwards."""
    owner.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
    for statement in statements:
        owner.execute(statement)
    owner.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


@pytest.mark.django_db(transaction=True)
def test_a_lost_hour_is_found_and_named(owner_connection: Connection) -> None:
    since, _gpus, (_first, _second, third, _share) = busy_fleet()
    meter()
    hour = since + 3 * HOUR
    owner_writes(
        owner_connection,
        "billing_usageline",
        f"DELETE FROM billing_usageline WHERE allocation_id = '{third.pk}' AND hour = '{hour.isoformat()}'",
    )
    report = books_verify()
    assert not report.conserved
    (lost,) = problems_of("Lost time")
    assert f"hour of {hour:%Y-%m-%d %H:%M}" in lost
    assert "1.000000 GPU-hours" in lost
    assert problems_of(f"Workload {third.workload.public_id}")
    assert problems_of("Charge")


@pytest.mark.django_db(transaction=True)
def test_a_doubled_line_is_found_and_named(owner_connection: Connection) -> None:
    _since, _gpus, (_first, _second, third, _share) = busy_fleet()
    meter()
    owner_connection.execute("ALTER TABLE billing_usageline DROP CONSTRAINT billing_usageline_once")
    columns = (
        "gpu_id, tier_id, bucket, allocation_id, company_id, team_id, workload_id, charge_id, starts_at, "
        "ends_at, hour, day, unit_us, cost_rate, price_rate, currency"
    )
    owner_connection.execute(
        f"INSERT INTO billing_usageline (id, {columns}) SELECT gen_random_uuid(), {columns}"
        f" FROM billing_usageline WHERE allocation_id = '{third.pk}' ORDER BY starts_at LIMIT 1"
    )
    (doubled,) = problems_of("Doubled line")
    assert third.workload.public_id in doubled
    assert problems_of("Counted twice")
    assert problems_of("Guard missing") == [
        "Guard missing: the database rule billing_usageline_once does not stand or is disabled."
    ]


@pytest.mark.django_db(transaction=True)
def test_an_overlap_of_holders_is_found_and_named(owner_connection: Connection) -> None:
    since, gpus, (_first, _second, third, _share) = busy_fleet()
    meter()
    owner_connection.execute("ALTER TABLE scheduling_allocation DROP CONSTRAINT scheduling_slots_once")
    other = end(held(gpus[1], since + HOUR), since + 2 * HOUR)
    report = books_verify()
    assert report.double_allocations == 1
    (overlap,) = problems_of("Overlap")
    assert third.workload.public_id in overlap
    assert other.workload.public_id in overlap
    assert problems_of("Guard missing")


@pytest.mark.django_db(transaction=True)
def test_an_altered_price_is_found(owner_connection: Connection) -> None:
    _since, _gpus, (_first, second, _third, _share) = busy_fleet()
    meter()
    owner_writes(
        owner_connection,
        "billing_charge",
        f"UPDATE billing_charge SET price_rate = 0 WHERE workload_id = '{second.workload_id}'",
    )
    workload = Workload.objects.get(pk=second.workload_id).public_id
    assert any(workload in problem for problem in problems_of("Charge"))
    assert problems_of("Price: the lines")


@pytest.mark.django_db(transaction=True)
def test_time_moved_between_buckets_is_found(owner_connection: Connection) -> None:
    busy_fleet()
    meter()
    owner_writes(
        owner_connection,
        "billing_usageline",
        "UPDATE billing_usageline SET bucket = 'maintenance' WHERE bucket = 'unallocated'",
    )
    assert problems_of("Wrong bucket")


@pytest.mark.django_db(transaction=True)
def test_the_command_fails_and_names_what_is_wrong(
    owner_connection: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    busy_fleet()
    meter()
    owner_writes(
        owner_connection, "billing_usageline", "DELETE FROM billing_usageline WHERE bucket = 'reserved'"
    )
    with pytest.raises(SystemExit) as stopped:
        call_command("verify_books")
    assert stopped.value.code == 1
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["conserved"] is False
    assert any(re.match("Lost time: .* hour of", problem) for problem in report["problems"])
