"""A company's approval rules: in force, earlier versions, trying a change, and which rule would decide."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpuyard.api.case_shapes import ChangeOut
from gpuyard.core.errors import Invalid
from gpuyard.core.idempotency import idempotent
from gpuyard.core.pagination import RankPages
from gpuyard.core.rest import Flag, Input, Output, PagedView, Text, Whole, actor_of, body
from scheduling.api.check import StageAskedOut
from scheduling.api.shapes import TeamRef, UserRef
from tenants.policies import ApprovalDocument, Facts
from tenants.rules import (
    LARGEST_NUMBER,
    approval_policy_activate,
    approval_policy_get,
    approval_policy_list,
    approval_policy_preview,
    approval_policy_rollback,
    rule_preview,
)
from tenants.selectors import company_get, team_get


@extend_schema_field(ApprovalDocument)  # type: ignore[arg-type] # `gpuyard.api.schema` describes it
class RulesField(serializers.Field[Any, Any, Any, Any]):
    """The rules. `tenants.policies` checks them and names every wrong field."""

    def to_internal_value(self, data: Any) -> Any:
        return data

    def to_representation(self, value: Any) -> Any:
        return ApprovalDocument.model_validate(value).model_dump(mode="json")


class RulesVersionOut(Output):
    version = serializers.IntegerField()
    is_active = serializers.BooleanField(source="active")
    document = RulesField()
    author = UserRef(source="created_by", allow_null=True)
    note = serializers.CharField()
    created_at = serializers.DateTimeField()


class ApprovalPolicyView(APIView):
    """The rules in force in a company, for everybody who has a role in it."""

    @extend_schema(operation_id="approval_policy", responses=RulesVersionOut)
    def get(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        found = approval_policy_get(actor, company_get(actor, public_id))
        return Response(RulesVersionOut(found).data)


class ApprovalPolicyVersionsView(PagedView):
    """All versions, the newest first; and changing the rules, which appends one. Open cases keep their own."""

    pagination_class = RankPages

    class In(Input):
        based_on = Whole(
            min_value=0, max_value=LARGEST_NUMBER, help_text="The version that the change was made from."
        )
        document = RulesField()
        reason = Text(max_length=400)

    @extend_schema(operation_id="approval_policy_versions", responses=RulesVersionOut(many=True))
    def get(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        return self.page(request, approval_policy_list(actor, company_get(actor, public_id)), RulesVersionOut)

    @extend_schema(operation_id="approval_policy_set", request=In, responses={201: RulesVersionOut})
    @idempotent
    def post(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        company = company_get(actor, public_id)
        asked = body(request, self.In)
        made = approval_policy_activate(
            actor=actor,
            company=company,
            document=asked["document"],
            based_on=asked["based_on"],
            note=asked["reason"],
        )
        return Response(_fresh(actor, company, made.version), status=201)


class ApprovalPolicyVersionView(APIView):
    """One version."""

    @extend_schema(operation_id="approval_policy_version", responses=RulesVersionOut)
    def get(self, request: Request, public_id: str, number: int) -> Response:
        actor = actor_of(request)
        return Response(_fresh(actor, company_get(actor, public_id), number))


class ApprovalPolicyRollbackView(APIView):
    """Appends a version that says what this one says."""

    class In(Input):
        based_on = Whole(min_value=0, max_value=LARGEST_NUMBER, help_text="The version in force.")
        reason = Text(max_length=400)

    @extend_schema(operation_id="approval_policy_rollback", request=In, responses={201: RulesVersionOut})
    @idempotent
    def post(self, request: Request, public_id: str, number: int) -> Response:
        actor = actor_of(request)
        company = company_get(actor, public_id)
        asked = body(request, self.In)
        made = approval_policy_rollback(
            actor=actor,
            company=company,
            version=number,
            based_on=asked["based_on"],
            note=asked["reason"],
        )
        return Response(_fresh(actor, company, made.version), status=201)


def _fresh(actor: Any, company: Any, version: int) -> dict[str, Any]:
    return dict(RulesVersionOut(approval_policy_get(actor, company, version)).data)


class CaseUnderOut(Output):
    """An open case that would be decided otherwise if it were asked today. It keeps its rule."""

    case = serializers.CharField(source="case.public_id")
    label = serializers.CharField(source="case.subject_label")  # type: ignore[assignment] # as in SubjectOut
    requester = UserRef(source="case.requester")
    team = TeamRef(source="case.team")
    old_rule = serializers.CharField(source="case.rule")
    new_rule = serializers.CharField(source="rule")
    new_is_auto = serializers.BooleanField(source="is_auto")


class ApprovalPolicyPreviewView(APIView):
    """What other rules would change, and which open cases they would decide otherwise. Changes nothing."""

    class In(Input):
        document = RulesField()

    class Out(Output):
        based_on = serializers.IntegerField()
        changes = ChangeOut(many=True)
        open_cases = serializers.IntegerField()
        cases = CaseUnderOut(many=True)

    @extend_schema(operation_id="approval_policy_preview", request=In, responses=Out)
    def post(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        company = company_get(actor, public_id)
        preview = approval_policy_preview(
            actor=actor, company=company, document=body(request, self.In)["document"]
        )
        return Response(self.Out(preview).data)


class ApprovalPolicyMatchView(APIView):
    """Which rule would decide on a request of one's own with these facts, asked now, and whom it would ask."""

    class In(Input):
        team = Text(help_text="The id of a team of the company.")
        kind = Text(max_length=40)
        tiers = serializers.ListField(child=Text(max_length=80), default=list, max_length=16)
        gpu_count = Whole(min_value=0, max_value=LARGEST_NUMBER, default=0)
        hours = serializers.DecimalField(max_digits=12, decimal_places=2, allow_null=True, default=None)
        estimated_cost = serializers.DecimalField(
            max_digits=16, decimal_places=2, allow_null=True, default=None
        )
        budget_left = serializers.DecimalField(max_digits=16, decimal_places=2, allow_null=True, default=None)
        over_quota = Flag(default=False)
        priority = Whole(min_value=-1000, max_value=1000, default=0)
        band = Whole(min_value=0, max_value=9, default=0)

    class Out(Output):
        rule = serializers.CharField()
        auto = serializers.BooleanField()
        stages = StageAskedOut(many=True)

    @extend_schema(operation_id="approval_policy_match", request=In, responses=Out)
    def post(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        company = company_get(actor, public_id)
        asked = body(request, self.In)
        team = team_get(actor, asked.pop("team"))
        if team.company_id != company.pk:
            raise Invalid("team_elsewhere", "The team is of another company.", field="team")
        facts = Facts(**{**asked, "tiers": tuple(asked["tiers"])})
        match, stages = rule_preview(actor, team, facts)
        return Response(self.Out({"rule": match.rule, "auto": match.is_auto, "stages": stages}).data)
