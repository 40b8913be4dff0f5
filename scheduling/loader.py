"""Loads what a pass needs to know: the database's facts as the engine's snapshot, in a handful of queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Max, Sum

from gpuyard.core import clock
from gpuyard.fleet.models import Condition, Gpu, GpuCondition, Node, NodeState, Tier
from scheduling.engine import snapshot as engine
from scheduling.engine.decisions import BASIS_PROMISE
from scheduling.models import Allocation, Replica, SchedulerState, Verdict, Workload
from scheduling.states import ALLOCATION_LIVE, AllocationState, ReplicaState, WorkloadState
from tenants.models import PoolDedication, Quota, Team


@dataclass(frozen=True)
class Loaded:
    """A snapshot, the number of the last committed pass it was taken after, and the platform's time then."""

    snapshot: engine.Snapshot
    pass_number: int
    now: datetime

    @property
    def now_us(self) -> int:
        return to_us(self.now)


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def to_us(moment: datetime) -> int:
    """Returns microseconds since 1970, exactly: a float of seconds would lose the last digits."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def from_us(moment_us: int) -> datetime:
    """The reverse of `to_us`."""
    return _EPOCH + timedelta(microseconds=moment_us)


def snapshot_load() -> Loaded:
    """Reads everything in one consistent look (REPEATABLE READ) that locks nothing."""
    with _one_look():
        state = SchedulerState.objects.get(pk=1)
        now = clock.now()
        busy = _busy_gpus()
        snapshot = engine.Snapshot(
            tiers=tuple(_tiers()),
            nodes=tuple(_nodes()),
            gpus=tuple(_gpus(busy)),
            teams=tuple(_teams()),
            quotas=tuple(_quotas()),
            live=tuple(_live()),
            requests=tuple(_requests()),
        )
    return Loaded(snapshot, state.pass_number, now)


@contextmanager
def _one_look() -> Iterator[None]:
    if connection.in_atomic_block:  # somebody else's transaction: its isolation is no longer ours to set
        yield
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield


def _tiers() -> Iterator[engine.Tier]:
    for tier in Tier.objects.order_by("id"):
        yield engine.Tier(str(tier.id), tier.name, tier.memory_mib, tier.cost_rank)


def _nodes() -> Iterator[engine.Node]:
    claimed = {
        row["node_id"]: row
        for row in Replica.objects.filter(state=ReplicaState.CLAIMING)
        .values("node_id")
        .annotate(cpu=Sum("cpu_m"), memory=Sum("memory_mib"))
    }
    for node in Node.objects.exclude(state=NodeState.RETIRED).order_by("id"):
        promised = claimed.get(node.id, {"cpu": 0, "memory": 0})
        yield engine.Node(
            id=str(node.id),
            name=node.name,
            pool_id=str(node.pool_id),
            schedulable=node_unschedulable_reason(node) is None,
            epoch=node.epoch,
            cpu_free_m=max(0, node.cpu_total_m - node.cpu_used_m - promised["cpu"]),
            memory_free_mib=max(0, node.memory_total_mib - node.memory_used_mib - promised["memory"]),
            cpu_total_m=node.cpu_total_m,
            memory_total_mib=node.memory_total_mib,
            reason_unschedulable=node_unschedulable_reason(node),
        )


def node_unschedulable_reason(node: Node) -> str | None:
    """Why nothing new may start on a node, as a word; None if it may."""
    if node.state != NodeState.READY:
        return node.state
    if node.draining:
        return "draining"
    return "cordoned" if node.cordoned else None


def _busy_gpus() -> set[UUID]:
    """GPUs of which anything is taken: requests are for whole GPUs only so far."""
    return set(Allocation.objects.filter(state__in=ALLOCATION_LIVE).values_list("gpu_id", flat=True))


def _gpus(busy: set[UUID]) -> Iterator[engine.Gpu]:
    ready = set(
        GpuCondition.objects.filter(span__upper_inf=True, condition=Condition.READY).values_list(
            "gpu_id", flat=True
        )
    )
    for gpu in (
        Gpu.objects.filter(retired_at=None).select_related("island").order_by("node_id", "index", "id")
    ):
        yield engine.Gpu(
            id=str(gpu.id),
            node_id=str(gpu.node_id),
            tier_id=str(gpu.tier_id),
            index=gpu.index,
            island=gpu.island.index if gpu.island else 0,
            ready=gpu.id in ready,
            free=gpu.id not in busy,
        )


def _teams() -> Iterator[engine.Team]:
    for team in Team.objects.order_by("id"):
        parent = str(team.parent_id) if team.parent_id else None
        yield engine.Team(str(team.id), parent, team.name, tuple(str(step) for step in team.path))


def _quotas() -> Iterator[engine.Quota]:
    for quota in Quota.objects.order_by("team_id", "tier_id"):
        tier = str(quota.tier_id) if quota.tier_id else None
        yield engine.Quota(
            str(quota.team_id), tier, quota.guaranteed, quota.limit, quota.lend_limit, quota.weight
        )


def _live() -> Iterator[engine.Live]:
    groups: dict[tuple[UUID, UUID, UUID], list[Allocation]] = defaultdict(list)
    rows = Allocation.objects.filter(state__in=ALLOCATION_LIVE).select_related(
        "attempt", "replica__spec", "workload"
    )
    for row in rows.order_by("workload_id", "tier_id", "replica__node_id", "id"):
        groups[row.workload_id, row.tier_id, row.replica.node_id].append(row)
    for (workload_id, tier_id, node_id), held in groups.items():
        replicas = {row.replica_id: row.replica for row in held}
        first = held[0]
        yield engine.Live(
            workload_id=str(workload_id),
            team_id=str(first.team_id),
            tier_id=str(tier_id),
            units=sum(row.units for row in held),
            state=first.state,
            node_id=str(node_id),
            borrowed=first.attempt.borrowed,
            started_us=to_us(min(row.span.lower for row in held)),
            ends_us=_ends_us(first),
            cpu_m=sum(replica.cpu_m for replica in replicas.values()),
            memory_mib=sum(replica.memory_mib for replica in replicas.values()),
            kind=first.workload.kind,
            preemptible=first.workload.preemptible,
        )


def _ends_us(row: Allocation) -> int | None:
    """When its time limit ends it at the latest; unknown for one whose node is lost."""
    limit_s = row.replica.spec.document.get("time_limit_s")
    if limit_s is None or row.state == AllocationState.UNCONFIRMED:
        return None
    began = row.attempt.running_at or row.span.lower
    return to_us(began) + int(limit_s) * 1_000_000


def _requests() -> Iterator[engine.Request]:
    pools = _allowed_pools()
    tier_ids = {tier.name: str(tier.id) for tier in Tier.objects.all()}
    waiting = Workload.objects.filter(state=WorkloadState.WAITING).select_related("spec", "team")
    promises = dict(Verdict.objects.filter(eta_basis=BASIS_PROMISE).values_list("workload_id", "eta"))
    for workload in waiting.order_by("queued_at", "id"):
        assert workload.spec is not None
        assert workload.queued_at is not None
        promised = promises.get(workload.id)
        yield _request(workload, workload.spec.document, tier_ids, pools, promised)


def _request(
    workload: Workload,
    document: dict[str, Any],
    tier_ids: dict[str, str],
    pools: dict[UUID, tuple[str, ...]] | None,
    promised: datetime | None,
) -> engine.Request:
    asked = document["request"]
    assert workload.queued_at is not None
    return engine.Request(
        workload_id=str(workload.id),
        name=workload.name,
        team_id=str(workload.team_id),
        kind=workload.kind,
        priority=workload.priority,
        queued_us=to_us(workload.queued_at),
        replicas_min=asked["replicas_min"],
        replicas_max=asked["replicas_max"],
        gpus_per_replica=asked["gpus_per_replica"],
        # A tier that no longer exists keeps its name: the verdict says so.
        tiers=tuple(tier_ids.get(name, name) for name in asked["tiers"]),
        cpu_m=asked["cpu_m"],
        memory_mib=asked["memory_mib"],
        preemptible=workload.preemptible,
        time_limit_s=document.get("time_limit_s"),
        pool_ids=pools.get(workload.team_id) if pools is not None else None,
        mix_tiers=asked.get("mix_tiers", False),
        promised_us=to_us(promised) if promised is not None else None,
    )


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


def attempt_numbers(workload_ids: list[UUID]) -> dict[UUID, int]:
    """Returns the number that the next attempt of each workload gets."""
    last = (
        Workload.objects.filter(id__in=workload_ids)
        .annotate(last=Max("attempts__number"))
        .values_list("id", "last")
    )
    return {workload_id: (number or 0) + 1 for workload_id, number in last}
