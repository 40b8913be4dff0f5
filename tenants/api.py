"""Oneself, teams and their people, and tokens. The log is in `tenants.log_api`."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpuyard.core.pagination import RankPages
from gpuyard.core.rest import Input, Output, PagedView, Text, Whole, actor_of, body
from tenants.directory import teams_describe, teams_joined
from tenants.models import ApiToken, Role, ServiceAccount
from tenants.scopes import TOKEN_SCOPES
from tenants.selectors import member_list, team_get, teams_visible, token_list
from tenants.tokens import MOST_NETWORKS, token_create, token_revoke

# --- Teams -------------------------------------------------------------------------------------------------


class CompanyRef(Output):
    """A company owns currency and time zone."""

    id = serializers.CharField(source="public_id")
    name = serializers.CharField()
    currency = serializers.CharField()
    time_zone = serializers.CharField()


class TeamOut(Output):
    """`path` holds the names from the company down; `roles` are one's own, those from above included."""

    id = serializers.CharField(source="team.public_id")
    name = serializers.CharField(source="team.name")
    parent = serializers.CharField(  # type: ignore[assignment] # a declared field: the class keeps its own
        source="team.parent.public_id", allow_null=True, default=None
    )
    company = CompanyRef(source="team.company")
    path = serializers.ListField(child=serializers.CharField())
    roles = serializers.ListField(child=serializers.ChoiceField(Role.choices))


class MeView(APIView):
    """Who one is here, and on which teams."""

    class Out(Output):
        username = serializers.CharField()
        public_id = serializers.CharField()
        is_platform_admin = serializers.BooleanField()
        teams = TeamOut(many=True)

    @extend_schema(operation_id="me", responses=Out)
    def get(self, request: Request) -> Response:
        actor = actor_of(request)
        facts = {
            "username": actor.username,
            "public_id": actor.public_id,
            "is_platform_admin": actor.is_platform_admin,
            "teams": teams_describe(actor, teams_joined(actor)),
        }
        return Response(self.Out(facts).data)


class TeamsView(PagedView):
    """The teams that one may see; a team comes after the one above it."""

    pagination_class = RankPages

    @extend_schema(operation_id="teams_list", responses=TeamOut(many=True))
    def get(self, request: Request) -> Response:
        actor = actor_of(request)
        teams = teams_visible(actor).select_related("parent", "company")
        return self.page(request, teams, TeamOut, lambda page: teams_describe(actor, page))


class TeamView(APIView):
    """One team."""

    @extend_schema(operation_id="team_read", responses=TeamOut)
    def get(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        (shown,) = teams_describe(actor, [team_get(actor, public_id)])
        return Response(TeamOut(shown).data)


class MemberOut(Output):
    username = serializers.CharField(source="user.username")
    public_id = serializers.CharField(source="user.public_id")
    role = serializers.ChoiceField(Role.choices)
    since = serializers.DateTimeField(source="created_at")


class MembersView(PagedView):
    """Who has which role on the team itself; roles on the teams above it count as well."""

    pagination_class = RankPages

    @extend_schema(operation_id="team_members", responses=MemberOut(many=True))
    def get(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        return self.page(request, member_list(actor, team_get(actor, public_id)), MemberOut)


# --- Tokens ------------------------------------------------------------------------------------------------


class TokenOut(Output):
    """`prefix` is how the token begins."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    prefix = serializers.CharField()
    scopes = serializers.ListField(child=serializers.ChoiceField(TOKEN_SCOPES))
    networks = serializers.ListField(child=serializers.CharField())
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    revoked_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)
    last_used_from = serializers.CharField()


class TokenMade(TokenOut):
    """`secret` is shown this once."""

    secret = serializers.CharField()


class TokenIn(Input):
    """`networks`: from where it works, such as 10.1.0.0/16; none: from anywhere."""

    name = Text(max_length=80)
    scopes = serializers.ListField(
        child=serializers.ChoiceField(TOKEN_SCOPES), min_length=1, max_length=len(TOKEN_SCOPES)
    )
    lifetime_days = Whole(min_value=1, max_value=366, default=30)
    networks = serializers.ListField(child=Text(max_length=60), max_length=MOST_NETWORKS, default=list)


def token_made(request: Request, account: ServiceAccount | None = None) -> Response:
    """A new token as it was asked for, with its secret."""
    asked = body(request, TokenIn)
    token, secret = token_create(
        actor=actor_of(request),
        name=asked["name"],
        scopes=asked["scopes"],
        lifetime=timedelta(days=asked["lifetime_days"]),
        networks=asked["networks"],
        made_with=request.auth if isinstance(request.auth, ApiToken) else None,
        account=account,
    )
    token.refresh_from_db()
    return Response({**TokenOut(token).data, "secret": secret}, status=201)


class TokensView(PagedView):
    """One's own tokens."""

    @extend_schema(operation_id="tokens_list", responses=TokenOut(many=True))
    def get(self, request: Request) -> Response:
        return self.page(request, token_list(actor_of(request)), TokenOut)

    # No Idempotency-Key: the stored answer would keep the secret for a day.
    @extend_schema(operation_id="tokens_create", request=TokenIn, responses={201: TokenMade})
    def post(self, request: Request) -> Response:
        return token_made(request)


class TokenView(APIView):
    """Revokes a token; a second time changes nothing."""

    @extend_schema(operation_id="token_revoke", responses={204: None})
    def delete(self, request: Request, token_id: UUID) -> Response:
        token_revoke(actor=actor_of(request), token_id=token_id)
        return Response(status=204)
