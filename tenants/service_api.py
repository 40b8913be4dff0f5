"""Service accounts of teams, and their tokens."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpuyard.core.pagination import RankPages
from gpuyard.core.rest import Input, Output, PagedView, Text, actor_of, body
from tenants.api import TokenIn, TokenMade, TokenOut, token_made
from tenants.models import Role
from tenants.selectors import team_get
from tenants.service_accounts import (
    service_account_close,
    service_account_create,
    service_account_get,
    service_account_list,
    service_token_list,
)


class ServiceAccountOut(Output):
    """`username` is how it stands in lists and in the log."""

    id = serializers.CharField(source="user.public_id")
    name = serializers.CharField()
    username = serializers.CharField(source="user.username")
    team = serializers.CharField(source="team.public_id")
    created_at = serializers.DateTimeField()


class ServiceAccountsView(PagedView):
    """Those of the teams that one manages or audits."""

    pagination_class = RankPages

    class In(Input):
        team = Text(max_length=16)
        name = Text(max_length=40)
        role = serializers.ChoiceField(Role.choices, default=Role.MEMBER)

    @extend_schema(operation_id="service_accounts_list", responses=ServiceAccountOut(many=True))
    def get(self, request: Request) -> Response:
        return self.page(request, service_account_list(actor_of(request)), ServiceAccountOut)

    @extend_schema(operation_id="service_accounts_create", request=In, responses={201: ServiceAccountOut})
    def post(self, request: Request) -> Response:
        asked, actor = body(request, self.In), actor_of(request)
        team = team_get(actor, asked["team"])
        account = service_account_create(actor=actor, team=team, name=asked["name"], role=asked["role"])
        account.refresh_from_db()
        return Response(ServiceAccountOut(account).data, status=201)


class ServiceAccountView(APIView):
    """One of them; it is closed for good, with all its tokens."""

    @extend_schema(operation_id="service_account_read", responses=ServiceAccountOut)
    def get(self, request: Request, public_id: str) -> Response:
        return Response(ServiceAccountOut(service_account_get(actor_of(request), public_id)).data)

    @extend_schema(operation_id="service_account_close", responses={204: None})
    def delete(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        service_account_close(actor=actor, account=service_account_get(actor, public_id))
        return Response(status=204)


class ServiceTokensView(PagedView):
    """The tokens of a service account; each is revoked as one's own are."""

    @extend_schema(operation_id="service_tokens_list", responses=TokenOut(many=True))
    def get(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        return self.page(request, service_token_list(actor, service_account_get(actor, public_id)), TokenOut)

    # No Idempotency-Key: the stored answer would keep the secret for a day.
    @extend_schema(operation_id="service_tokens_create", request=TokenIn, responses={201: TokenMade})
    def post(self, request: Request, public_id: str) -> Response:
        return token_made(request, service_account_get(actor_of(request), public_id))
