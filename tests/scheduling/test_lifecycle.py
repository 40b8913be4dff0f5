"""From `starting` to the end: what the reports of replicas make of their workload."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, transaction

from gpuyard.audit.models import Event
from gpuyard.core import clock
from gpuyard.core.errors import StaleState
from gpuyard.fleet.models import Node
from scheduling.lifecycle import Window, workload_stop_begin
from scheduling.models import Allocation, Attempt, PortLease, Replica, Workload
from tests import factories as make
from tests.scheduling.speaking import Speaker, exited, report, speaker

pytestmark = pytest.mark.django_db


def _single(gpus: int = 1, *, running: bool = False, **fields: Any) -> tuple[Speaker, Replica, Workload]:
    node = make.node(make.tier(), gpus)
    workload = make.workload(gpus=gpus, **fields)
    replica = make.placed(workload, list(node.gpus.all()), running=running).replicas.get()
    PortLease.objects.create(node=node, port=20_000, replica=replica, name="http")
    return speaker(node), replica, workload


def _gang(
    size: int = 2, *, running: bool = True, **fields: Any
) -> tuple[list[Speaker], list[Replica], Workload]:
    tier = make.tier()
    nodes = [make.node(tier, 2) for _ in range(size)]
    workload = make.workload(gpus=2, replicas=size, **fields)
    attempt = make.placed(workload, *(list(node.gpus.all()) for node in nodes), running=running)
    return [speaker(node) for node in nodes], list(attempt.replicas.order_by("index")), workload


def _states(workload: Workload) -> tuple[str, str]:
    workload.refresh_from_db()
    return workload.state, Attempt.objects.filter(workload=workload).latest("number").state


def _allocations(workload: Workload) -> set[str]:
    return set(Allocation.objects.filter(workload=workload).values_list("state", flat=True))


# --- Times -----------------------------------------------------------------------------------------------------


def test_reported_times_are_clamped_to_the_last_answered_sync_and_now() -> None:
    now = clock.now()
    window = Window(now - timedelta(seconds=10), now)
    assert window.moment(4.0) == now - timedelta(seconds=4)
    assert window.moment(11.0) == window.last_answered_at
    assert window.moment(1e8) == window.last_answered_at
    assert window.moment(0.0) == window.moment(None) == now


def test_an_end_lies_after_the_last_answered_sync_and_after_the_start() -> None:
    agent, replica, _ = _single(running=True)
    agent.sync(report(replica, "running"))
    last = Node.objects.get().last_sync_at
    agent.sync(exited(replica, 0, ended_ago_s=5000.0))
    allocation = Allocation.objects.get()
    assert allocation.span.upper == last
    assert Replica.objects.get().ended_at == last


def test_an_end_reported_from_before_the_start_is_the_shortest_span() -> None:
    agent, replica, _ = _single()
    Node.objects.update(last_sync_at=clock.now() - timedelta(minutes=5))
    agent.sync(exited(replica, 0, running_ago_s=200.0, ended_ago_s=200.0))
    allocation = Allocation.objects.get()
    assert allocation.span.upper - allocation.span.lower == timedelta(microseconds=1)


# --- Running and ending -----------------------------------------------------------------------------------------


def test_a_workload_runs_once_all_its_ranks_do() -> None:
    (first, second), (zero, one), workload = _gang(running=False)
    first.sync(report(zero, "running", running_ago_s=0.0))
    assert _states(workload) == ("starting", "starting")
    second.sync(report(one, "starting"))
    second.sync(report(one, "running", running_ago_s=0.0))
    assert _states(workload) == ("running", "running")
    assert workload.started_at == Replica.objects.get(pk=one.pk).running_at
    assert None not in Allocation.objects.values_list("running_at", flat=True)


def test_a_success_gives_everything_back_exactly() -> None:
    agent, replica, workload = _single(running=True)
    agent.sync(exited(replica, 0))
    assert _states(workload) == ("succeeded", "ended")
    node = Node.objects.get()
    assert (node.cpu_used_m, node.memory_used_mib) == (0, 0)
    assert not PortLease.objects.exists()
    assert _allocations(workload) == {"ended"}
    agent.sync(exited(replica, 0))  # said again, it gives nothing back twice
    assert Node.objects.get().cpu_used_m == 0


def test_a_failure_keeps_its_exit_code() -> None:
    agent, replica, workload = _single(running=True)
    agent.sync(exited(replica, 3))
    assert _states(workload) == ("failed", "ended")
    assert workload.exit_code == 3
    assert workload.state_reason == "The program ended with exit code 3"


def test_a_signal_is_a_failure() -> None:
    agent, replica, workload = _single(running=True)
    agent.sync(exited(replica, None, exit_reason="signal", signal=9))
    assert _states(workload) == ("failed", "ended")
    assert workload.exit_code == 137
    assert workload.state_reason == "The program was ended by signal 9"


def test_a_program_that_cannot_start() -> None:
    agent, replica, workload = _single()
    agent.sync(exited(replica, None, exit_reason="start_failed", message="no such file: x"))
    assert _states(workload) == ("failed", "ended")
    assert workload.state_reason == "The program could not start: no such file: x"


def test_a_long_message_keeps_its_end() -> None:
    agent, replica, workload = _single()
    message = f"command {'x' * 60_000}: not found"
    agent.sync(exited(replica, None, exit_reason="start_failed", message=message))
    assert _states(workload) == ("failed", "ended")
    assert len(workload.state_reason) <= 400
    assert workload.state_reason.startswith("The program could not start: command xxx")
    assert workload.state_reason.endswith("xxx: not found")


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("shim_lost", "failed"),
        ("lost_on_reboot", "waiting"),
        ("stopped", "waiting"),
        ("of a newer agent", "failed"),
    ],
)
def test_an_end_that_is_not_the_programs_own(reason: str, state: str) -> None:
    agent, replica, workload = _single(running=True)
    agent.sync(exited(replica, None, exit_reason=reason))
    assert _states(workload) == (state, "ended")


def test_what_ran_on_an_agent_that_lost_its_memory_is_cleared_up_and_requeued() -> None:
    agent, replica, workload = _single(running=True)
    assert agent.sync()["replicas"][0]["desired"] == "stop"
    assert _allocations(workload) == {"held"}
    agent.sync(exited(replica, None, exit_reason="stopped"))
    assert _states(workload) == ("waiting", "ended")


@pytest.mark.parametrize(("kind", "state"), [("training", "failed"), ("development", "succeeded")])
def test_a_time_limit(kind: str, state: str) -> None:
    agent, replica, workload = _single(running=True, kind=kind)
    agent.sync(exited(replica, 143, exit_reason="time_limit"))
    assert _states(workload) == (state, "ended")


def test_what_is_left_on_a_gpu_keeps_it_stopping() -> None:
    agent, replica, workload = _single(running=True)
    answer = agent.sync(exited(replica, 5, clean=False))
    assert answer["replicas"][0]["desired"] == "stop"
    assert answer["forget"] == []
    assert _allocations(workload) == {"stopping"}
    assert _states(workload) == ("stopping", "stopping")
    assert Node.objects.get().cpu_used_m > 0

    agent.sync(exited(replica, 5, clean=False))
    assert _allocations(workload) == {"stopping"}
    agent.sync(exited(replica, 5, clean=True))
    assert _allocations(workload) == {"ended"}
    assert _states(workload) == ("failed", "ended")
    assert workload.exit_code == 5


def test_the_first_exit_code_stands() -> None:
    agent, replica, _ = _single(running=True)
    agent.sync(exited(replica, 5, clean=False))
    agent.sync(exited(replica, 0, clean=True))
    assert Replica.objects.get().exit_code == 5


def test_states_never_go_back() -> None:
    agent, replica, workload = _single(running=True)
    agent.sync(report(replica, "starting"))
    assert Replica.objects.get().state == "running"
    agent.sync(report(replica, "stopping"))
    assert _allocations(workload) == {"stopping"}
    agent.sync(report(replica, "running"))
    assert Replica.objects.get().state == "stopping"


def test_an_ended_allocation_does_not_change() -> None:
    agent, replica, _ = _single(running=True)
    agent.sync(exited(replica, 0))
    with pytest.raises(DatabaseError), transaction.atomic():
        Allocation.objects.update(state="held")


def test_health_is_noted() -> None:
    agent, replica, _ = _single(running=True, kind="inference")
    agent.sync(report(replica, "running", healthy=True))
    assert Replica.objects.get().healthy is True
    agent.sync(report(replica, "running", healthy=False))
    assert Replica.objects.get().healthy is False


# --- Gangs --------------------------------------------------------------------------------------------------------


def test_one_failed_rank_stops_the_others() -> None:
    (first, second), (zero, one), workload = _gang()
    second.sync(exited(one, 3))
    assert _states(workload) == ("stopping", "stopping")
    answer = first.sync(report(zero, "running"))
    assert answer["replicas"][0]["desired"] == "stop"
    assert _allocations(workload) == {"ended", "stopping"}

    first.sync(exited(zero, 143, exit_reason="stopped"))
    assert _states(workload) == ("failed", "ended")
    assert workload.exit_code == 3
    assert workload.state_reason == "Replica 1 ended with exit code 3"
    assert {(node.cpu_used_m, node.memory_used_mib) for node in Node.objects.all()} == {(0, 0)}


def test_a_gang_succeeds_with_its_last_rank() -> None:
    (first, second), (zero, one), workload = _gang()
    second.sync(exited(one, 0))
    assert _states(workload) == ("running", "running")
    first.sync(exited(zero, 0))
    assert _states(workload) == ("succeeded", "ended")
    assert workload.exit_code == 0


# --- Stopping on request ------------------------------------------------------------------------------------------


def test_stopping_frees_nothing_before_the_agent_says_so() -> None:
    agent, replica, workload = _single(running=True)
    actor = make.user()
    workload_stop_begin(workload_id=workload.pk, actor=actor, reason="Enough")
    assert _allocations(workload) == {"stopping"}
    assert agent.sync(report(replica, "running"))["replicas"][0]["desired"] == "stop"
    assert _states(workload) == ("stopping", "stopping")
    agent.sync(exited(replica, 143, exit_reason="stopped"))
    assert _states(workload) == ("cancelled", "ended")
    assert workload.state_reason == "Enough"
    assert workload.stop_requested_by == actor


def test_stopping_before_the_agent_ever_heard_of_it() -> None:
    agent, replica, workload = _single()
    workload_stop_begin(workload_id=workload.pk, actor=make.user(), reason="")
    assert agent.sync()["replicas"][0]["desired"] == "stop"
    agent.sync(exited(replica, None, exit_reason="stopped"))
    assert _states(workload) == ("cancelled", "ended")


@pytest.mark.parametrize(
    ("kind", "running", "by_owner", "state"),
    [
        ("development", True, True, "succeeded"),
        ("inference", True, True, "succeeded"),
        ("development", False, True, "cancelled"),
        ("development", True, False, "cancelled"),
        ("training", True, True, "cancelled"),
    ],
)
def test_what_a_stop_means(kind: str, running: bool, by_owner: bool, state: str) -> None:
    agent, replica, workload = _single(running=running, kind=kind)
    actor = workload.owner if by_owner else make.admin()
    workload_stop_begin(workload_id=workload.pk, actor=actor, reason="")
    agent.sync(exited(replica, 143, exit_reason="stopped"))
    assert _states(workload) == (state, "ended")


def test_a_stop_that_came_too_late_leaves_a_success() -> None:
    agent, replica, workload = _single(running=True)
    workload_stop_begin(workload_id=workload.pk, actor=workload.owner, reason="")
    agent.sync(exited(replica, 0))
    assert _states(workload) == ("succeeded", "ended")


def test_stopping_twice_is_stopping_once() -> None:
    _, _, workload = _single(running=True)
    workload_stop_begin(workload_id=workload.pk, actor=workload.owner, reason="")
    events = Event.objects.count()
    workload_stop_begin(workload_id=workload.pk, actor=make.user(), reason="")
    assert Event.objects.count() == events
    workload.refresh_from_db()
    assert workload.stop_requested_by == workload.owner


@pytest.mark.parametrize("state", ["waiting", "succeeded"])
def test_what_is_not_placed_cannot_be_stopped_here(state: str) -> None:
    workload = make.workload(state=state)
    with pytest.raises(StaleState):
        workload_stop_begin(workload_id=workload.pk, actor=workload.owner, reason="")


def test_every_move_has_its_event() -> None:
    agent, replica, workload = _single()
    agent.sync(report(replica, "running"))
    agent.sync(exited(replica, 3))
    actions = Event.objects.order_by("created_at", "id").values_list("action", flat=True)
    assert list(actions) == [
        "replica.running",
        "attempt.running",
        "workload.run",
        "replica.exited",
        "attempt.stopping",
        "workload.stop",
        "attempt.ended",
        "workload.fail",
    ]
    last = Event.objects.get(action="workload.fail")
    assert last.company_id == workload.company_id
    assert last.new == {"state": "failed", "attempt": 1, "exit_code": 3}


def test_the_end_wakes_the_pass(django_capture_on_commit_callbacks: Callable[..., Any]) -> None:
    agent, replica, _ = _single(running=True)
    with django_capture_on_commit_callbacks() as callbacks:
        agent.sync(exited(replica, 0))
    assert len(callbacks) == 1


def test_events_of_attempts_and_replicas_name_the_team() -> None:
    agent, replica, workload = _single(running=True)
    agent.sync(exited(replica, 0))
    events = Event.objects.filter(subject_type__in=("attempt", "replica"))
    assert {event.action for event in events} >= {"attempt.ended", "replica.exited"}
    assert {event.team_id for event in events} == {workload.team_id}
