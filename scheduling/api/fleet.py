"""What there is and who uses it: tiers, free space, nodes with their GPUs, quotas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpuyard.core.errors import NotFound
from gpuyard.core.models import User
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.core.pagination import RankPages
from gpuyard.core.rest import Input, Output, PagedView, Text, actor_of, query
from gpuyard.fleet.api import NodeOut
from gpuyard.fleet.models import Condition, Node, Tier
from gpuyard.fleet.selectors import node_get, node_list, tier_list
from scheduling.api.shapes import TeamRef
from scheduling.freespace import free_space
from scheduling.promises import tier_promises
from scheduling.selectors import fair_shares, fleet_list, quota_use, tier_supply
from scheduling.supply import FleetNode, GpuCell
from tenants.models import Quota, Team
from tenants.selectors import quota_list, team_get

# --- Tiers -------------------------------------------------------------------------------------------------


class TierOut(Output):
    """`free` GPUs are ready and held by nobody; `largest_block` of them are on one node."""

    name = serializers.CharField(source="tier.name")
    model = serializers.CharField(source="tier.model")
    memory_mib = serializers.IntegerField(source="tier.memory_mib")
    architecture = serializers.CharField(source="tier.architecture")
    capabilities = serializers.ListField(child=serializers.CharField(), source="tier.capabilities")
    total = serializers.IntegerField()
    free = serializers.IntegerField()
    largest_block = serializers.IntegerField()
    largest_node = serializers.IntegerField()
    as_of = serializers.DateTimeField()
    warning = serializers.CharField(
        help_text="Guarantees of all companies above what is ready, as a sentence; usually empty."
    )


class TiersView(PagedView):
    """The classes of GPU that a request can name, the dearest first, and what is there of them."""

    pagination_class = RankPages

    @extend_schema(operation_id="tiers_list", responses=TierOut(many=True))
    def get(self, request: Request) -> Response:
        tiers = tier_list(actor_of(request))
        return self.page(request, tiers, TierOut, _supplies)


def _supplies(tiers: Iterable[Tier]) -> list[dict[str, Any]]:
    promises = tier_promises()
    return [
        {
            **{name: getattr(supply, name) for name in _SUPPLY},
            "warning": promises[supply.tier.pk].text if supply.tier.pk in promises else "",
        }
        for supply in tier_supply(None, tiers)
    ]


_SUPPLY = ("tier", "total", "free", "largest_block", "largest_node", "as_of")


class SizeRoomOut(Output):
    """So many requests for `gpus` GPUs could stand at once: each on one node, or inside one island."""

    gpus = serializers.IntegerField()
    on_node = serializers.IntegerField()
    on_island = serializers.IntegerField()


class CardRoomOut(Output):
    """A card of one's own teams that shares are on; `slots_free` of 1000."""

    node = serializers.CharField()
    index = serializers.IntegerField()
    slots_free = serializers.IntegerField()


class FreeSpaceOut(Output):
    """`blocks`: the free GPUs of each node that has any. `too_small`: of no use for a request of a whole node."""

    tier = serializers.CharField(source="tier.name")
    total = serializers.IntegerField()
    free = serializers.IntegerField()
    largest_on_node = serializers.IntegerField()
    largest_on_island = serializers.IntegerField()
    too_small = serializers.IntegerField()
    sizes = SizeRoomOut(many=True)
    blocks = serializers.ListField(child=serializers.IntegerField())
    shared_cards = CardRoomOut(many=True, source="own_cards")
    as_of = serializers.DateTimeField()


class FreeSpaceView(PagedView):
    """Free GPUs as what could be started on them, tier by tier, the dearest first."""

    pagination_class = RankPages

    class Filters(Input):
        team = Text(required=False, help_text="Only what this team may use.")

    @extend_schema(operation_id="free_space_list", parameters=[Filters], responses=FreeSpaceOut(many=True))
    def get(self, request: Request) -> Response:
        actor = actor_of(request)
        asked = query(request, self.Filters, is_paged=True).get("team")
        team = team_get(actor, asked) if asked else None
        tiers = tier_list(actor)
        return self.page(request, tiers, FreeSpaceOut, lambda page: free_space(actor, page, team=team))


# --- Nodes -------------------------------------------------------------------------------------------------


class NodeRow(NodeOut):
    gpus = serializers.IntegerField()
    free = serializers.IntegerField()


class HolderOut(Output):
    workload = serializers.CharField(source="workload_public_id")
    name = serializers.CharField(source="workload_name")
    team = serializers.CharField(source="team_name")
    ends_at = serializers.DateTimeField(allow_null=True)


