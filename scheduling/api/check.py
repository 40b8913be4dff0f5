"""What would become of a request, before it is sent."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.core.rest import Amount, Flag, Input, Output, Text, Whole, actor_of, body
from scheduling.api.shapes import SpecField, TeamRef
from scheduling.bands import band_check
from scheduling.checks import request_check
from scheduling.models import Kind
from scheduling.policy_models import HIGHEST_BAND
from scheduling.services import HIGHEST_PRIORITY
from scheduling.usage import QuotaCheck
from tenants.selectors import team_get


class QuotaCheckOut(Output):
    """In GPUs. `room` is what the tightest limit leaves; null: no limit."""

    tier = serializers.CharField()
    asked = serializers.FloatField()
    used = serializers.FloatField()
    guaranteed = serializers.FloatField()
    room = serializers.FloatField(allow_null=True)
    is_within_guarantee = serializers.BooleanField()
    is_within_limit = serializers.BooleanField()
    text = serializers.CharField()


def _quota(check: QuotaCheck) -> dict[str, Any]:
    units = {name: getattr(check, name) for name in ("asked", "used", "guaranteed", "room")}
    gpus = {name: None if value is None else value / UNITS_PER_GPU for name, value in units.items()}
    return {
        **gpus,
        "tier": check.tier.name,
        "is_within_guarantee": check.is_within_guarantee,
        "is_within_limit": check.is_within_limit,
        "text": check.text(),
    }


class ApproverOut(Output):
    """No team and no group: the platform admins."""

    role = serializers.CharField()
    team = TeamRef(allow_null=True)
    group = serializers.CharField(source="group.name", allow_null=True, default=None)
    people = serializers.ListField(child=serializers.CharField(), help_text="Their user names.")


class StageAskedOut(Output):
    """Who is asked at the same time: `all` of them decide, or `any` one."""

    needs = serializers.ChoiceField(["all", "any"])
    deadline_h = serializers.IntegerField(allow_null=True)
    approvers = ApproverOut(many=True)


class ApprovalOut(Output):
    """Nobody is asked where the rule is `auto`. `approvers` are those of all stages."""

    rule = serializers.CharField()
    auto = serializers.BooleanField(source="is_auto")
    approvers = ApproverOut(many=True)
    stages = StageAskedOut(many=True)


class EstimateOut(Output):
    """No total without a time limit."""

    currency = serializers.CharField()
    hourly = Amount(places=4)
    total = Amount(places=2, allow_null=True)


class SupplyOut(Output):
    tier = serializers.CharField(source="tier.name")
    total = serializers.IntegerField()
    free = serializers.IntegerField()
    largest_block = serializers.IntegerField()
    largest_node = serializers.IntegerField()


class RequestCheckView(APIView):
    """Takes what would be asked for, stores nothing, and says what would become of it."""

    class In(Input):
        team = Text()
        kind = serializers.ChoiceField(Kind.choices)
        spec = SpecField()
        priority = Whole(min_value=-HIGHEST_PRIORITY, max_value=HIGHEST_PRIORITY, default=0)
        band = Whole(min_value=0, max_value=HIGHEST_BAND, default=0)
        name = Text(max_length=120, required=False, allow_blank=True)
        preemptible = Flag(allow_null=True, default=None)
        justification = Text(max_length=2000, allow_blank=True, default="")

    class Out(Output):
        fits_quota = serializers.BooleanField()
        fits_guarantee = serializers.BooleanField()
        fits_now = serializers.BooleanField()
        quota = QuotaCheckOut(many=True)
        approval = ApprovalOut()
        estimate = EstimateOut(allow_null=True)
        supply = SupplyOut(many=True)
        never_fits = serializers.ListField(
            child=serializers.CharField(), help_text="Why it could never start; empty if it could."
        )
        as_of = serializers.DateTimeField()

    @extend_schema(operation_id="request_check", request=In, responses=Out)
    def post(self, request: Request) -> Response:
        actor, asked = actor_of(request), body(request, self.In)
        team = team_get(actor, asked["team"])
        band = band_check(team, asked["band"])
        check = request_check(
            actor, team, kind=asked["kind"], spec=asked["spec"], priority=asked["priority"], band=band
        )
        names = (
            "fits_quota",
            "fits_guarantee",
            "fits_now",
            "approval",
            "estimate",
            "supply",
            "never_fits",
            "as_of",
        )
        facts = {name: getattr(check, name) for name in names}
        return Response(self.Out({**facts, "quota": [_quota(one) for one in check.quota]}).data)
