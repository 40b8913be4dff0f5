"""How workloads, verdicts and attempts look in JSON."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.core.rest import Document, Output
from scheduling.asked import asked_text
from scheduling.explanations import Explanation, verdicts_explain
from scheduling.models import Attempt, Kind, Replica, Verdict, Workload
from scheduling.selectors import attempt_reasons
from scheduling.specs import Request, Spec, request_of
from scheduling.states import AllocationState, AttemptState, ReplicaState, WorkloadState


@extend_schema_field(Spec)  # type: ignore[arg-type] # `gpuyard.api.schema` describes it
class SpecField(serializers.Field[Any, Any, Any, Any]):
    """The spec document. It is checked by `scheduling.specs`, which names every wrong field."""

    def to_internal_value(self, data: Any) -> Any:
        return data

    def to_representation(self, value: Any) -> Any:
        return value


class TeamRef(Output):
    id = serializers.CharField(source="public_id")
    name = serializers.CharField()


class UserRef(Output):
    id = serializers.CharField(source="public_id")
    username = serializers.CharField()


# --- Workloads ---------------------------------------------------------------------------------------------


class ArrayOut(Output):
    """An array is called by its first member's id."""

    id = serializers.CharField()
    index = serializers.IntegerField()
    count = serializers.IntegerField()
    parallel = serializers.IntegerField(allow_null=True)


class WorkloadRow(Output):
    """`wait_s` counts from approval to the start, `run_s` from the start on; both go on while it waits or runs."""

    id = serializers.CharField(source="public_id")
    name = serializers.CharField()
    kind = serializers.ChoiceField(Kind.choices)
    team = TeamRef()
    owner = UserRef()
    state = serializers.ChoiceField(WorkloadState.choices)
    state_reason = serializers.CharField()
    headline = serializers.CharField(
        source="shown.headline", help_text="Why it waits, in a sentence; empty if it does not."
    )
    priority = serializers.IntegerField()
    band = serializers.IntegerField(help_text="Above 0: critical work, which goes before all fair share.")
    preemptible = serializers.BooleanField()
    created_at = serializers.DateTimeField()
    queued_at = serializers.DateTimeField(allow_null=True)
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    exit_code = serializers.IntegerField(allow_null=True)
    approved_by_rule = serializers.CharField()
    gpus = serializers.IntegerField(
        source="shown.gpus",
        help_text="In all; at most, where replicas may vary. Of a share, the cards it is on.",
    )
    share = serializers.IntegerField(
        source="shown.share", allow_null=True, help_text="Thousandths of one GPU for each replica."
    )
    gpu_memory_mib = serializers.IntegerField(source="shown.gpu_memory_mib", allow_null=True)
    tiers = serializers.ListField(
        child=serializers.CharField(),
        source="shown.tiers",
        help_text="Empty where capabilities are asked for.",
    )
    asked = serializers.CharField(source="shown.asked", help_text="What was asked for, in words.")
    array = ArrayOut(source="shown.array", allow_null=True)
    wait_s = serializers.FloatField(source="shown.wait_s", allow_null=True)
    run_s = serializers.FloatField(source="shown.run_s", allow_null=True)


class Shown:
    """What a row shows beside the workload's own columns."""

    def __init__(self, workload: Workload, now: datetime, why: Explanation | None) -> None:
        assert workload.spec is not None
        request = request_of(workload.spec.document)
        self.gpus = request.replicas_max * request.gpus_per_replica
        self.share, self.gpu_memory_mib = request.share, request.gpu_memory_mib
        self.tiers = request.tiers
        self.asked = asked_text(request)
        self.array = array_of(workload, request)
        self.headline = why.headline if why else ""
        until = workload.ended_at or now
        self.wait_s = _seconds(workload.queued_at, workload.started_at or until)
        self.run_s = _seconds(workload.started_at, until)


def array_of(workload: Workload, request: Request) -> dict[str, Any] | None:
    """Which member of which array it is."""
    if workload.array is None or request.array is None:
        return None
    return {
        "id": workload.array.public_id,
        "index": workload.array_index,
        "count": request.array.count,
        "parallel": request.array.parallel,
    }


