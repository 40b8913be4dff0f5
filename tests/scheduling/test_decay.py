"""Past use: what is folded little by little is what the whole ledger says."""

from __future__ import annotations

import json
import math
import random
from datetime import datetime, timedelta

import pytest
from django.core.management import call_command
from django.db.models import F

from gpuyard.core import clock
from gpuyard.fleet.models import Tier
from scheduling.decay import usage_at, usage_direct, usage_fold, usage_rows
from scheduling.engine.decisions import Policy
from scheduling.ledger import allocations_end, allocations_lost
from scheduling.loader import snapshot_load
from scheduling.models import Allocation, TeamUsage, UsagePending
from scheduling.passes import pass_once
from tenants.models import Team
from tests import factories as make

pytestmark = pytest.mark.django_db
HOUR = 3600


def _ran(team: Team, tier: Tier, began: datetime, ended: datetime | None) -> None:
    """One GPU held over a span; still held without an end."""
    node = make.node(tier, 1, since=began - timedelta(hours=1))
    workload = make.workload(team, tier, state="running")
    attempt = make.placed(workload, list(node.gpus.all()), running=True, since=began)
    if ended is not None:
        allocations_end(attempt.replicas.get().pk, ended)


def _integral(now: datetime, began: datetime, ended: datetime, half_life_s: float) -> float:
    scale = half_life_s / math.log(2)
    past, width = (now - ended).total_seconds() / scale, (ended - began).total_seconds() / scale
    return -7000 * scale * math.exp(-past) * math.expm1(-width)


@pytest.mark.parametrize("half_life_s", [60, HOUR, 7 * 86_400])
def test_one_ended_allocation_counts_as_its_integral(half_life_s: int) -> None:
    team, tier, now = make.team(), make.tier(), clock.now()
    began, ended = now - timedelta(hours=3), now - timedelta(hours=1)
    _ran(team, tier, began, ended)
    found = usage_direct(half_life_s, now)[str(team.pk), str(tier.pk)]
    assert found == pytest.approx(_integral(now, began, ended, half_life_s), rel=1e-9)


def test_half_a_life_ago_counts_half() -> None:
    team, tier, now = make.team(), make.tier(), clock.now()
    _ran(team, tier, now - timedelta(hours=24, seconds=1), now - timedelta(hours=24))
    found = usage_direct(24 * HOUR, now)[str(team.pk), str(tier.pk)]
    assert found == pytest.approx(3500, rel=1e-3)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_folding_at_any_moment_gives_what_the_ledger_gives(seed: int) -> None:
    rng = random.Random(seed)
    teams, tiers = [make.team() for _ in range(3)], [make.tier() for _ in range(2)]
    half_life_s = rng.choice([30, HOUR, 7 * 86_400])
    for _step in range(14):
        now = clock.now()
        began = now - timedelta(seconds=rng.uniform(60, 90_000))
        ended = began + timedelta(seconds=rng.uniform(0.001, 59)) if rng.random() < 0.8 else None
        _ran(rng.choice(teams), rng.choice(tiers), began, ended)
        if rng.random() < 0.5:
            usage_fold(half_life_s)
    now = clock.now()
    direct, folded = usage_direct(half_life_s, now), usage_at(half_life_s, now)
    assert direct.keys() == folded.keys()
    for key, unit_s in direct.items():
        assert folded[key] == pytest.approx(unit_s, rel=1e-9, abs=1e-200)


def test_folding_reads_only_what_ended_since() -> None:
    team, tier, now = make.team(), make.tier(), clock.now()
    for hours in (3, 2, 1):
        _ran(team, tier, now - timedelta(hours=hours), now - timedelta(hours=hours - 0.5))
    assert UsagePending.objects.count() == 3
    usage_fold(HOUR)
    assert (UsagePending.objects.count(), TeamUsage.objects.count()) == (0, 1)


def test_another_half_life_starts_from_the_ledger_again() -> None:
    team, tier, now = make.team(), make.tier(), clock.now()
    _ran(team, tier, now - timedelta(hours=5), now - timedelta(hours=4))
    usage_fold(HOUR)
    assert usage_at(86_400, now) == usage_direct(86_400, now)
    usage_fold(86_400)
    assert TeamUsage.objects.get().half_life_s == 86_400
    (found,), (whole,) = usage_at(86_400, now).values(), usage_direct(86_400, now).values()
    assert found == pytest.approx(whole, rel=1e-12)


def test_time_on_a_lost_node_is_nobodys_use() -> None:
    team, tier, now = make.team(), make.tier(), clock.now()
    _ran(team, tier, now - timedelta(hours=2), None)
    before = usage_direct(7 * 86_400, now)
    lost = Allocation.objects.get()
    allocations_lost(lost.replica.node_id, now - timedelta(hours=1))
    (whole,), (part,) = before.values(), usage_direct(7 * 86_400, now).values()
    assert part == pytest.approx(whole / 2, rel=0.01)


def test_without_a_half_life_only_the_present_counts() -> None:
    team, tier, now = make.team(), make.tier(), clock.now()
    _ran(team, tier, now - timedelta(hours=2), now - timedelta(hours=1))
    usage_fold(0)
    assert usage_rows(0, now) == ()
    assert snapshot_load(Policy(usage_half_life_s=0)).snapshot.usage == ()


def test_the_pass_folds_and_knows_the_use() -> None:
    team, tier, now = make.team(), make.tier(), clock.now()
    _ran(team, tier, now - timedelta(hours=2), now - timedelta(hours=1))
    pass_once()
    assert not UsagePending.objects.exists()
    (usage,) = snapshot_load().snapshot.usage
    assert (usage.team_id, usage.tier_id) == (str(team.pk), str(tier.pk))
    assert usage.unit_s == pytest.approx(7000 * HOUR, rel=0.02)


def test_the_command_says_whether_folded_and_ledger_agree(capsys: pytest.CaptureFixture[str]) -> None:
    team, tier, now = make.team(), make.tier(), clock.now()
    _ran(team, tier, now - timedelta(hours=2), now - timedelta(hours=1))
    pass_once()
    call_command("verify_usage")
    assert "agrees with the ledger" in capsys.readouterr().out
    TeamUsage.objects.update(unit_s=F("unit_s") * 1.001)
    with pytest.raises(SystemExit) as left:
        call_command("verify_usage", "--json")
    assert left.value.code == 1
    assert json.loads(capsys.readouterr().out)["agrees"] is False
