"""Work that is taken back, and the claims of those for whom it leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest

from gpuyard.audit.models import Event
from gpuyard.core import clock
from gpuyard.fleet.models import Gpu, Node
from scheduling.claims import claims_turn
from scheduling.engine.decisions import LEAVING, Policy
from scheduling.explanations import verdict_explain
from scheduling.lifecycle import workload_stop_begin
from scheduling.loader import snapshot_load
from scheduling.models import Allocation, Attempt, Eviction, Replica, Verdict, Workload
from scheduling.passes import pass_once
from scheduling.services import workload_stop
from tests import factories as make
from tests.scheduling.planned import claim, commit, on, start, stop
from tests.scheduling.speaking import Speaker, exited, report, speaker

pytestmark = pytest.mark.django_db


@dataclass
class Scene:
    """A node of two GPUs that a victim of another team holds; somebody waits for both."""

    node: Node
    gpus: list[Gpu]
    victim: Workload
    waiting: Workload

    def rank(self, attempt: int = 1) -> Replica:
        return Replica.objects.get(attempt__workload=self.victim, attempt__number=attempt)

    def take(self, **why: object) -> None:
        done = commit(
            claim(self.waiting, on(*self.gpus), victims=[self.victim]),
            stop(self.victim, self.waiting, **why),  # type: ignore[arg-type]
        )
        assert not done.refused


def _scene(**fields: object) -> Scene:
    tier = make.tier()
    node = make.node(tier, 2, **fields)  # type: ignore[arg-type]
    gpus = list(node.gpus.all())
    victim = make.workload(make.team(), tier, gpus=2, preemptible=True)
    make.placed(victim, gpus, running=True)
    return Scene(node, gpus, victim, make.workload(make.team(), tier, gpus=2))


def _states(of: Workload) -> tuple[str, list[str], list[str], list[str]]:
    of.refresh_from_db()
    rows = Allocation.objects.filter(workload=of).order_by("span")
    return (
        of.state,
        [one.state for one in of.attempts.order_by("number")],
        [one.state for one in Replica.objects.filter(attempt__workload=of)],
        [one.state for one in rows],
    )


def _leave(agent: Speaker, rank: Replica, **fields: object) -> None:
    rank.refresh_from_db()
    values = {"exit_reason": "stopped", "code": 0, **fields}
    agent.sync(exited(rank, **values))  # type: ignore[arg-type]


def test_victims_stop_and_the_claim_is_stored_with_it() -> None:
    scene = _scene()
    scene.take()
    assert _states(scene.victim) == ("stopping", ["stopping"], ["stopping"], ["stopping"] * 2)
    assert _states(scene.waiting) == ("waiting", ["claiming"], ["claiming"], ["claimed"] * 2)
    verdict = Verdict.objects.get(workload=scene.waiting)
    told = {"tier_id": str(scene.gpus[0].tier_id), "gpus": 2, "leaving": 2.0, "workloads": 1}
    assert verdict.blockers == [{"code": LEAVING, "data": told}]
    shown = verdict_explain(scene.waiting.owner, scene.waiting)
    assert shown is not None
    assert "2 of its 2" in shown.headline
    assert scene.victim.state_reason.startswith("Taken back")
    row = Eviction.objects.get()
    assert (row.workload, row.gained_by, row.units, row.lost_gpu_s) == (
        scene.victim,
        scene.waiting,
        14_000,
        60,
    )


def test_the_agent_is_told_to_stop_the_victim_and_nothing_of_the_claim() -> None:
    scene = _scene()
    agent = speaker(scene.node)
    scene.take()
    (order,) = agent.sync(report(scene.rank(), "running"))["replicas"]
    assert (order["replica_id"], order["desired"]) == (str(scene.rank().id), "stop")


def test_a_claim_does_not_start_before_its_victim_has_left() -> None:
    scene = _scene()
    agent = speaker(scene.node)
    scene.take()
    assert claims_turn() == []
    _leave(agent, scene.rank())
    assert _states(scene.victim) == ("waiting", ["ended"], ["exited"], ["ended"] * 2)
    assert claims_turn() == [scene.waiting.id]
    assert _states(scene.waiting) == ("starting", ["starting"], ["assigned"], ["held"] * 2)
    scene.node.refresh_from_db()
    assert (scene.node.cpu_used_m, scene.node.memory_used_mib) == (1000, 1024)
    assert not Verdict.objects.filter(workload=scene.waiting).exists()
    (order,) = agent.sync()["replicas"]
    assert order["desired"] == "run"


def test_a_pass_begins_with_the_claims_and_counts_them_as_taken() -> None:
    scene = _scene()
    agent = speaker(scene.node)
    scene.take()
    other = make.workload(make.team(), scene.gpus[0].tier, gpus=1)
    assert pass_once().started == []
    _leave(agent, scene.rank())
    assert pass_once().started == [scene.waiting.id]
    assert _states(other)[0] == "waiting"


def test_what_is_taken_back_waits_again_and_keeps_its_age() -> None:
    scene = _scene()
    agent = speaker(scene.node)
    queued_at = scene.victim.queued_at
    scene.take()
    _leave(agent, scene.rank(), code=1)
    scene.victim.refresh_from_db()
    assert (scene.victim.state, scene.victim.queued_at, scene.victim.ended_at) == ("waiting", queued_at, None)
    assert scene.victim.state_reason.startswith("Taken back")
    request = next(one for one in snapshot_load().snapshot.requests)
    assert request.workload_id == str(scene.victim.id)


def test_what_ended_by_itself_before_the_stop_reached_it_has_succeeded() -> None:
    scene = _scene()
    agent = speaker(scene.node)
    scene.take()
    _leave(agent, scene.rank(), exit_reason="exited")
    assert _states(scene.victim)[0] == "succeeded"
    assert claims_turn() == [scene.waiting.id]


def test_what_ran_out_of_time_while_it_left_has_failed() -> None:
    scene = _scene()
    agent = speaker(scene.node)
    scene.take()
    _leave(agent, scene.rank(), exit_reason="time_limit", code=None)
    assert _states(scene.victim)[0] == "failed"


def test_what_its_owner_stops_while_it_leaves_is_cancelled() -> None:
    scene = _scene()
    agent = speaker(scene.node)
    scene.take()
    workload_stop_begin(workload_id=scene.victim.id, actor=scene.victim.owner)
    _leave(agent, scene.rank())
    assert _states(scene.victim)[0] == "cancelled"


def test_a_claim_dies_with_its_owner() -> None:
    scene = _scene()
    agent = speaker(scene.node)
    scene.take()
    workload_stop(actor=scene.waiting.owner, workload=scene.waiting)
    assert _states(scene.waiting) == ("cancelled", ["ended"], ["exited"], ["dropped"] * 2)
    _leave(agent, scene.rank())
    assert claims_turn() == []
    assert pass_once().started == [scene.victim.id]


def test_a_claim_dies_with_a_lost_node(advance_clock: Callable[[float], None]) -> None:
    from scheduling.losses import node_lost

    scene = _scene()
    scene.take()
    advance_clock(1000)
    assert node_lost(node_id=scene.node.id)
    assert _states(scene.waiting) == ("waiting", ["ended"], ["exited"], ["dropped"] * 2)
    assert _states(scene.victim)[3] == ["unconfirmed"] * 2


def test_a_claim_expires_and_its_owner_waits_again(advance_clock: Callable[[float], None]) -> None:
    scene = _scene()
    scene.take()
    advance_clock(5000)
    assert claims_turn() == []
    assert _states(scene.waiting) == ("waiting", ["ended"], ["exited"], ["dropped"] * 2)
    assert Attempt.objects.get(workload=scene.waiting).end_reason == "claim_expired"
    assert str(scene.waiting.id) in {one.workload_id for one in snapshot_load().snapshot.requests}


def test_a_claim_on_a_node_that_was_cordoned_is_given_up() -> None:
    scene = _scene()
    agent = speaker(scene.node)
    scene.take()
    _leave(agent, scene.rank())
    Node.objects.filter(pk=scene.node.pk).update(cordoned=True)
    assert claims_turn() == []
    assert _states(scene.waiting)[1] == ["ended"]


def test_nobody_can_steal_what_is_promised() -> None:
    scene = _scene()
    agent = speaker(scene.node)
    scene.take()
    loaded = snapshot_load()
    _leave(agent, scene.rank())
    thief = make.workload(make.team(), scene.gpus[0].tier)
    done = commit(start(thief, on(scene.gpus[0])), loaded=loaded)
    assert done.refused == {thief.id: "gpu_taken"}
    assert claims_turn() == [scene.waiting.id]


def test_a_claim_that_does_not_get_all_takes_its_stops_with_it_and_no_others() -> None:
    first, second = _scene(), _scene()
    promised = make.replica(
        make.attempt(make.workload(make.team(), second.gpus[0].tier), second.gpus[0].tier), second.node
    )
    Allocation.objects.filter(gpu=second.gpus[0]).update(state="stopping")
    make.allocation(promised, second.gpus[0], state="claimed")
    done = commit(
        claim(first.waiting, on(*first.gpus), victims=[first.victim]),
        stop(first.victim, first.waiting),
        claim(second.waiting, on(*second.gpus), victims=[second.victim]),
        stop(second.victim, second.waiting),
    )
    assert done.refused == {second.waiting.id: "gpu_taken"}
    assert (done.claimed, done.stopped) == ([first.waiting.id], [first.victim.id])
    assert _states(second.victim)[0] == "running"
    assert _states(second.waiting)[1] == []
    assert Eviction.objects.count() == 1


def test_a_victim_that_has_ended_meanwhile_is_no_hindrance() -> None:
    scene = _scene()
    agent = speaker(scene.node)
    loaded = snapshot_load()
    _leave(agent, scene.rank(), exit_reason="exited")
    done = commit(
        claim(scene.waiting, on(*scene.gpus), victims=[scene.victim]),
        stop(scene.victim, scene.waiting),
        loaded=loaded,
    )
    assert (done.claimed, done.stopped) == ([scene.waiting.id], [])
    assert claims_turn() == [scene.waiting.id]


def test_nothing_is_taken_back_while_we_are_cut_off() -> None:
    scene = _scene()
    tier = scene.gpus[0].tier
    for _ in range(3):
        make.node(tier, 1, state="lost", last_sync_at=clock.now() - timedelta(hours=1))
    done = commit(
        claim(scene.waiting, on(*scene.gpus), victims=[scene.victim]), stop(scene.victim, scene.waiting)
    )
    assert done.refused == {scene.waiting.id: "evictions_frozen"}
    assert _states(scene.victim)[0] == "running"


def test_moved_work_claims_elsewhere_before_it_leaves() -> None:
    scene = _scene()
    agent = speaker(scene.node)
    elsewhere = make.node(scene.gpus[0].tier, 2)
    done = commit(
        claim(scene.waiting, on(*scene.gpus), victims=[scene.victim]),
        stop(scene.victim, scene.waiting, reason="consolidate"),
        claim(scene.victim, on(*elsewhere.gpus.all())),
    )
    assert not done.refused
    assert _states(scene.victim)[:2] == ("stopping", ["stopping", "claiming"])
    assert claims_turn() == []
    _leave(agent, scene.rank())
    assert set(claims_turn()) == {scene.waiting.id, scene.victim.id}
    assert _states(scene.victim)[:2] == ("starting", ["ended", "starting"])


def test_a_pass_moves_work_together_and_both_start_once_it_has_left() -> None:
    tier = make.tier()
    here, there = make.node(tier, 2), make.node(tier, 2)
    mover, stays = (make.workload(make.team(), tier, preemptible=can) for can in (True, False))
    make.placed(mover, [here.gpus.all()[0]], running=True)
    make.placed(stays, [there.gpus.all()[0]], running=True)
    waiting = make.workload(make.team(), tier, gpus=2, preemptible=True)
    agent, policy = speaker(here), Policy(min_run_s=0)
    assert pass_once(Policy(min_run_s=0, consolidation_movers=0)).claimed == []
    done = pass_once(policy)
    assert (set(done.claimed), done.stopped, done.refused) == ({mover.id, waiting.id}, [mover.id], {})
    assert _states(mover)[:2] == ("stopping", ["stopping", "claiming"])
    assert mover.state_reason == "Moved to other GPUs, so that larger work fits."
    assert (Eviction.objects.get().reason, Eviction.objects.get().gained_by) == ("consolidate", waiting)
    again = pass_once(policy)
    assert (again.claimed, again.stopped, again.started) == ([], [], [])
    _leave(agent, Replica.objects.get(attempt__workload=mover, state="stopping"))
    assert set(claims_turn()) == {mover.id, waiting.id}
    for workload, node in ((mover, there), (waiting, here)):
        rank = Replica.objects.get(attempt__workload=workload, state="assigned")
        assert rank.node_id == node.id
    assert _states(mover)[:2] == ("starting", ["ended", "starting"])
    assert verdict_explain(waiting.owner, waiting) is None


def test_work_that_cannot_be_moved_whole_is_not_moved() -> None:
    scene = _scene()
    elsewhere = make.node(scene.gpus[0].tier, 2)
    loaded = snapshot_load()
    make.placed(make.workload(make.team(), scene.gpus[0].tier), list(elsewhere.gpus.all()))
    done = commit(
        claim(scene.waiting, on(*scene.gpus), victims=[scene.victim]),
        stop(scene.victim, scene.waiting, reason="consolidate"),
        claim(scene.victim, on(*elsewhere.gpus.all())),
        loaded=loaded,
    )
    assert done.refused == {scene.victim.id: "gpu_taken", scene.waiting.id: "move_incomplete"}
    assert _states(scene.victim)[:2] == ("running", ["running"])


def test_every_move_of_a_preemption_is_told_and_names_nobody_to_the_other() -> None:
    scene = _scene()
    agent = speaker(scene.node)
    scene.take(gained_by_team="x")
    _leave(agent, scene.rank())
    claims_turn()
    told = Event.objects.filter(company_id=scene.victim.company_id).order_by("created_at")
    actions = [event.action for event in told]
    assert actions[:3] == ["workload.stop", "attempt.stopping", "replica.stopping"]
    assert "workload.requeue" in actions
    assert not any(str(scene.waiting.id) in f"{event.new}{event.reason}" for event in told)
    gained = Event.objects.filter(company_id=scene.waiting.company_id).values_list("action", flat=True)
    assert list(gained.order_by("created_at")) == ["workload.claim", "workload.start"]
