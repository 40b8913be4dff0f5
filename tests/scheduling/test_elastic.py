"""Attempts that grow and shrink while they run."""

from __future__ import annotations

import pytest

from gpuyard.fleet.models import Gpu
from scheduling.models import Allocation, Eviction, Replica, Workload
from tests import factories as make
from tests.scheduling.planned import claim, commit, grow, on, stop
from tests.scheduling.speaking import Speaker, exited, report, speaker

pytestmark = pytest.mark.django_db


def _scene(running: int = 1) -> tuple[Workload, list[Gpu], Speaker]:
    """An elastic workload of 1 to 4 replicas, with one GPU each, on a node of four."""
    tier = make.tier()
    node = make.node(tier, 4)
    gpus = list(node.gpus.all())
    workload = make.workload(make.team(), tier, replicas=1, replicas_max=4, preemptible=True)
    make.placed(workload, *([gpu] for gpu in gpus[:running]), running=True)
    return workload, gpus, speaker(node)


def _ranks(of: Workload) -> list[Replica]:
    return list(Replica.objects.filter(attempt__workload=of).order_by("index", "created_at"))


def _state(of: Workload) -> tuple[str, str]:
    of.refresh_from_db()
    return of.state, of.attempts.get().state


def test_a_running_attempt_gets_more_replicas() -> None:
    workload, gpus, agent = _scene()
    done = commit(grow(workload, on(gpus[1], index=1), on(gpus[2], index=2)))
    assert (done.grown, done.refused) == ([workload.id], {})
    first, *new = _ranks(workload)
    assert [one.state for one in new] == ["assigned", "assigned"]
    assert len({one.fencing_token for one in (first, *new)}) == 3
    orders = {order["rank"]: order for order in agent.sync(report(first, "running"))["replicas"]}
    assert [orders[rank]["world_size"] for rank in (0, 1, 2)] == [3, 3, 3]
    assert orders[1]["ports"][0]["name"] == "rendezvous"
    gpus[0].node.refresh_from_db()
    assert gpus[0].node.cpu_used_m == 3000


def test_growth_of_what_has_ended_meanwhile_is_refused() -> None:
    workload, gpus, agent = _scene()
    decided = grow(workload, on(gpus[1], index=1))
    agent.sync(exited(_ranks(workload)[0]))
    done = commit(decided)
    assert done.refused == {workload.id: "no_longer_running"}
    assert Replica.objects.count() == 1


def test_a_shrunk_attempt_goes_on_and_does_not_mind_how_the_rest_ends() -> None:
    workload, gpus, agent = _scene(running=3)
    gains = make.workload(make.team(), gpus[0].tier)
    done = commit(
        claim(gains, on(gpus[2]), victims=[workload]), stop(workload, gains, reason="return", replicas=(2,))
    )
    assert done.claimed == [gains.id]
    kept, _second, leaves = _ranks(workload)
    assert _state(workload) == ("running", "running")
    assert Allocation.objects.get(replica=leaves).state == "stopping"
    orders = {
        order["rank"]: order["desired"]
        for order in agent.sync(*(report(one, "running") for one in _ranks(workload)))["replicas"]
    }
    assert orders == {0: "run", 1: "run", 2: "stop"}
    agent.sync(report(kept, "running"), exited(leaves, 1, exit_reason="stopped"))
    assert _state(workload) == ("running", "running")
    assert Eviction.objects.get().replicas == [2]


def test_it_grows_again_where_it_once_shrank() -> None:
    workload, gpus, agent = _scene(running=2)
    commit(stop(workload, replicas=(1,)))
    agent.sync(exited(_ranks(workload)[1], exit_reason="stopped"))
    done = commit(grow(workload, on(gpus[1], index=1)))
    assert done.grown == [workload.id]
    assert [(one.index, one.state) for one in _ranks(workload)] == [
        (0, "running"),
        (1, "exited"),
        (1, "assigned"),
    ]


def test_a_shrunk_attempt_succeeds_when_the_rest_has() -> None:
    workload, _gpus, agent = _scene(running=2)
    commit(stop(workload, replicas=(1,)))
    first, second = _ranks(workload)
    agent.sync(exited(first))
    assert _state(workload)[1] == "running"
    agent.sync(exited(second, 1, exit_reason="stopped"))
    assert _state(workload) == ("succeeded", "ended")


def test_growth_is_refused_where_another_came_first() -> None:
    workload, gpus, _agent = _scene()
    make.placed(make.workload(make.team(), gpus[0].tier), [gpus[1]])
    done = commit(grow(workload, on(gpus[1], index=1)))
    assert done.refused == {workload.id: "gpu_taken"}
    assert len(_ranks(workload)) == 1
