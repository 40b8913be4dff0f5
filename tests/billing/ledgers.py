"""A small ledger to meter and to check: made by the tests of billing."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from gpuyard.core import clock
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.fleet.models import Gpu, Node
from scheduling.models import Allocation
from tenants.models import Team
from tests import factories

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
GPU_HOUR = UNITS_PER_GPU * 3_600_000_000


def at_hour(hours_ago: int = 4) -> datetime:
    """The full hour that many hours ago."""
    return clock.now().replace(minute=0, second=0, microsecond=0) - hours_ago * HOUR


def fleet(gpus: int = 1, *, since: datetime, cost: str = "1.500000", **fields: Any) -> tuple[Node, list[Gpu]]:
    """A node with GPUs of one tier, whose cost is known."""
    tier = factories.tier()
    factories.cost_rate(tier, cost)
    node = factories.node(tier, gpus, since=since, **fields)
    return node, list(node.gpus.order_by("index"))


def held(
    gpu: Gpu, since: datetime, *, team: Team | None = None, price: str | None = "2.000000", **fields: Any
) -> Allocation:
    """A workload that holds the GPU from `since` on, at a price."""
    of = team or factories.team()
    if price is not None:
        factories.price_rate(of, gpu.tier, price)
    attempt = factories.attempt(factories.workload(of, gpu.tier), gpu.tier)
    return factories.allocation(factories.replica(attempt, gpu.node), gpu, since=since, **fields)


def end(allocation: Allocation, at: datetime) -> Allocation:
    """Ends it."""
    Allocation.objects.filter(pk=allocation.pk).update(state="ended", span=(allocation.span.lower, at))
    return allocation
