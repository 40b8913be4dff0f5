"""Loads what a pass needs to know: the database's facts as the engine's snapshot, in a handful of queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Max

from gpuyard.core import clock
from gpuyard.fleet.models import Node, Tier
from scheduling.bands import band_grants_live
from scheduling.decay import usage_rows
from scheduling.engine import snapshot as engine
from scheduling.engine.decisions import BASIS_PROMISE, Policy
from scheduling.loader_fleet import gpus_load, levels_and_domains, nodes_load
from scheduling.loader_work import evictions_load, live_load, mix_load, running_load
from scheduling.looks import one_look
from scheduling.models import Attempt, SchedulerState, Verdict, Workload
from scheduling.policies import policy_current
from scheduling.states import AttemptState, WorkloadState
from tenants.models import PoolDedication, Quota, Team


@dataclass(frozen=True)
class Loaded:
    """A snapshot, the last committed pass before it, the platform's time then, and the rules in force then."""

    snapshot: engine.Snapshot
    pass_number: int
    now: datetime
    policy: Policy

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


def snapshot_load(policy: Policy | None = None) -> Loaded:
    """Reads everything in one consistent look (REPEATABLE READ) that locks nothing. `policy`: a draft to be tried."""
    with one_look():
        rules = policy or policy_current()
        state = SchedulerState.objects.get(pk=1)
        now = clock.now()
        tiers, teams = tuple(_tiers()), tuple(_teams())
        levels, domains = levels_and_domains()
        live, taken = live_load()
        snapshot = engine.Snapshot(
            tiers=tiers,
            nodes=tuple(nodes_load(levels, domains)),
            gpus=tuple(gpus_load(taken, {team.id: team.id for team in teams})),
            teams=teams,
            quotas=tuple(_quotas()),
            live=live,
            requests=tuple(_requests()),
            running=tuple(running_load()),
            placed=tuple(_placed()),
            evictions=tuple(evictions_load()),
            mix=mix_load({tier.name: tier for tier in tiers}),
            levels=levels,
            usage=usage_rows(rules.usage_half_life_s, now),
            band_grants=tuple(_band_grants()),
        )
    return Loaded(snapshot, state.pass_number, now, rules)


def _tiers() -> Iterator[engine.Tier]:
    for tier in Tier.objects.order_by("id"):
        yield engine.Tier(
            str(tier.id),
            tier.name,
            tier.memory_mib,
            tier.cost_rank,
            architecture=tier.architecture,
            labels=tuple(sorted(tier.capabilities)),
            speeds=tuple(sorted((kind, round(1000 * speed)) for kind, speed in tier.relative_speed.items())),
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


def _band_grants() -> Iterator[engine.BandGrant]:
    for grant in band_grants_live().order_by("team_id", "band"):
        yield engine.BandGrant(str(grant.team_id), grant.band, grant.cap)


def _requests() -> Iterator[engine.Request]:
    pools = _allowed_pools()
    tier_ids = {tier.name: str(tier.id) for tier in Tier.objects.all()}
    waiting = Workload.objects.filter(state=WorkloadState.WAITING).select_related("spec", "team")
    waiting = waiting.exclude(attempts__state=AttemptState.CLAIMING)
    promises = dict(Verdict.objects.filter(eta_basis=BASIS_PROMISE).values_list("workload_id", "eta"))
    for workload in waiting.order_by("queued_at", "id"):
        assert workload.spec is not None
        assert workload.queued_at is not None
        promised = promises.get(workload.id)
        yield _request(workload, workload.spec.document, tier_ids, pools, promised)


def _placed() -> Iterator[engine.Request]:
    """The requests of what runs, leaves or claims: what they would need again."""
    pools = _allowed_pools()
    tier_ids = {tier.name: str(tier.id) for tier in Tier.objects.all()}
    live = Attempt.objects.exclude(state=AttemptState.ENDED).values("workload")
    for workload in Workload.objects.filter(pk__in=live).select_related("spec", "team").order_by("id"):
        assert workload.spec is not None
        yield _request(workload, workload.spec.document, tier_ids, pools, None)


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
        band=workload.band,
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