class GpuOut(Output):
    """`holder` is there inside one's own teams only; `is_others` says that another team has it."""

    id = serializers.CharField(source="gpu.public_id")
    index = serializers.IntegerField(source="gpu.index")
    tier = serializers.CharField(source="gpu.tier.name")
    memory_mib = serializers.IntegerField(source="gpu.memory_mib")
    island = serializers.IntegerField(source="gpu.island.index", allow_null=True, default=None)
    condition = serializers.ChoiceField(Condition.choices)
    condition_reason = serializers.CharField()
    state = serializers.CharField(help_text="free, claimed, held, stopping, unconfirmed; or its condition.")
    holder = HolderOut(allow_null=True)
    is_others = serializers.BooleanField()


class NodeDetail(NodeOut):
    gpus = GpuOut(many=True)
    free = serializers.IntegerField()
    as_of = serializers.DateTimeField()


_NODE_COLUMNS = tuple(str(field.source) for field in NodeOut().fields.values())


def _rows(actor: User, nodes: Iterable[Node]) -> list[Any]:
    view = fleet_list(actor, node_ids=[node.pk for node in nodes])
    return [_shown(row, gpus=len(row.cells)) for row in view.nodes]


def _shown(row: FleetNode, *, gpus: int | tuple[GpuCell, ...], **more: Any) -> dict[str, Any]:
    columns = {name: getattr(row.node, name) for name in _NODE_COLUMNS}
    return {**columns, "gpus": gpus, "free": row.free, **more}


class NodesView(PagedView):
    """All nodes, by name. Capacity is no secret."""

    pagination_class = RankPages

    @extend_schema(operation_id="nodes_list", responses=NodeRow(many=True))
    def get(self, request: Request) -> Response:
        actor = actor_of(request)
        return self.page(request, node_list(actor), NodeRow, lambda page: _rows(actor, page))


class NodeView(APIView):
    """One node with its GPUs."""

    @extend_schema(operation_id="node_read", responses=NodeDetail)
    def get(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        view = fleet_list(actor, node_public_id=node_get(actor, public_id).public_id)
        if not view.nodes:
            raise NotFound("node_retired")
        (row,) = view.nodes
        return Response(NodeDetail(_shown(row, gpus=row.cells, as_of=view.as_of)).data)


# --- Quotas ------------------------------------------------------------------------------------------------


class QuotaOut(Output):
    """In GPUs, and in units of 1/7000 GPU. No tier: all of them together. No limit: null."""

    team = TeamRef()
    tier = serializers.CharField(allow_null=True)
    used = serializers.FloatField()
    guaranteed = serializers.FloatField()
    limit = serializers.FloatField(allow_null=True)
    used_units = serializers.IntegerField()
    guaranteed_units = serializers.IntegerField()
    limit_units = serializers.IntegerField(allow_null=True)
    fair_share_units = serializers.IntegerField(
        allow_null=True, help_text="By the last pass that changed something; null where nobody waits for it."
    )
    warning = serializers.CharField(
        help_text="What is wrong with the tier: guarantees of all companies above what is ready. Usually empty."
    )


@dataclass(frozen=True)
class _QuotaInUse:
    quota: Quota
    used_units: int
    fair_share_units: int | None
    warning: str

    @property
    def team(self) -> Team:
        return self.quota.team

    @property
    def tier(self) -> str | None:
        return self.quota.tier.name if self.quota.tier else None

    @property
    def guaranteed_units(self) -> int:
        return self.quota.promised

    @property
    def limit_units(self) -> int | None:
        return self.quota.cap

    @property
    def used(self) -> float:
        return self.used_units / UNITS_PER_GPU

    @property
    def guaranteed(self) -> float:
        return self.guaranteed_units / UNITS_PER_GPU

    @property
    def limit(self) -> float | None:
        return None if self.limit_units is None else self.limit_units / UNITS_PER_GPU


def _in_use(quotas: Iterable[Quota]) -> list[_QuotaInUse]:
    rows = list(quotas)
    use = quota_use({row.team_id for row in rows})
    promises, shares = tier_promises(), fair_shares()
    return [
        _QuotaInUse(
            row,
            sum(
                units
                for (team_id, tier_id), units in use.items()
                if team_id == row.team_id and row.tier_id in (None, tier_id)
            ),
            shares.get((row.team_id, row.tier_id)) if row.tier_id else None,
            promises[row.tier_id].text if row.tier_id in promises else "",
        )
        for row in rows
    ]


class QuotasView(PagedView):
    """The quotas that act on a team, those of the teams above it first, with what is in use."""

    pagination_class = RankPages

    @extend_schema(operation_id="team_quotas", responses=QuotaOut(many=True))
    def get(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        return self.page(request, quota_list(actor, team_get(actor, public_id)), QuotaOut, _in_use)
