"""The scheduling policy: read by admins and auditors, changed by admins; each change is a new version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpuyard.core.idempotency import idempotent
from gpuyard.core.pagination import RankPages
from gpuyard.core.rest import Anything, Document, Input, Output, PagedView, Text, Whole, actor_of, body
from scheduling.api.shapes import UserRef
from scheduling.policies import LARGEST_NUMBER, policy_history, policy_rollback, policy_set, policy_state
from scheduling.policy_document import FIELDS, SchedulingDocument
from scheduling.policy_preview import policy_preview

_CHANGES = {
    "type": "object",
    "description": "The fields that change; the others stay as they are.",
    "properties": {
        name: {key: value for key, value in part.items() if key != "default"}
        for name, part in SchedulingDocument.model_json_schema()["properties"].items()
    },
    "additionalProperties": False,
}


@extend_schema_field(_CHANGES)
class Changes(serializers.Field[Mapping[str, Any], Any, Any, Any]):
    """Some fields of the document. `scheduling.policies` checks them and names every wrong one."""

    def to_internal_value(self, data: Any) -> Any:
        return data

    def to_representation(self, value: Mapping[str, Any]) -> Any:
        return value


class PolicyVersionOut(Output):
    """Number 0 is what GPU Yard was installed with: it has no author and no time."""

    number = serializers.IntegerField()
    document = Document()
    author = UserRef(allow_null=True)
    note = serializers.CharField()
    created_at = serializers.DateTimeField(allow_null=True)


class PolicyRuleOut(Output):
    """What a field of the document means, and what it may be."""

    name = serializers.CharField()
    kind = serializers.ChoiceField(["flag", "whole", "number", "choice", "numbers"])
    may_be_null = serializers.BooleanField(source="may_be_empty")
    default = Anything()
    text = serializers.CharField(source="words.help")
    least = serializers.IntegerField(source="words.least")
    most = serializers.IntegerField(source="words.most")
    choices = serializers.ListField(child=serializers.CharField(), source="words.choices")


class PolicyNow(PolicyVersionOut):
    rules = PolicyRuleOut(many=True)


class SchedulingPolicyView(APIView):
    """The policy in force, with the meaning and the bounds of each rule."""

    @extend_schema(operation_id="scheduling_policy", responses=PolicyNow)
    def get(self, request: Request) -> Response:
        state = policy_state(actor_of(request))
        return Response(PolicyNow({**vars(state), "rules": FIELDS}).data)


class PolicyVersionsView(PagedView):
    """All versions, the newest first; and changing the policy, which appends one."""

    pagination_class = RankPages

    class In(Input):
        based_on = Whole(
            min_value=0, max_value=LARGEST_NUMBER, help_text="The version that the change was made from."
        )
        changes = Changes()
        reason = Text(max_length=400)

    @extend_schema(operation_id="scheduling_policy_versions", responses=PolicyVersionOut(many=True))
    def get(self, request: Request) -> Response:
        return self.page(request, policy_history(actor_of(request)), PolicyVersionOut)

    @extend_schema(operation_id="scheduling_policy_set", request=In, responses={201: PolicyVersionOut})
    @idempotent
    def post(self, request: Request) -> Response:
        state = policy_set(actor=actor_of(request), **body(request, self.In))
        return Response(PolicyVersionOut(state).data, status=201)


class PolicyVersionView(APIView):
    """One version."""

    @extend_schema(operation_id="scheduling_policy_version", responses=PolicyVersionOut)
    def get(self, request: Request, number: int) -> Response:
        return Response(PolicyVersionOut(policy_state(actor_of(request), number)).data)


class PolicyRollbackView(APIView):
    """Appends a version that says what this one says."""

    class In(Input):
        based_on = Whole(min_value=0, max_value=LARGEST_NUMBER, help_text="The version in force.")
        reason = Text(max_length=400)

    @extend_schema(operation_id="scheduling_policy_rollback", request=In, responses={201: PolicyVersionOut})
    @idempotent
    def post(self, request: Request, number: int) -> Response:
        state = policy_rollback(actor=actor_of(request), number=number, **body(request, self.In))
        return Response(PolicyVersionOut(state).data, status=201)


class WaitOut(Output):
    blockers = serializers.ListField(child=serializers.CharField())
    eta = serializers.DateTimeField(allow_null=True)


class PreviewRowOut(Output):
    """`starts_not`, `stops_not`: would with the rules in force, and would not with the changed ones."""

    what = serializers.ChoiceField(["starts", "starts_not", "stops", "stops_not", "waits"])
    workload = serializers.CharField(source="public_id")
    name = serializers.CharField()
    team = serializers.CharField()
    before = WaitOut(allow_null=True)
    after = WaitOut(allow_null=True)


class PolicyChangeOut(Output):
    name = serializers.CharField()
    old = Anything()
    new = Anything()


class PolicyPreviewView(APIView):
    """What the next pass would do otherwise with these changes. Changes nothing."""

    class In(Input):
        changes = Changes()

    class Out(Output):
        """Pairs count with the rules in force and with the changed ones; `left_out` rows are not listed."""

        as_of = serializers.DateTimeField()
        based_on = serializers.IntegerField()
        changes = PolicyChangeOut(many=True)
        starts = serializers.ListField(child=serializers.IntegerField())
        stops = serializers.ListField(child=serializers.IntegerField())
        waits = serializers.ListField(child=serializers.IntegerField())
        rows = PreviewRowOut(many=True)
        left_out = serializers.IntegerField()

    @extend_schema(operation_id="scheduling_policy_preview", request=In, responses=Out)
    def post(self, request: Request) -> Response:
        preview = policy_preview(actor=actor_of(request), **body(request, self.In))
        return Response(self.Out(preview).data)
