"""What platform admins do to nodes. Nodes with their GPUs and who holds them are in `scheduling.api.fleet`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import ClassVar
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpuyard.core.idempotency import idempotent
from gpuyard.core.pagination import RankPages
from gpuyard.core.rest import Input, Number, Output, PagedView, Text, Whole, actor_of, body
from gpuyard.fleet.labels import LONGEST_LABEL
from gpuyard.fleet.models import Node, NodeState
from gpuyard.fleet.selectors import domain_list, node_get, pool_get, pool_list
from gpuyard.fleet.services import join_token_create, node_cordon, node_drain, node_uncordon
from gpuyard.fleet.tiers import tier_speeds_set
from gpuyard.fleet.topology import (
    MOST_LABELS,
    domain_create,
    domain_delete,
    node_domain_set,
    node_labels_set,
)

MOST_NODES = 10_000


class PoolOut(Output):
    id = serializers.CharField(source="public_id")
    name = serializers.CharField()


class DomainRef(Output):
    id = serializers.UUIDField()
    level = serializers.CharField()
    name = serializers.CharField()


class NodeOut(Output):
    """A server. Cordoned: nothing new starts there; draining: until it is empty."""

    id = serializers.CharField(source="public_id")
    name = serializers.CharField()
    pool = PoolOut()
    labels = serializers.ListField(child=serializers.CharField())
    domain = DomainRef(allow_null=True)
    state = serializers.ChoiceField(NodeState.choices)
    cordoned = serializers.BooleanField()
    draining = serializers.BooleanField()
    cordon_reason = serializers.CharField()
    simulated = serializers.BooleanField()
    agent_version = serializers.CharField()
    cpu_total_m = serializers.IntegerField()
    cpu_used_m = serializers.IntegerField()
    memory_total_mib = serializers.IntegerField()
    memory_used_mib = serializers.IntegerField()
    joined_at = serializers.DateTimeField()
    last_sync_at = serializers.DateTimeField(allow_null=True)


class PoolsView(PagedView):
    """The pools that nodes join."""

    pagination_class = RankPages

    @extend_schema(operation_id="pools_list", responses=PoolOut(many=True))
    def get(self, request: Request) -> Response:
        return self.page(request, pool_list(actor_of(request)), PoolOut)


class _NodeAct(APIView):
    act: ClassVar[Callable[..., Node]]

    def _do(self, request: Request, public_id: str, reason: str) -> Response:
        actor = actor_of(request)
        node = node_get(actor, public_id)
        type(self).act(actor=actor, node_id=node.pk, reason=reason)
        return Response(NodeOut(node_get(actor, public_id)).data)


class CordonIn(Input):
    reason = Text(max_length=200, help_text="Shown to whoever waits for this node.")


class NodeCordonView(_NodeAct):
    """Nothing new starts on the node; what runs there goes on."""

    act = staticmethod(node_cordon)

    @extend_schema(operation_id="node_cordon", request=CordonIn, responses=NodeOut)
    @idempotent
    def post(self, request: Request, public_id: str) -> Response:
        return self._do(request, public_id, body(request, CordonIn)["reason"])


class NodeDrainView(_NodeAct):
    """Cordons the node until it is empty."""

    act = staticmethod(node_drain)

    @extend_schema(operation_id="node_drain", request=CordonIn, responses=NodeOut)
    @idempotent
    def post(self, request: Request, public_id: str) -> Response:
        return self._do(request, public_id, body(request, CordonIn)["reason"])


class NodeUncordonView(_NodeAct):
    """The node takes work again."""

    act = staticmethod(node_uncordon)

    class In(Input):
        reason = Text(max_length=200, allow_blank=True, default="")

    @extend_schema(operation_id="node_uncordon", request=In, responses=NodeOut)
    @idempotent
    def post(self, request: Request, public_id: str) -> Response:
        return self._do(request, public_id, body(request, self.In)["reason"])


class NodeLabelsView(APIView):
    """Replaces the labels of a node, which requests may ask for or exclude."""

    class In(Input):
        labels = serializers.ListField(child=Text(max_length=LONGEST_LABEL), max_length=MOST_LABELS)
        reason = Text(max_length=200, allow_blank=True, default="")

    @extend_schema(operation_id="node_labels_set", request=In, responses=NodeOut)
    @idempotent
    def post(self, request: Request, public_id: str) -> Response:
        actor, asked = actor_of(request), body(request, self.In)
        node_labels_set(actor=actor, node_id=node_get(actor, public_id).pk, **asked)
        return Response(NodeOut(node_get(actor, public_id)).data)


class NodeDomainView(APIView):
    """Puts a node into a domain of the fabric; null takes it out."""

    class In(Input):
        domain = serializers.UUIDField(allow_null=True)
        reason = Text(max_length=200, allow_blank=True, default="")

    @extend_schema(operation_id="node_domain_set", request=In, responses=NodeOut)
    @idempotent
    def post(self, request: Request, public_id: str) -> Response:
        actor, asked = actor_of(request), body(request, self.In)
        node_id = node_get(actor, public_id).pk
        node_domain_set(actor=actor, node_id=node_id, domain_id=asked["domain"], reason=asked["reason"])
        return Response(NodeOut(node_get(actor, public_id)).data)


class DomainOut(DomainRef):
    """A domain of the fabric, such as a rack, and the one that it is inside of."""

    inside = DomainRef(source="parent", allow_null=True)


class DomainsView(PagedView):
    """The domains of the fabric, and making new ones."""

    pagination_class = RankPages

    class In(Input):
        level = Text(max_length=32, help_text="Any word, such as rack, block or zone.")
        name = Text(max_length=64)
        inside = serializers.UUIDField(allow_null=True, default=None)
        reason = Text(max_length=200, allow_blank=True, default="")

    @extend_schema(operation_id="fabric_domains_list", responses=DomainOut(many=True))
    def get(self, request: Request) -> Response:
        return self.page(request, domain_list(actor_of(request)), DomainOut)

    @extend_schema(operation_id="fabric_domains_create", request=In, responses={201: DomainOut})
    @idempotent
    def post(self, request: Request) -> Response:
        domain = domain_create(actor=actor_of(request), **body(request, self.In))
        return Response(DomainOut(domain).data, status=201)


class DomainView(APIView):
    """Takes an empty domain away."""

    @extend_schema(operation_id="fabric_domain_delete", responses={204: None})
    def delete(self, request: Request, domain_id: UUID) -> Response:
        domain_delete(actor=actor_of(request), domain_id=domain_id)
        return Response(status=204)


class TierSpeedsView(APIView):
    """How fast each kind of work runs on a tier, compared with the slowest one: decides the best result per cost."""

    class In(Input):
        tier = Text(max_length=64, help_text="Its name.")
        speeds = serializers.DictField(child=Number(), help_text='Such as `{"training": 2.5}`.')
        reason = Text(max_length=200, allow_blank=True, default="")

    class Out(Output):
        tier = serializers.CharField(source="name")
        speeds = serializers.DictField(child=serializers.FloatField(), source="relative_speed")

    @extend_schema(operation_id="tier_speeds_set", request=In, responses=Out)
    @idempotent
    def post(self, request: Request) -> Response:
        tier = tier_speeds_set(actor=actor_of(request), **body(request, self.In))
        return Response(self.Out(tier).data)


class JoinTokensView(APIView):
    """Makes a token by which new nodes join a pool; its secret is shown this once."""

    class In(Input):
        pool = Text(help_text="The id of a pool.")
        uses = Whole(min_value=1, max_value=MOST_NODES, default=1)
        lifetime_hours = Whole(min_value=1, max_value=24 * 30, default=24)

    class Out(Output):
        id = serializers.UUIDField()
        pool = PoolOut()
        uses_left = serializers.IntegerField()
        expires_at = serializers.DateTimeField()
        secret = serializers.CharField()

    # No Idempotency-Key: the stored answer would keep the secret for a day.
    @extend_schema(operation_id="join_tokens_create", request=In, responses={201: Out})
    def post(self, request: Request) -> Response:
        actor, asked = actor_of(request), body(request, self.In)
        token, secret = join_token_create(
            actor=actor,
            pool=pool_get(actor, asked["pool"]),
            uses=asked["uses"],
            lifetime=timedelta(hours=asked["lifetime_hours"]),
        )
        facts = {name: getattr(token, name) for name in ("id", "pool", "uses_left", "expires_at")}
        return Response(self.Out({**facts, "secret": secret}).data, status=201)