def _seconds(since: datetime | None, until: datetime) -> float | None:
    return max(0.0, round((until - since).total_seconds(), 3)) if since else None


def workloads_show(actor: User, workloads: Iterable[Workload]) -> list[Workload]:
    """Gives each workload (of `workload_list`) its `shown`, in four queries at most."""
    rows, now = list(workloads), clock.now()
    waiting = [(row, verdict) for row in rows if (verdict := verdict_of(row))]
    why = verdicts_explain(actor, waiting) if waiting else {}
    for row in rows:
        row.shown = Shown(row, now, why.get(row.pk))  # type: ignore[attr-defined] # read by WorkloadRow only
    return rows


def verdict_of(workload: Workload) -> Verdict | None:
    """The verdict that came with the workload."""
    return getattr(workload, "verdict", None)


# --- Verdicts ----------------------------------------------------------------------------------------------


class ReasonOut(Output):
    code = serializers.CharField()
    text = serializers.CharField()
    data = Document()  # type: ignore[assignment] # a declared field: the class keeps its own


class VerdictOut(Output):
    """Why it waits: all blockers, the smallest change that would help, and when it may start."""

    headline = serializers.CharField()
    blockers = ReasonOut(many=True, source="reasons")
    smallest_change = Document(source="change_data", allow_null=True)
    smallest_change_text = serializers.CharField(source="change")
    eta = serializers.DateTimeField(allow_null=True)
    eta_basis = serializers.CharField()
    position = serializers.IntegerField()
    decided_at = serializers.DateTimeField(source="as_of")


# --- Attempts ----------------------------------------------------------------------------------------------


class NodeRef(Output):
    id = serializers.CharField(source="public_id")
    name = serializers.CharField()


class EndpointOut(Output):
    """Where a port of the workload listens, as its node advertises it."""

    name = serializers.CharField()
    address = serializers.CharField(source="replica.node.advertise_address")
    port = serializers.IntegerField()


class ReplicaOut(Output):
    index = serializers.IntegerField()
    node = NodeRef()
    state = serializers.ChoiceField(ReplicaState.choices)
    gpus = serializers.SerializerMethodField(help_text="Their numbers on the node.")
    healthy = serializers.BooleanField(allow_null=True)
    exit_code = serializers.IntegerField(allow_null=True)
    exit_reason = serializers.CharField()
    message = serializers.CharField()
    endpoints = EndpointOut(many=True, source="port_leases.all")

    def get_gpus(self, replica: Replica) -> list[int]:
        rows = replica.allocations.all()
        return sorted({row.gpu.index for row in rows if row.state != AllocationState.DROPPED})


class AttemptOut(Output):
    """One placing. `why` says in a sentence why it started then and there."""

    number = serializers.IntegerField()
    state = serializers.ChoiceField(AttemptState.choices)
    borrowed = serializers.BooleanField()
    tier = serializers.CharField(source="tier.name")
    created_at = serializers.DateTimeField()
    running_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    end_reason = serializers.CharField()
    why = serializers.SerializerMethodField()
    why_now = Document()
    why_here = Document()
    replicas = ReplicaOut(many=True, source="replicas.all")

    def get_why(self, attempt: Attempt) -> str:
        return attempt_reasons(attempt)

    def get_fields(self) -> dict[str, Any]:
        # `pass` is no name for an attribute in Python
        return {
            **super().get_fields(),
            "pass": serializers.IntegerField(source="pass_number", read_only=True),
        }


def is_healthy(workload: Workload, attempt: Attempt | None) -> bool | None:
    """Over the running replicas, if they have a health path: none is ill, and each has been asked."""
    assert workload.spec is not None
    asked = any(port.get("health_path") for port in workload.spec.document.get("ports", []))
    running = [one for one in attempt.replicas.all() if one.state == ReplicaState.RUNNING] if attempt else []
    states = {replica.healthy for replica in running}
    if not asked or not states:
        return None
    return False if False in states else None if None in states else True
