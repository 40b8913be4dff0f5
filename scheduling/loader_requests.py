"""Workloads as requests of the engine: those that wait, and those that have an attempt.

Rows rather than model instances, and of a spec only its request: twenty thousand may wait, each with a long
environment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, QuerySet

from gpuyard.fleet.models import Node, NodeState, Tier
from scheduling.asked import capabilities_text
from scheduling.engine import snapshot as engine
from scheduling.engine.decisions import BASIS_PROMISE
from scheduling.models import Attempt, Verdict, Workload, WorkloadDependency
from scheduling.moments import to_us
from scheduling.sizes import tiers_able
from scheduling.specs import Capabilities
from scheduling.states import AttemptState, WorkloadState
from tenants.models import PoolDedication, Team

_COLUMNS = (
    "id",
    "name",
    "team_id",
    "owner_id",
    "kind",
    "priority",
    "queued_at",
    "preemptible",
    "band",
    "array_id",
    "spec__document__request",
    "spec__document__time_limit_s",
)


@dataclass
class RequestReader:
    """What the requests of one snapshot have in common, read once."""

    tiers: Mapping[str, Tier] = field(
        default_factory=lambda: {tier.name: tier for tier in Tier.objects.all()}
    )
    node_ids: Mapping[str, str] = field(default_factory=lambda: _node_ids())
    pools: Mapping[UUID, tuple[str, ...]] | None = field(default_factory=lambda: _allowed_pools())
    promises: Mapping[UUID, datetime] = field(default_factory=lambda: _promises())
    unfinished: Mapping[UUID, tuple[str, ...]] = field(default_factory=lambda: _unfinished())

    def read(self, workloads: QuerySet[Workload]) -> Iterator[engine.Request]:
        """The requests of these workloads, in their order. They have been approved: `queued_at` is set."""
        for row in workloads.values_list(*_COLUMNS):
            yield self._request(*row)

    def _request(
        self,
        key: UUID,
        name: str,
        team_id: UUID,
        owner_id: UUID,
        kind: str,
        priority: int,
        queued_at: datetime,
        preemptible: bool,
        band: int,
        array_id: UUID | None,
        asked: dict[str, Any],
        time_limit_s: int | None,
    ) -> engine.Request:
        promised = self.promises.get(key)
        return engine.Request(
            workload_id=str(key),
            name=name,
            team_id=str(team_id),
            owner_id=str(owner_id),
            kind=kind,
            priority=priority,
            queued_us=to_us(queued_at),
            replicas_min=asked["replicas_min"],
            replicas_max=asked["replicas_max"],
            gpus_per_replica=asked["gpus_per_replica"],
            tiers=self._tiers(asked),
            cpu_m=asked["cpu_m"],
            memory_mib=asked["memory_mib"],
            preemptible=preemptible,
            band=band,
            time_limit_s=time_limit_s,
            pool_ids=self.pools.get(team_id) if self.pools is not None else None,
            promised_us=to_us(promised) if promised is not None else None,
            depends_on=self.unfinished.get(array_id or key, ()),
            array_id=str(array_id) if array_id is not None else None,
            **self._choices(asked),
        )

    def _choices(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What may be left out: documents that were stored before a field came do without it."""
        topology, array = asked.get("topology") or {}, asked.get("array") or {}
        not_before = asked.get("not_before")
        return {
            "mix_tiers": asked.get("mix_tiers", False),
            "by_value": asked.get("tier_choice", "value") == "value",
            "share": asked.get("share"),
            "gpu_memory_mib": asked.get("gpu_memory_mib"),
            "node_labels": tuple(sorted(asked.get("node_labels", ()))),
            "not_labels": tuple(sorted(asked.get("not_labels", ()))),
            "not_nodes": tuple(
                sorted(self.node_ids[one] for one in asked.get("not_nodes", ()) if one in self.node_ids)
            ),
            "required_level": topology.get("required"),
            "preferred_level": topology.get("preferred"),
            "level_wait_s": topology.get("wait_s", 0),
            "spread_level": asked.get("spread_level"),
            "not_before_us": to_us(datetime.fromisoformat(not_before)) if not_before else None,
            "array_cap": array.get("parallel"),
            "min_run_s": asked.get("min_run_s", 0),
            "restart_cost_s": asked.get("restart_cost_s", 0),
            "elastic": asked.get("elastic", False),
        }

    def _tiers(self, asked: dict[str, Any]) -> tuple[str, ...]:
        """By key. What is no longer there keeps its name, or says what was wanted: the verdict tells."""
        if wanted := asked.get("capabilities"):
            capabilities = Capabilities.model_validate(wanted)
            able = tiers_able(capabilities, self.tiers.values())
            return tuple(str(tier.pk) for tier in able) or (capabilities_text(capabilities),)
        return tuple(str(self.tiers[name].pk) if name in self.tiers else name for name in asked["tiers"])


def requests_waiting(reader: RequestReader) -> Iterator[engine.Request]:
    """Whatever waits for GPUs and has no claim on any, the oldest first."""
    waiting = Workload.objects.filter(state=WorkloadState.WAITING)
    waiting = waiting.exclude(attempts__state=AttemptState.CLAIMING)
    return reader.read(waiting.order_by("queued_at", "id"))


def requests_placed(reader: RequestReader) -> Iterator[engine.Request]:
    """The requests of what runs, leaves or claims: what they would need again. None has a promise any more."""
    live = Attempt.objects.exclude(state=AttemptState.ENDED).values("workload")
    return replace(reader, promises={}).read(Workload.objects.filter(pk__in=live).order_by("id"))


def _node_ids() -> dict[str, str]:
    rows = Node.objects.exclude(state=NodeState.RETIRED).values_list("id", "name", "public_id")
    return {name: str(key) for key, *names in rows for name in names}


def _promises() -> dict[UUID, datetime]:
    promises = Verdict.objects.filter(eta_basis=BASIS_PROMISE, eta__isnull=False)
    return {key: eta for key, eta in promises.values_list("workload_id", "eta") if eta is not None}


def _unfinished() -> dict[UUID, tuple[str, ...]]:
    """Workload (the first member, of an array) → those that must succeed first and have not yet."""
    waiting = Workload.objects.filter(state=WorkloadState.WAITING)
    rows = WorkloadDependency.objects.filter(
        Exists(waiting.filter(pk=OuterRef("workload_id")))
        | Exists(waiting.filter(array_id=OuterRef("workload_id")))
    ).exclude(on__state=WorkloadState.SUCCEEDED)
    found: dict[UUID, list[str]] = defaultdict(list)
    for workload_id, on_id in rows.order_by("on_id").values_list("workload_id", "on_id"):
        found[workload_id].append(str(on_id))
    return {key: tuple(ons) for key, ons in found.items()}


def _allowed_pools() -> dict[UUID, tuple[str, ...]] | None:
    """Team → the pools it may use: those dedicated to nobody, and those dedicated to it or to an ancestor.

    None if no pool is dedicated at all.
    """
    dedicated: dict[UUID, set[UUID]] = defaultdict(set)
    for row in PoolDedication.objects.all():
        dedicated[row.pool_id].add(row.team_id)
    if not dedicated:
        return None
    pool_ids = set(Node.objects.values_list("pool_id", flat=True)) | set(dedicated)
    return {
        team.id: tuple(
            sorted(
                str(pool) for pool in pool_ids if pool not in dedicated or dedicated[pool] & set(team.path)
            )
        )
        for team in Team.objects.all()
    }
