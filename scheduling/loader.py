"""Loads what a pass needs to know: the database's facts as the engine's snapshot, in a handful of queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from gpuyard.core import clock, hooks
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.fleet.models import Tier
from scheduling.bands import band_grants_live
from scheduling.decay import usage_rows
from scheduling.engine import snapshot as engine
from scheduling.engine.decisions import Policy
from scheduling.loader_fleet import gpus_load, levels_and_domains, nodes_load
from scheduling.loader_requests import RequestReader, requests_placed, requests_waiting
from scheduling.loader_work import evictions_load, live_load, mix_load, running_load
from scheduling.looks import one_look
from scheduling.models import SchedulerState
from scheduling.moments import to_us
from scheduling.policies import policy_current
from scheduling.sizes import units_by_tier
from tenants.models import Quota, Team


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


def snapshot_load(policy: Policy | None = None) -> Loaded:
    """Reads everything in one consistent look (REPEATABLE READ) that locks nothing. `policy`: a draft to be tried."""
    with one_look():
        rules = policy or policy_current()
        state = SchedulerState.objects.get(pk=1)
        now = clock.now()
        tiers, teams = tuple(_tiers()), tuple(_teams())
        levels, domains = levels_and_domains()
        live, taken = live_load()
        requests = RequestReader()
        snapshot = engine.Snapshot(
            tiers=tiers,
            nodes=tuple(nodes_load(levels, domains)),
            gpus=tuple(gpus_load(taken, _scopes(teams, rules))),
            teams=teams,
            quotas=tuple(_quotas()),
            live=live,
            requests=tuple(requests_waiting(requests)),
            running=tuple(running_load(rules.eviction_window_s)),
            placed=tuple(requests_placed(requests)),
            evictions=tuple(evictions_load(rules.eviction_window_s)),
            mix=mix_load({tier.name: tier for tier in tiers}),
            levels=levels,
            usage=usage_rows(rules.usage_half_life_s, now),
            band_grants=tuple(_band_grants()),
        )
    return Loaded(snapshot, state.pass_number, now, rules)


def _scopes(teams: Iterable[engine.Team], policy: Policy) -> dict[str, str]:
    """Team → who may share a card with it: itself, or its company."""
    return {team.id: team.path[0] if policy.share_scope == "company" else team.id for team in teams}


def _tiers() -> Iterator[engine.Tier]:
    costs, units = hooks.tier_costs.get()(), units_by_tier()
    for tier in Tier.objects.order_by("id"):
        # a rate is for the hour of a whole GPU; a MIG instance is a part of one
        cost = costs.get(tier.pk, Decimal(0)) * units.get(tier.pk, UNITS_PER_GPU) / UNITS_PER_GPU
        yield engine.Tier(
            str(tier.id),
            tier.name,
            tier.memory_mib,
            tier.cost_rank,
            architecture=tier.architecture,
            labels=tuple(sorted(tier.capabilities)),
            speeds=tuple(sorted((kind, round(1000 * speed)) for kind, speed in tier.relative_speed.items())),
            cost_micro=int(cost * 1_000_000),
        )


def _teams() -> Iterator[engine.Team]:
    for team in Team.objects.order_by("id"):
        parent = str(team.parent_id) if team.parent_id else None
        yield engine.Team(str(team.id), parent, team.name, tuple(str(step) for step in team.path))


def _quotas() -> Iterator[engine.Quota]:
    for quota in Quota.objects.in_force().order_by("team_id", "tier_id"):
        tier = str(quota.tier_id) if quota.tier_id else None
        yield engine.Quota(
            str(quota.team_id), tier, quota.promised, quota.cap, quota.lend_limit, quota.weight
        )


def _band_grants() -> Iterator[engine.BandGrant]:
    for grant in band_grants_live().order_by("team_id", "band"):
        yield engine.BandGrant(str(grant.team_id), grant.band, grant.cap)
