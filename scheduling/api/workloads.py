"""What is done with a workload once it is there: stopping it, its output, its timeline; and the queue."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpuyard.audit.api import EventOut
from gpuyard.core.idempotency import idempotent
from gpuyard.core.pagination import RankPages
from gpuyard.core.rest import Flag, Input, Output, PagedView, Text, actor_of, body, query
from scheduling.api.shapes import WorkloadRow, workloads_show
from scheduling.outputs import stream_read
from scheduling.selectors import queue_list, workload_events, workload_get
from scheduling.services import array_stop, workload_stop


class WorkloadStopView(APIView):
    """Takes a workload back, whatever state it is in."""

    class In(Input):
        reason = Text(max_length=400, allow_blank=True, default="")
        whole_array = Flag(default=False, help_text="Every member of its array that has not ended.")

    @extend_schema(operation_id="workload_stop", request=In, responses=WorkloadRow)
    @idempotent
    def post(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        workload = workload_get(actor, public_id)
        asked = body(request, self.In)
        stop = array_stop if asked["whole_array"] else workload_stop
        stop(actor=actor, workload=workload, reason=asked["reason"])
        (shown,) = workloads_show(actor, [workload_get(actor, public_id)])
        return Response(WorkloadRow(shown).data)


class WorkloadLogView(APIView):
    """The output of one replica. Ask again with `after` set to `next_offset` until it has `ended`."""

    class Filters(Input):
        replica = serializers.IntegerField(min_value=0, max_value=1023, default=0)
        stream = serializers.ChoiceField(["stdout", "stderr"], default="stdout")
        after = serializers.IntegerField(
            min_value=0, max_value=2**62, default=0, help_text="A byte offset, from `next_offset`."
        )
        attempt = serializers.IntegerField(
            min_value=1, max_value=2**31 - 1, required=False, help_text="The latest one, unless named."
        )

    class Out(Output):
        text = serializers.CharField()
        next_offset = serializers.IntegerField()
        ended = serializers.BooleanField(source="is_ended")
        attempt = serializers.IntegerField(allow_null=True)

    @extend_schema(operation_id="workload_log", parameters=[Filters], responses=Out)
    def get(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        asked = query(request, self.Filters)
        piece = stream_read(
            actor,
            workload_get(actor, public_id),
            replica_index=asked["replica"],
            stream=asked["stream"],
            after=asked["after"],
            attempt_number=asked.get("attempt"),
        )
        return Response(self.Out(piece).data)


class WorkloadEventsView(PagedView):
    """What happened to the workload, its case, attempts and replicas; the newest first."""

    @extend_schema(operation_id="workload_events", responses=EventOut(many=True))
    def get(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        events = workload_events(actor, workload_get(actor, public_id))
        return self.page(request, events, EventOut)


class QueueView(PagedView):
    """One's waiting workloads as the last pass had them in line. The line moves: a page may repeat a row."""

    pagination_class = RankPages

    @extend_schema(operation_id="queue", responses=WorkloadRow(many=True))
    def get(self, request: Request) -> Response:
        actor = actor_of(request)
        return self.page(request, queue_list(actor), WorkloadRow, lambda page: workloads_show(actor, page))
