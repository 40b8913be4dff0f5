"""The check of the books: every GPU's every microsecond in exactly one bucket, and every bucket priced once.

Recomputes everything by SQL of its own (`billing.verify_sql`), in one snapshot, and names what does not agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

from django.db import connection, transaction

from billing import verify_sql
from gpuyard.core.money import UNIT_US_PER_GPU_HOUR, gpu_hours, round_to_total

_ALLOCATED = ("active", "idle_held", "unknown", "transition")
_NAMED = 50
"""Problems named of each kind; of the rest only the number is told."""
_GROUPS = ("allocated", "reserved", "unallocated", "maintenance", "down")

Row = tuple[Any, ...]


@dataclass(frozen=True)
class BucketTotal:
    """GPU time of one bucket and what it cost."""

    bucket: str
    gpu_hours: Decimal
    cost: Decimal


@dataclass(frozen=True)
class BooksReport:
    """What the books say, and what is wrong with them. The three parts of the fleet's cost add up to it."""

    as_of: datetime
    metered_from: datetime | None
    metered_until: datetime | None
    gpus: int
    buckets: tuple[BucketTotal, ...]
    fleet_cost: Decimal
    allocated_cost: Decimal
    unallocated_cost: Decimal
    other_cost: Decimal
    charged: Decimal
    gpu_hours: Decimal
    double_allocations: int
    problems: tuple[str, ...]

    @property
    def conserved(self) -> bool:
        """Whether nothing is lost, doubled, overlapping or priced otherwise than its rate says."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """The report for programs: amounts as strings."""
        return {
            "conserved": self.conserved,
            "gpus": self.gpus,
            "fleet_cost": str(self.fleet_cost),
            "allocated_cost": str(self.allocated_cost),
            "unallocated_cost": str(self.unallocated_cost),
            "other_cost": str(self.other_cost),
            "charged": str(self.charged),
            "gpu_hours": str(self.gpu_hours),
            "double_allocations": self.double_allocations,
            "problems": list(self.problems),
        }


def books_verify() -> BooksReport:
    """Recomputes the books up to each GPU's mark."""
    with _one_snapshot():
        ((gpus, oldest, newest, as_of),) = _rows(verify_sql.MARKS)
        totals = {row[0]: row[1:] for row in _rows(verify_sql.BUCKETS)}
        overlaps = _rows(verify_sql.OVERLAPS)
        problems = [*_named(overlaps, _overlap), *_checks(), *_totals_agree(totals)]
        ((charged, _usage),) = _rows(verify_sql.CHARGED)
    costs = {bucket: _money(row[1]) for bucket, row in totals.items()}
    allocated = sum((costs.get(bucket, Fraction(0)) for bucket in _ALLOCATED), Fraction(0))
    unallocated = costs.get("unallocated", Fraction(0))
    fleet = sum(costs.values(), Fraction(0))
    parts = round_to_total([allocated, unallocated, fleet - allocated - unallocated])
    return BooksReport(
        as_of=as_of,
        metered_from=oldest,
        metered_until=newest,
        gpus=gpus,
        buckets=_bucket_totals(totals, costs),
        fleet_cost=sum(parts, Decimal(0)),
        allocated_cost=parts[0],
        unallocated_cost=parts[1],
        other_cost=parts[2],
        charged=round_to_total([_money(charged)])[0],
        gpu_hours=gpu_hours(sum(int(totals[bucket][0]) for bucket in _ALLOCATED if bucket in totals)),
        double_allocations=len(overlaps),
        problems=tuple(problems),
    )


@contextmanager
def _one_snapshot() -> Iterator[None]:
    """Metering may go on meanwhile: all statements see the same moment."""
    is_outermost = not connection.in_atomic_block
    with transaction.atomic():
        if is_outermost:  # refused once a transaction has read something
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def _rows(statement: str) -> list[Row]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def _money(unit_us_times_rate: Decimal) -> Fraction:
    return Fraction(unit_us_times_rate) / UNIT_US_PER_GPU_HOUR


def _bucket_totals(totals: dict[str, Row], costs: dict[str, Fraction]) -> tuple[BucketTotal, ...]:
    names = sorted(totals)
    rounded = round_to_total([costs[name] for name in names])
    return tuple(
        BucketTotal(name, gpu_hours(int(totals[name][0])), cost)
        for name, cost in zip(names, rounded, strict=True)
    )


# --- The checks ----------------------------------------------------------------------------------------------


