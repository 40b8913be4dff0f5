"""Rights to bands: who may have critical work go first, and up to how much."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpuyard.core.idempotency import idempotent
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.core.pagination import RankPages
from gpuyard.core.rest import Input, Output, PagedView, Text, Whole, actor_of, body
from scheduling.api.shapes import TeamRef, UserRef
from scheduling.bands import MOST_CAP, band_grant, band_grant_list, band_revoke, bands_used
from scheduling.policy_models import HIGHEST_BAND, BandGrant
from tenants.models import Team
from tenants.selectors import team_get


class BandGrantOut(Output):
    """A team and all below it may hold `cap` GPUs of critical work at this band or a lower one."""

    id = serializers.UUIDField(source="grant.pk")
    team = TeamRef(source="grant.team")
    band = serializers.IntegerField(source="grant.band")
    cap = serializers.FloatField()
    cap_units = serializers.IntegerField(source="grant.cap")
    used = serializers.FloatField()
    used_units = serializers.IntegerField()
    reason = serializers.CharField(source="grant.reason")
    granted_by = UserRef(source="grant.granted_by")
    created_at = serializers.DateTimeField(source="grant.created_at")
    expires_at = serializers.DateTimeField(source="grant.expires_at", allow_null=True)
    revoked_at = serializers.DateTimeField(source="grant.revoked_at", allow_null=True)


@dataclass(frozen=True)
class _Shown:
    grant: BandGrant
    used_units: int

    @property
    def cap(self) -> float:
        return self.grant.cap / UNITS_PER_GPU

    @property
    def used(self) -> float:
        return self.used_units / UNITS_PER_GPU


def _show(grants: Iterable[BandGrant]) -> list[_Shown]:
    rows = list(grants)
    used = bands_used(rows)
    return [_Shown(grant, used[grant.pk]) for grant in rows]


class BandGrantsView(PagedView):
    """The rights of one's teams and of those above them; an admin sees all, and gives new ones."""

    pagination_class = RankPages

    class In(Input):
        team = Text(help_text="The id of a team.")
        band = Whole(min_value=1, max_value=HIGHEST_BAND)
        cap_units = Whole(min_value=1, max_value=MOST_CAP, help_text="In units of 1/7000 GPU.")
        reason = Text(max_length=400)
        expires_at = serializers.DateTimeField(allow_null=True, default=None)

    @extend_schema(operation_id="band_grants_list", responses=BandGrantOut(many=True))
    def get(self, request: Request) -> Response:
        return self.page(request, band_grant_list(actor_of(request)), BandGrantOut, _show)

    @extend_schema(operation_id="band_grants_create", request=In, responses={201: BandGrantOut})
    @idempotent
    def post(self, request: Request) -> Response:
        actor, asked = actor_of(request), body(request, self.In)
        grant = _grant(actor, team_get(actor, asked["team"]), asked)
        return Response(BandGrantOut(_show([grant])[0]).data, status=201)


def _grant(actor: Any, team: Team, asked: dict[str, Any]) -> BandGrant:
    expires_at: datetime | None = asked["expires_at"]
    return band_grant(
        actor=actor,
        team=team,
        band=asked["band"],
        cap=asked["cap_units"],
        reason=asked["reason"],
        expires_at=expires_at,
    )


class BandGrantRevokeView(APIView):
    """Takes a right back. What runs goes on; what waits stands in line like all other work."""

    class In(Input):
        reason = Text(max_length=400)

    @extend_schema(operation_id="band_grant_revoke", request=In, responses=BandGrantOut)
    @idempotent
    def post(self, request: Request, grant_id: UUID) -> Response:
        grant = band_revoke(actor=actor_of(request), grant_id=grant_id, **body(request, self.In))
        return Response(BandGrantOut(_show([grant])[0]).data)
