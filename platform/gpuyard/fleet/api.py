"""What platform admins do to nodes. Nodes with their GPUs and who holds them are in `scheduling.api.fleet`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpuyard.core.idempotency import idempotent
from gpuyard.core.pagination import RankPages
from gpuyard.core.rest import Input, Output, PagedView, Text, Whole, actor_of, body
from gpuyard.fleet.models import Node, NodeState
from gpuyard.fleet.selectors import node_get, pool_get, pool_list
from gpuyard.fleet.services import join_token_create, node_cordon, node_drain, node_uncordon

MOST_NODES = 10_000


class PoolOut(Output):
    id = serializers.CharField(source="public_id")
    name = serializers.CharField()


class NodeOut(Output):
    """A server. Cordoned: nothing new starts there; draining: until it is empty."""

    id = serializers.CharField(source="public_id")
    name = serializers.CharField()
    pool = PoolOut()
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
