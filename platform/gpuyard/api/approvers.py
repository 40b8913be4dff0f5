"""Who stands in for whom, and the groups that approval rules name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpuyard.core.idempotency import idempotent
from gpuyard.core.pagination import RankPages
from gpuyard.core.rest import Input, Output, PagedView, Text, actor_of, body, query
from scheduling.api.shapes import TeamRef, UserRef
from tenants.delegations import (
    delegation_create,
    delegation_list,
    delegation_revoke,
    group_create,
    group_delete,
    group_get,
    group_list,
    group_set_people,
    people_of,
)
from tenants.models import Delegation, Team
from tenants.selectors import company_get, team_get

_MOST_PEOPLE = 200


class DelegationOut(Output):
    """No kinds or teams named: it covers all. Teams mean those below them, too."""

    id = serializers.UUIDField()
    company = TeamRef()
    person = UserRef()
    delegate = UserRef()
    starts_at = serializers.DateTimeField(source="span.lower")
    ends_at = serializers.DateTimeField(source="span.upper")
    kinds = serializers.ListField(child=serializers.CharField())
    teams = TeamRef(many=True, source="shown_teams")
    reason = serializers.CharField()
    created_by = UserRef()
    created_at = serializers.DateTimeField()
    revoked_at = serializers.DateTimeField(allow_null=True)


def _show(delegations: Iterable[Delegation]) -> list[Delegation]:
    rows = list(delegations)
    teams = Team.objects.in_bulk({key for row in rows for key in row.teams})
    for row in rows:
        row.shown_teams = [teams[key] for key in row.teams if key in teams]  # type: ignore[attr-defined] # read by DelegationOut only
    return rows


class DelegationsView(PagedView):
    """Where one stands in for somebody, or somebody for oneself; newest first. An admin sees all."""

    pagination_class = RankPages

    class In(Input):
        company = Text(help_text="The id of the company.")
        delegate = Text(help_text="The id of who decides meanwhile: somebody with a role in the company.")
        person = Text(required=False, help_text="For whom: oneself, unless an admin sets it for others.")
        starts_at = serializers.DateTimeField()
        ends_at = serializers.DateTimeField()
        kinds = serializers.ListField(child=Text(max_length=40), default=list, max_length=40)
        teams = serializers.ListField(child=Text(max_length=16), default=list, max_length=100)
        reason = Text(max_length=400, allow_blank=True, default="")

    @extend_schema(operation_id="delegations_list", responses=DelegationOut(many=True))
    def get(self, request: Request) -> Response:
        return self.page(request, delegation_list(actor_of(request)), DelegationOut, _show)

    @extend_schema(operation_id="delegations_create", request=In, responses={201: DelegationOut})
    @idempotent
    def post(self, request: Request) -> Response:
        actor, asked = actor_of(request), body(request, self.In)
        company = company_get(actor, asked.pop("company"))
        (delegate,) = people_of(actor, company, [asked.pop("delegate")], field="delegate")
        named = asked.pop("person", None)
        person = people_of(actor, company, [named], field="person")[0] if named else None
        teams = [team_get(actor, one) for one in asked.pop("teams")]
        made = delegation_create(
            actor=actor, company=company, delegate=delegate, person=person, teams=teams, **asked
        )
        return Response(_shown(made.pk, actor), status=201)


class DelegationRevokeView(APIView):
    """Ends a delegation at once; a second time changes nothing."""

    class In(Input):
        reason = Text(max_length=400, allow_blank=True, default="")

    @extend_schema(operation_id="delegation_revoke", request=In, responses=DelegationOut)
    @idempotent
    def post(self, request: Request, delegation_id: UUID) -> Response:
        actor = actor_of(request)
        ended = delegation_revoke(actor=actor, delegation_id=delegation_id, **body(request, self.In))
        return Response(_shown(ended.pk, actor))


def _shown(key: UUID, actor: Any) -> dict[str, Any]:
    return dict(DelegationOut(_show(delegation_list(actor).filter(pk=key))[0]).data)


# --- Groups ------------------------------------------------------------------------------------------------------


class GroupOut(Output):
    id = serializers.UUIDField()
    name = serializers.CharField()
    people = UserRef(many=True, source="people.all")


class GroupsView(PagedView):
    """The groups of a company, which approval rules may ask; an admin makes them."""

    pagination_class = RankPages

    class Filters(Input):
        company = serializers.CharField(help_text="The id of a company.")

    class In(Input):
        company = Text(help_text="The id of the company.")
        name = Text(max_length=80)
        people = serializers.ListField(child=Text(max_length=16), default=list, max_length=_MOST_PEOPLE)

    @extend_schema(operation_id="approver_groups_list", parameters=[Filters], responses=GroupOut(many=True))
    def get(self, request: Request) -> Response:
        actor = actor_of(request)
        company = company_get(actor, query(request, self.Filters, is_paged=True)["company"])
        return self.page(request, group_list(actor, company), GroupOut)

    @extend_schema(operation_id="approver_groups_create", request=In, responses={201: GroupOut})
    @idempotent
    def post(self, request: Request) -> Response:
        actor, asked = actor_of(request), body(request, self.In)
        company = company_get(actor, asked["company"])
        people = people_of(actor, company, asked["people"], field="people")
        made = group_create(actor=actor, company=company, name=asked["name"], people=people)
        return Response(GroupOut(made).data, status=201)


class GroupView(APIView):
    """Removes a group that neither the rules in force nor a case names."""

    @extend_schema(operation_id="approver_group_delete", responses={204: None})
    def delete(self, request: Request, group_id: UUID) -> Response:
        actor = actor_of(request)
        group_delete(actor=actor, group=group_get(actor, group_id))
        return Response(status=204)


class GroupPeopleView(APIView):
    """Says who is in a group from now on; open cases follow."""

    class In(Input):
        people = serializers.ListField(child=Text(max_length=16), max_length=_MOST_PEOPLE)

    @extend_schema(operation_id="approver_group_people", request=In, responses=GroupOut)
    @idempotent
    def post(self, request: Request, group_id: UUID) -> Response:
        actor = actor_of(request)
        group = group_get(actor, group_id)
        asked = body(request, self.In)
        people = people_of(actor, group.company, asked["people"], field="people")
        return Response(GroupOut(group_set_people(actor=actor, group=group, people=people)).data)
