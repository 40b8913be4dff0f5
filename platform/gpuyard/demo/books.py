"""What this run of the demo used and cost, from the usage lines written since it began."""

from __future__ import annotations

from datetime import datetime
from fractions import Fraction
from typing import Any
from uuid import UUID

from billing.metering import meter
from billing.models import ALLOCATED, Bucket, MeterMark, UsageLine
from billing.verify import books_verify
from gpuyard.core.money import exact_amount, gpu_hours, round_to_total

Marks = dict[UUID, datetime]


def marks_take() -> Marks:
    """Meters up to now and returns how far each GPU has come: where this run's part of the books begins."""
    meter(everything=True)
    return dict(MeterMark.objects.values_list("gpu_id", "metered_until"))


def books_since(marks: Marks) -> dict[str, Any]:
    """This run's sums (money as text), and whether the whole ledger holds."""
    meter(everything=True)
    lines = [
        line
        for line in UsageLine.objects.all().iterator()
        if line.gpu_id not in marks or line.starts_at >= marks[line.gpu_id]
    ]
    allocated = [line for line in lines if line.bucket in ALLOCATED]
    costs = {
        "allocated_cost": _cost(allocated),
        "unallocated_cost": _cost([line for line in lines if line.bucket == Bucket.UNALLOCATED]),
        "other_cost": _cost([line for line in lines if line.bucket not in {*ALLOCATED, Bucket.UNALLOCATED}]),
    }
    parts = dict(zip(costs, round_to_total(list(costs.values())), strict=True))
    charged = sum((exact_amount(line.unit_us, line.price_rate) for line in allocated), Fraction(0))
    report = books_verify()
    return {
        "gpu_hours": str(gpu_hours(sum(line.unit_us for line in allocated))),
        "charged": str(round_to_total([charged])[0]),
        **{name: str(amount) for name, amount in parts.items()},
        "fleet_cost": str(sum(parts.values())),
        "conserved": report.conserved,
        "problems": list(report.problems),
        "double_allocations": report.double_allocations,
    }


def _cost(lines: list[UsageLine]) -> Fraction:
    return sum((exact_amount(line.unit_us, line.cost_rate) for line in lines), Fraction(0))
