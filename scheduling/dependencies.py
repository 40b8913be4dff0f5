"""What became of the workloads that others wait for."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef
from django.utils.translation import gettext as _

from scheduling.models import Workload, WorkloadDependency
from scheduling.services import request_members, workloads_cancel
from scheduling.states import WORKLOAD_ENDED, WorkloadState

FAILED = WORKLOAD_ENDED - {WorkloadState.SUCCEEDED}


def dependencies_settle() -> int:
    """Cancels what waits for work that ended without success, and what waits for that; returns how many.

    It could never start: better that its owner hears so now. What still waits for approval is looked at once it has
    been approved. Safe to repeat: each pass begins with it.
    """
    cancelled = 0
    while found := _hopeless():
        cancelled += sum(_cancel(row.workload_id, row.on) for row in found)
    return cancelled


def _hopeless() -> list[WorkloadDependency]:
    """One failed dependency for each waiting workload (the first member, of an array) that has any."""
    waiting = Workload.objects.filter(state=WorkloadState.WAITING)
    is_waiting = Exists(waiting.filter(pk=OuterRef("workload_id")))
    is_array_waiting = Exists(waiting.filter(array_id=OuterRef("workload_id")))
    failed = WorkloadDependency.objects.filter(is_waiting | is_array_waiting, on__state__in=FAILED)
    return list(failed.select_related("on").order_by("workload_id", "on_id").distinct("workload_id"))


@transaction.atomic
def _cancel(workload_id: UUID, on: Workload) -> int:
    reason = _("%(name)s (%(id)s), which it was to follow, ended without success: %(state)s.") % {
        "name": on.name,
        "id": on.public_id,
        "state": on.get_state_display(),
    }
    return len(workloads_cancel(request_members(workload_id), WorkloadState.WAITING, None, reason[:400]))
