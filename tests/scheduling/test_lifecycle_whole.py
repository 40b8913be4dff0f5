"""From the queue to the end: the pass places, the agents report, the next pass finds the GPUs free again."""

from __future__ import annotations

import pytest

from scheduling.models import Allocation, PortLease, Workload
from scheduling.passes import pass_once
from tests import factories as make
from tests.scheduling.speaking import exited, report, speaker

pytestmark = pytest.mark.django_db


def test_a_gang_from_the_queue_to_its_end_and_the_next_one_on_its_gpus() -> None:
    tier = make.tier()
    agents = [speaker(make.node(tier, 4)) for _ in range(2)]
    team = make.team()
    make.quota(team.parent or team, tier, guaranteed_gpus=8)
    make.quota(team, tier, guaranteed_gpus=8)
    first = make.workload(team, tier, gpus=4, replicas=2)
    second = make.workload(team, tier, gpus=4, replicas=2)
    pass_once()
    assert _states(first, second) == ["starting", "waiting"]

    orders = [agent.sync()["replicas"][0] for agent in agents]
    assert [len(order["peers"]) for order in orders] == [2, 2]
    assert sorted(order["rank"] for order in orders) == [0, 1]
    replicas = {replica.node_id: replica for replica in first.attempts.get().replicas.all()}
    for agent in agents:
        agent.sync(report(replicas[agent.node.pk], "running", running_ago_s=0.1))
    assert _states(first, second) == ["running", "waiting"]
    for agent in agents:
        agent.sync(exited(replicas[agent.node.pk], 0))
    assert _states(first, second) == ["succeeded", "waiting"]
    assert not PortLease.objects.exists()

    pass_once()
    assert _states(first, second) == ["succeeded", "starting"]
    assert (
        Allocation.objects.filter(state="ended").count()
        == Allocation.objects.filter(state="held").count()
        == 8
    )


def _states(*workloads: Workload) -> list[str]:
    for workload in workloads:
        workload.refresh_from_db()
    return [workload.state for workload in workloads]
