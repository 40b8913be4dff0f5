"""Quotas and their history, grants, and requests for other quotas. Deciding, amending and withdrawing is for cases."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpuyard.core.errors import Invalid
from gpuyard.core.idempotency import idempotent
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.core.pagination import RankPages
from gpuyard.core.rest import Input, Number, Output, PagedView, Text, Whole, actor_of, body, query
from gpuyard.fleet.models import Tier
from tenants.ask_cases import units_of
from tenants.asking import (
    grant_ask,
    grant_get,
    grant_list,
    grant_renew,
    grant_revoke,
    quota_ask,
    quota_change_get,
    quota_change_list,
)
from tenants.models import AskState
from tenants.quotas import MOST_UNITS, MOST_WEIGHT, Amounts, quota_cancel, quota_history, quota_set
from tenants.selectors import team_get

_MOST_GPUS = MOST_UNITS // UNITS_PER_GPU


class _Gpus(Number):
    """GPUs, to the nearest 1/7000."""

    def __init__(self, **options: Any) -> None:
        super().__init__(min_value=0, max_value=_MOST_GPUS, **options)


class _Units(serializers.FloatField):
    """Units, shown as GPUs."""

    def to_representation(self, value: Any) -> float:  # type: ignore[override] # JSON has numbers
        return int(value) / UNITS_PER_GPU


class _TeamRef(Output):
    id = serializers.CharField(source="public_id")
    name = serializers.CharField()


class _UserRef(Output):
    id = serializers.CharField(source="public_id")
    username = serializers.CharField()


class _AmountsOut(Output):
    """In GPUs. No tier: all together. No limit: null."""

    tier = serializers.CharField(source="tier.name", allow_null=True, default=None)
    guaranteed = _Units()
    limit = _Units(allow_null=True)
    lend_limit = _Units(allow_null=True)
    weight = serializers.IntegerField()


class QuotaVersionOut(_AmountsOut):
    """It counts from `starts_at` until the next version of the same tier begins."""

    id = serializers.UUIDField()
    starts_at = serializers.DateTimeField()
    set_by = _UserRef(allow_null=True)
    reason = serializers.CharField()


class _AmountsIn(Input):
    tier = Text(allow_null=True, help_text="The name of a tier; null: all together, a limit only.")
    guaranteed = _Gpus(default=0.0)
    limit = _Gpus(allow_null=True, default=None)
    lend_limit = _Gpus(allow_null=True, default=None)
    weight = Whole(min_value=1, max_value=MOST_WEIGHT, default=1)
    starts_at = serializers.DateTimeField(allow_null=True, default=None, help_text="Null: now.")


class _TeamFilter(Input):
    team = Text(required=False, help_text="The id of a team: its own and those of the teams below it.")


def _tier(name: str | None) -> Tier | None:
    if name is None:
        return None
    found = Tier.objects.filter(name=name).first()
    if found is None:
        raise Invalid(
            "tier_unknown",
            _("There is no such tier."),
            field="tier",
            remedy=_("Choose one of the list of tiers."),
        )
    return found


def _units(gpus: float) -> int:
    return units_of(Decimal(str(gpus)))


def _amounts(asked: dict[str, Any]) -> Amounts:
    limits = {name: None if asked[name] is None else _units(asked[name]) for name in ("limit", "lend_limit")}
    return Amounts(guaranteed=_units(asked["guaranteed"]), weight=asked["weight"], **limits)


# --- Quotas ----------------------------------------------------------------------------------------------------


class QuotaVersionsView(PagedView):
    """All versions of a team's own quotas, those ahead too, the newest first; who shares out adds one."""

    pagination_class = RankPages

    class In(_AmountsIn):
        reason = Text(max_length=2000, allow_blank=True, default="")

    @extend_schema(operation_id="quota_versions", responses=QuotaVersionOut(many=True))
    def get(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        return self.page(request, quota_history(actor, team_get(actor, public_id)), QuotaVersionOut)

    @extend_schema(operation_id="quota_set", request=In, responses={201: QuotaVersionOut})
    @idempotent
    def post(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        team, asked = team_get(actor, public_id), body(request, self.In)
        amounts = _amounts(asked)
        row = quota_set(
            actor=actor,
            team=team,
            tier=_tier(asked["tier"]),
            guaranteed=amounts.guaranteed,
            limit=amounts.limit,
            lend_limit=amounts.lend_limit,
            weight=amounts.weight,
            starts_at=asked["starts_at"],
            reason=asked["reason"],
        )
        row.refresh_from_db()
        return Response(QuotaVersionOut(row).data, status=201)


class QuotaVersionView(APIView):
    """Takes back a version that has not begun."""

    @extend_schema(operation_id="quota_cancel", responses={204: None})
    def delete(self, request: Request, quota_id: UUID) -> Response:
        quota_cancel(actor=actor_of(request), quota_id=quota_id)
        return Response(status=204)


# --- Grants ----------------------------------------------------------------------------------------------------


class _AskOut(Output):
    id = serializers.CharField(source="public_id")
    team = _TeamRef()
    requester = _UserRef()
    reason = serializers.CharField()
    state = serializers.ChoiceField(AskState.choices)
    created_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)


class GrantOut(_AskOut):
    """A guarantee of so many GPUs on top of the team's own, once approved, from `starts_at` until `ends_at`."""

    tier = serializers.CharField(source="tier.name")
    gpus = _Units(source="units")
    starts_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField()
    renews = serializers.CharField(source="renews.public_id", allow_null=True, default=None)


class GrantsView(PagedView):
    """The grants of the teams that one sees, whatever became of them; and asking for one."""

    pagination_class = RankPages

    class In(Input):
        team = Text(help_text="The id of a team.")
        tier = Text()
        gpus = _Gpus()
        starts_at = serializers.DateTimeField(allow_null=True, default=None, help_text="Null: now.")
        ends_at = serializers.DateTimeField()
        reason = Text(max_length=2000)

    @extend_schema(operation_id="grants_list", parameters=[_TeamFilter], responses=GrantOut(many=True))
    def get(self, request: Request) -> Response:
        actor, asked = actor_of(request), query(request, _TeamFilter, is_paged=True)
        team = team_get(actor, asked["team"]) if "team" in asked else None
        return self.page(request, grant_list(actor, team), GrantOut)

    @extend_schema(operation_id="grants_create", request=In, responses={201: GrantOut})
    @idempotent
    def post(self, request: Request) -> Response:
        actor, asked = actor_of(request), body(request, self.In)
        team, tier = team_get(actor, asked["team"]), _tier(asked["tier"])
        assert tier is not None  # the field takes no null
        grant = grant_ask(
            actor=actor,
            team=team,
            tier=tier,
            units=_units(asked["gpus"]),
            starts_at=asked["starts_at"],
            ends_at=asked["ends_at"],
            reason=asked["reason"],
        )
        return Response(GrantOut(grant_get(actor, grant.public_id)).data, status=201)


class GrantView(APIView):
    """One grant."""

    @extend_schema(operation_id="grant_read", responses=GrantOut)
    def get(self, request: Request, public_id: str) -> Response:
        return Response(GrantOut(grant_get(actor_of(request), public_id)).data)


class GrantRenewView(APIView):
    """Asks for a grant that begins where this one ends; without `gpus`, for as many."""

    class In(Input):
        gpus = _Gpus(allow_null=True, default=None)
        ends_at = serializers.DateTimeField()
        reason = Text(max_length=2000)

    @extend_schema(operation_id="grant_renew", request=In, responses={201: GrantOut})
    @idempotent
    def post(self, request: Request, public_id: str) -> Response:
        actor, asked = actor_of(request), body(request, self.In)
        units = None if asked["gpus"] is None else _units(asked["gpus"])
        grant = grant_renew(
            actor=actor,
            grant_public_id=public_id,
            ends_at=asked["ends_at"],
            reason=asked["reason"],
            units=units,
        )
        return Response(GrantOut(grant_get(actor, grant.public_id)).data, status=201)


class GrantRevokeView(APIView):
    """Ends a grant before its time, by those who share out to the team. Nothing is stopped because of it."""

    class In(Input):
        reason = Text(max_length=2000)

    @extend_schema(operation_id="grant_revoke", request=In, responses=GrantOut)
    @idempotent
    def post(self, request: Request, public_id: str) -> Response:
        reason = body(request, self.In)["reason"]
        grant = grant_revoke(actor=actor_of(request), grant_public_id=public_id, reason=reason)
        return Response(GrantOut(grant).data)


# --- Changes of quotas -------------------------------------------------------------------------------------------


class QuotaChangeOut(_AskOut, _AmountsOut):
    """No `starts_at`: as soon as it is approved."""

    starts_at = serializers.DateTimeField(allow_null=True)


class QuotaChangesView(PagedView):
    """The other quotas that teams have asked for, whatever became of it; and asking for one."""

    pagination_class = RankPages

    class In(_AmountsIn):
        team = Text(help_text="The id of a team.")
        reason = Text(max_length=2000)

    @extend_schema(
        operation_id="quota_changes_list", parameters=[_TeamFilter], responses=QuotaChangeOut(many=True)
    )
    def get(self, request: Request) -> Response:
        actor, asked = actor_of(request), query(request, _TeamFilter, is_paged=True)
        team = team_get(actor, asked["team"]) if "team" in asked else None
        return self.page(request, quota_change_list(actor, team), QuotaChangeOut)

    @extend_schema(operation_id="quota_changes_create", request=In, responses={201: QuotaChangeOut})
    @idempotent
    def post(self, request: Request) -> Response:
        actor, asked = actor_of(request), body(request, self.In)
        change = quota_ask(
            actor=actor,
            team=team_get(actor, asked["team"]),
            tier=_tier(asked["tier"]),
            amounts=_amounts(asked),
            starts_at=asked["starts_at"],
            reason=asked["reason"],
        )
        return Response(QuotaChangeOut(quota_change_get(actor, change.public_id)).data, status=201)


class QuotaChangeView(APIView):
    """One change that was asked for."""

    @extend_schema(operation_id="quota_change_read", responses=QuotaChangeOut)
    def get(self, request: Request, public_id: str) -> Response:
        return Response(QuotaChangeOut(quota_change_get(actor_of(request), public_id)).data)