def _checks() -> Iterator[str]:
    yield from _named(_rows(verify_sql.HOURS), _hour)
    yield from _named(_rows(verify_sql.ALLOCATIONS), _allocation)
    yield from _named(_rows(verify_sql.DOUBLED_LINES), _doubled)
    yield from _named(_rows(verify_sql.ODD_LINES), _odd)
    yield from _named(_rows(verify_sql.STOLEN_CLAIMS), _stolen)
    yield from _named(_rows(verify_sql.CONDITION_GAPS), _gap)
    yield from _named(_rows(verify_sql.COST_RATES), _cost_rate)
    yield from _named(_rows(verify_sql.PRICE_RATES), _price_rate)
    yield from _named(_rows(verify_sql.CHARGES), _charge)
    yield from _named(_rows(verify_sql.GUARDS_MISSING), _guard)


def _named(rows: list[Row], say: Callable[[Row], str]) -> Iterator[str]:
    yield from (say(row) for row in rows[:_NAMED])
    if len(rows) > _NAMED:
        yield f"… and {len(rows) - _NAMED} more like the last."


def _totals_agree(totals: dict[str, Row]) -> Iterator[str]:
    ((fleet,),) = _rows(verify_sql.FLEET_COST)
    booked = sum((row[1] for row in totals.values()), Decimal(0))
    if fleet != booked:
        yield f"Cost: the lines come to {_cents(booked)}, capacity times rates to {_cents(fleet)}."
    ((_all, usage),) = _rows(verify_sql.CHARGED)
    priced = sum((row[2] for row in totals.values()), Decimal(0))
    if usage != priced:
        yield f"Price: the lines come to {_cents(priced)}, the charges to {_cents(usage)}."


def _cents(unit_us_times_rate: Decimal) -> Decimal:
    return round_to_total([_money(unit_us_times_rate)], places=6)[0]


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _hours(unit_us: Decimal) -> str:
    return f"{gpu_hours(int(unit_us)):f} GPU-hours"


def _hour(row: Row) -> str:
    node, index, gpu, hour, total, *groups = row
    place = f"{node} GPU {index} ({gpu}), hour of {_at(hour)}"
    if total < 0:
        return f"Lost time: {place}: {_hours(-total)} of its capacity are in no line."
    if total > 0:
        return f"Counted twice: {place}: the lines hold {_hours(total)} more than its capacity."
    moved = ", ".join(
        f"{name} {'+' if value > 0 else '-'}{_hours(abs(value))}"
        for name, value in zip(_GROUPS, groups, strict=True)
        if value
    )
    return f"Wrong bucket: {place}: against the ledger {moved}."


def _allocation(row: Row) -> str:
    workload, node, index, booked, held = row
    return f"Workload {workload} on {node} GPU {index}: charged for {_hours(booked)}, held {_hours(held)}."


def _doubled(row: Row) -> str:
    node, index, bucket, starts_at, workload = row
    whose = f" of workload {workload}" if workload else ""
    return f"Doubled line: {node} GPU {index}, {bucket}{whose} from {_at(starts_at)}: that time is in another line too."


def _odd(row: Row) -> str:
    node, index, bucket, starts_at, what = row
    why = {
        "hour": "crosses or misses its hour",
        "day": "has the wrong day",
        "mark": "lies after the GPU's mark",
        "size": "holds more than fits into its time",
    }[what]
    return f"Odd line: {node} GPU {index}, {bucket} from {_at(starts_at)} {why}."


def _overlap(row: Row) -> str:
    node, index, one, other, starts_at = row
    return f"Overlap: {node} GPU {index}: workloads {one} and {other} both hold it from {_at(starts_at)}."


def _stolen(row: Row) -> str:
    node, index, one, other = row
    return f"Stolen promise: {node} GPU {index}: claimed by workload {one}, but also by or for {other}."


def _gap(row: Row) -> str:
    node, index, at = row
    return f"Condition: {node} GPU {index}: a gap or an overlap before {_at(at)}."


def _cost_rate(row: Row) -> str:
    node, index, starts_at, stored, wanted = row
    place = f"{node} GPU {index}, line from {_at(starts_at)}"
    return f"Cost rate: {place}: {stored}, but {wanted} applied (or changed inside)."


def _price_rate(row: Row) -> str:
    workload, starts_at, stored, wanted = row
    return f"Price: workload {workload}, line from {_at(starts_at)}: {stored}, but {wanted} applied."


def _charge(row: Row) -> str:
    workload, day, charged, booked, is_different = row
    if charged == booked and is_different:
        return f"Charge: workload {workload} on {day}: owner, day, price or currency differ from its lines."
    return f"Charge: workload {workload} on {day}: {_hours(charged)}, its lines hold {_hours(booked)}."


def _guard(row: Row) -> str:
    return f"Guard missing: the database rule {row[0]} does not stand or is disabled."
