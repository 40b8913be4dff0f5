"""Workloads as all apps together know them: what was asked for, its case, where it runs, what it costs."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from billing.selectors import WorkloadCost, workload_cost
from gpuyard.core.errors import NotFound
from gpuyard.core.idempotency import idempotent
from gpuyard.core.models import User
from gpuyard.core.rest import Amount, Flag, Input, Output, PagedView, Text, Whole, actor_of, body, query
from scheduling.api.shapes import (
    AttemptOut,
    SpecField,
    VerdictOut,
    WorkloadRow,
    is_healthy,
    verdict_of,
    workloads_show,
)
from scheduling.explanations import evictions_texts
from scheduling.models import Kind, Workload
from scheduling.policy_models import HIGHEST_BAND
from scheduling.selectors import (
    WorkloadFilters,
    attempt_list,
    eviction_list,
    verdict_explain,
    workload_get,
    workload_list,
)
from scheduling.services import CASE_SUBJECT, HIGHEST_PRIORITY, workload_submit
from scheduling.states import WorkloadState
from tenants.inbox import case_of
from tenants.models import Case, CaseState
from tenants.selectors import team_get


class CaseRef(Output):
    id = serializers.CharField(source="public_id")
    state = serializers.ChoiceField(CaseState.choices)


class WorkloadCostOut(Output):
    """So far, the part that is not metered yet included; `hourly` and `estimate_total` as estimated."""

    currency = serializers.CharField()
    charged = Amount(source="price")
    gpu_hours = Amount()
    hourly = Amount(source="estimate.hourly", places=4, allow_null=True)
    estimate_total = Amount(source="estimate.total", places=2, allow_null=True)


MOST_EVICTIONS = 20  # the newest ones


class EvictionOut(Output):
    """Taken back, or with `replicas` made smaller by them; `text` says who gained, what was lost and why this one."""

    at = serializers.DateTimeField()
    reason = serializers.CharField()
    replicas = serializers.ListField(child=serializers.IntegerField(), allow_null=True)
    lost_gpu_s = serializers.IntegerField()
    text = serializers.CharField()


class WorkloadDetail(WorkloadRow):
    """Everything about one workload. `attempt` is the latest one, `verdict` is there while it waits."""

    justification = serializers.CharField()
    spec = SpecField(source="spec.document", read_only=True)
    healthy = serializers.BooleanField(allow_null=True)
    case = CaseRef(allow_null=True)
    verdict = VerdictOut(allow_null=True)
    attempt = AttemptOut(allow_null=True)
    cost = WorkloadCostOut(allow_null=True)
    evictions = EvictionOut(many=True)


def workload_detail(actor: User, public_id: str) -> dict[str, Any]:
    """The JSON of one workload for this reader."""
    (workload,) = workloads_show(actor, [workload_get(actor, public_id)])
    attempt = attempt_list(actor, workload).last()
    facts = _Facts(workload)
    facts.verdict = verdict_explain(actor, workload) if verdict_of(workload) else None
    facts.case = case_of(actor, CASE_SUBJECT, workload.case_subject_id)
    facts.attempt = attempt
    facts.healthy = is_healthy(workload, attempt)
    facts.cost = _cost(actor, workload)
    taken = list(eviction_list(actor, workload)[:MOST_EVICTIONS])
    texts = evictions_texts(actor, taken)
    facts.evictions = [
        {name: getattr(row, name) for name in ("at", "reason", "replicas", "lost_gpu_s")}
        | {"text": texts[row.pk]}
        for row in taken
    ]
    return dict(WorkloadDetail(facts).data)


class _Facts:
    """A workload with what other apps add to it, which are no attributes of the model."""

    verdict: Any
    case: Case | None
    attempt: Any
    healthy: bool | None
    cost: WorkloadCost | None
    evictions: list[dict[str, Any]]

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)


def _cost(actor: User, workload: Workload) -> WorkloadCost | None:
    try:
        return workload_cost(actor, workload)
    except NotFound:  # its owner has left the team: still their workload, no longer their books
        return None


# --- Views -------------------------------------------------------------------------------------------------


class WorkloadsView(PagedView):
    """The workloads of one's teams, and asking for new ones."""

    class Filters(Input):
        team = serializers.CharField(required=False, help_text="The id of a team; the teams below it count.")
        state = serializers.ListField(
            child=serializers.ChoiceField(WorkloadState.choices), required=False, max_length=10
        )
        kind = serializers.ChoiceField(Kind.choices, required=False)
        owner = serializers.CharField(required=False, help_text="The id of a user, or `me`.")
        tier = serializers.CharField(required=False)
        array = serializers.CharField(required=False, help_text="The id of an array: its members.")
        q = serializers.CharField(
            required=False, allow_blank=True, help_text="A part of the name, or how the id begins."
        )

    class In(Input):
        team = Text(help_text="The id of a team in which you are a member or a manager.")
        name = Text(max_length=120)
        kind = serializers.ChoiceField(Kind.choices)
        priority = Whole(min_value=-HIGHEST_PRIORITY, max_value=HIGHEST_PRIORITY, default=0)
        band = Whole(
            min_value=0,
            max_value=HIGHEST_BAND,
            default=0,
            help_text="Above 0: critical work; only where a band grant covers the team.",
        )
        preemptible = Flag(
            allow_null=True, default=None, help_text="null: only if it writes checkpoints for its training."
        )
        justification = Text(max_length=2000, allow_blank=True, default="")
        spec = SpecField()

    @extend_schema(operation_id="workloads_list", parameters=[Filters], responses=WorkloadRow(many=True))
    def get(self, request: Request) -> Response:
        actor = actor_of(request)
        asked = query(request, self.Filters, is_paged=True)
        filters = WorkloadFilters(
            team=asked.get("team", ""),
            states=tuple(asked.get("state", ())),
            kind=asked.get("kind", ""),
            owner=asked.get("owner", ""),
            tier=asked.get("tier", ""),
            search=asked.get("q", ""),
            array=asked.get("array", ""),
        )
        rows = workload_list(actor, filters)
        return self.page(request, rows, WorkloadRow, lambda page: workloads_show(actor, page))

    @extend_schema(operation_id="workloads_create", request=In, responses={201: WorkloadDetail})
    @idempotent
    def post(self, request: Request) -> Response:
        actor = actor_of(request)
        asked = body(request, self.In)
        team = team_get(actor, asked.pop("team"))
        workload = workload_submit(actor=actor, team=team, **asked)
        return Response(workload_detail(actor, workload.public_id), status=201)


class WorkloadView(APIView):
    """One workload."""

    @extend_schema(operation_id="workload_read", responses=WorkloadDetail)
    def get(self, request: Request, public_id: str) -> Response:
        return Response(workload_detail(actor_of(request), public_id))
