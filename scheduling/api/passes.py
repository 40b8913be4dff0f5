"""The scheduler's passes, for platform admins: what each did, and whether it gives the same plan again."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpuyard.core.pagination import RankPages
from gpuyard.core.rest import (
    Anything,
    Document,
    Input,
    Output,
    PagedView,
    actor_of,
    query,
)
from scheduling.api.shapes import TeamRef
from scheduling.explanations import attempts_reasons, evictions_texts
from scheduling.history import pass_decisions, pass_get, pass_list
from scheduling.models import Attempt, Eviction
from scheduling.records import pass_replay


class PassOut(Output):
    """What one pass did, and how long its steps took. `refused`: what was planned but changed meanwhile."""

    number = serializers.IntegerField()
    started_at = serializers.DateTimeField()
    load_ms = serializers.FloatField()
    plan_ms = serializers.FloatField()
    commit_ms = serializers.FloatField()
    waiting = serializers.IntegerField()
    started = serializers.IntegerField()
    claimed = serializers.IntegerField()
    stopped = serializers.IntegerField()
    grown = serializers.IntegerField()
    refused = serializers.ListField(child=Anything())
    engine_version = serializers.CharField()
    plan_digest = serializers.CharField()


class PassesView(PagedView):
    """The scheduler's last passes, for platform admins."""

    pagination_class = RankPages

    class Filters(Input):
        with_stops = serializers.BooleanField(
            default=False, help_text="Only passes that took something back."
        )

    @extend_schema(operation_id="passes_list", parameters=[Filters], responses=PassOut(many=True))
    def get(self, request: Request) -> Response:
        asked = query(request, self.Filters, is_paged=True)
        return self.page(request, pass_list(actor_of(request), with_stops=asked["with_stops"]), PassOut)


class WorkloadRef(Output):
    id = serializers.CharField(source="public_id")
    name = serializers.CharField()
    team = TeamRef()


class PassStartOut(Output):
    """`reason`: why it started then and there, in words."""

    workload = WorkloadRef()
    tier = serializers.CharField(source="tier.name")
    borrowed = serializers.BooleanField()
    nodes = serializers.ListField(child=serializers.CharField())
    reason = serializers.CharField()


class PassStopOut(Output):
    """Taken back for `gainer`; with `replicas`, only these. `why` holds what was lost and what was weighed."""

    workload = WorkloadRef()
    reason = serializers.CharField()
    text = serializers.CharField(help_text="Who gained, what was lost and why it was this one.")
    gainer = WorkloadRef(source="gained_by", allow_null=True)
    replicas = serializers.ListField(child=serializers.IntegerField(), allow_null=True)
    lost_gpu_s = serializers.IntegerField()
    why = Document()
    at = serializers.DateTimeField()


class PassDetail(PassOut):
    """`claims`: starts that wait until others have left. `snapshot_bytes`: 0 if it is not kept any more."""

    snapshot_bytes = serializers.IntegerField()
    policy = Anything()
    starts = PassStartOut(many=True)
    claims = PassStartOut(many=True)
    stops = PassStopOut(many=True)


class PassView(APIView):
    """One pass: its starts, claims and stops, each with its reasons."""

    @extend_schema(operation_id="pass_read", responses=PassDetail)
    def get(self, request: Request, number: int) -> Response:
        actor = actor_of(request)
        record = pass_get(actor, number)
        made = pass_decisions(actor, record)
        reasons = attempts_reasons([*made.starts, *made.claims]) | evictions_texts(actor, made.stops)
        shown: dict[str, Any] = {
            **PassOut(record).data,
            "snapshot_bytes": record.snapshot_bytes if record.snapshot is not None else 0,
            "policy": record.policy,
            "starts": [_start(one, reasons[one.pk]) for one in made.starts],
            "claims": [_start(one, reasons[one.pk]) for one in made.claims],
            "stops": [_stop(one, reasons[one.pk]) for one in made.stops],
        }
        return Response(PassDetail(shown).data)


def _start(attempt: Attempt, reason: str) -> dict[str, Any]:
    return {
        "workload": attempt.workload,
        "tier": attempt.tier,
        "borrowed": attempt.borrowed,
        "nodes": list(dict.fromkeys(replica.node.name for replica in attempt.replicas.all())),
        "reason": reason,
    }


def _stop(eviction: Eviction, reason: str) -> dict[str, Any]:
    names = ("workload", "reason", "gained_by", "replicas", "lost_gpu_s", "why", "at")
    return {name: getattr(eviction, name) for name in names} | {"text": reason}


class PassReplayView(APIView):
    """Plans again from what the pass stored, and compares. Changes nothing."""

    class Out(Output):
        """`engine_changed`: the engine is another one by now, so that its plan may differ."""

        number = serializers.IntegerField()
        same = serializers.BooleanField(source="is_same")
        engine_changed = serializers.BooleanField(source="is_other_engine")
        stored_digest = serializers.CharField()
        digest = serializers.CharField()
        starts = serializers.IntegerField()
        claims = serializers.IntegerField()
        stops = serializers.IntegerField()
        grown = serializers.IntegerField()
        verdicts = serializers.IntegerField()
        took_ms = serializers.FloatField()

    @extend_schema(operation_id="pass_replay", responses=Out)
    def get(self, request: Request, number: int) -> Response:
        found = pass_replay(pass_get(actor_of(request), number))
        return Response(self.Out(found).data)
