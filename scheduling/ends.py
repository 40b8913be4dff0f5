"""Until when a placed workload holds its GPUs at the latest."""

from __future__ import annotations

from datetime import datetime, timedelta

from scheduling.models import Allocation
from scheduling.states import AllocationState


def ends_at(row: Allocation) -> datetime | None:
    """By its time limit, counted from when it ran; None: it has none, or its node is lost."""
    limit_s = row.replica.spec.document.get("time_limit_s")
    if limit_s is None or row.state == AllocationState.UNCONFIRMED:
        return None
    began: datetime = row.attempt.running_at or row.span.lower
    return began + timedelta(seconds=int(limit_s))
