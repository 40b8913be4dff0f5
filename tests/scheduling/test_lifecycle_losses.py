"""Nodes that fall silent: what they hold stays held, costs nothing, and is requeued only when its end is known."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gpuyard.audit.models import Event
from gpuyard.core import clock
from gpuyard.core.errors import Conflict, Forbidden
from gpuyard.fleet.models import GpuCondition, Node
from scheduling.lifecycle import workload_stop_begin
from scheduling.losses import node_confirm_dead, node_lost, nodes_check
from scheduling.models import Allocation, Attempt, Replica, Workload, WorkloadSpec
from scheduling.passes import pass_once
from tests import factories as make
from tests.scheduling.speaking import exited, report, rows_dump, speaker

pytestmark = pytest.mark.django_db


def _running(**fields: Any) -> tuple[Node, Replica, Workload]:
    node = make.node(make.tier(), 1)
    workload = make.workload(**fields)
    since = clock.now() - timedelta(hours=1)
    replica = make.placed(workload, list(node.gpus.all()), running=True, since=since).replicas.get()
    return node, replica, workload


def _silent(node: Node, seconds: float = 100.0) -> None:
    Node.objects.filter(pk=node.pk).update(last_sync_at=clock.now() - timedelta(seconds=seconds))
    node.refresh_from_db()


def _lost(**fields: Any) -> tuple[Node, Replica, Workload]:
    node, replica, workload = _running(**fields)
    _silent(node)
    assert nodes_check().lost == 1
    node.refresh_from_db()
    return node, replica, workload


def _state(workload: Workload) -> str:
    workload.refresh_from_db()
    return workload.state


def _conditions(node: Node) -> list[str]:
    rows = GpuCondition.objects.filter(gpu__node=node).order_by("span")
    return list(rows.values_list("condition", flat=True))


def test_a_node_within_its_lease_is_left_alone() -> None:
    node, _, _ = _running()
    _silent(node, 80.0)
    before = rows_dump()
    assert nodes_check().lost == 0
    assert node_lost(node_id=node.pk) is False
    assert rows_dump() == before


def test_a_lost_node_holds_on_without_charge() -> None:
    node, replica, workload = _lost()
    allocation = Allocation.objects.get()
    assert node.state == "lost"
    assert allocation.state == "unconfirmed"
    assert [(one.lower, one.upper) for one in allocation.uncharged] == [(node.last_sync_at, None)]
    assert Replica.objects.get().state == "lost"
    assert _state(workload) == "running"
    assert node.cpu_used_m == replica.cpu_m
    assert _conditions(node) == ["ready", "down"]
    assert nodes_check().lost == 0


def test_losing_a_node_ends_the_claims_on_it() -> None:
    tier = make.tier()
    node, other = make.node(tier, 1), make.node(tier, 1)
    workload = make.workload(replicas=2)
    attempt = make.attempt(workload, tier, state="claiming")
    for index, host in enumerate((node, other)):
        rank = make.replica(attempt, host, index=index, state="claiming")
        make.allocation(rank, host.gpus.get(), state="claimed")
    _silent(node)
    nodes_check()
    assert set(Allocation.objects.values_list("state", flat=True)) == {"dropped"}
    assert Attempt.objects.get().state == "ended"
    assert _state(workload) == "waiting"


def test_a_node_that_is_back_holds_what_it_held() -> None:
    node, replica, workload = _lost()
    epoch, since = node.epoch, node.last_sync_at
    agent = speaker(node)
    answer = agent.sync(report(replica, "running", running_ago_s=500.0))
    node.refresh_from_db()
    allocation = Allocation.objects.get()
    assert (node.state, allocation.state, Replica.objects.get().state) == ("ready", "held", "running")
    assert [(one.lower, one.upper) for one in allocation.uncharged] == [(since, node.last_sync_at)]
    assert node.epoch > epoch
    assert answer["replicas"][0]["desired"] == "run"
    assert _state(workload) == "running"
    assert _conditions(node) == ["ready", "down", "ready"]


def test_what_ended_while_its_node_was_lost_ends_with_its_return() -> None:
    node, replica, workload = _lost()
    since = node.last_sync_at
    speaker(node).sync(exited(replica, 0, ended_ago_s=50.0))
    node.refresh_from_db()
    allocation = Allocation.objects.get()
    assert _state(workload) == "succeeded"
    assert allocation.span.upper == node.last_sync_at
    assert [(one.lower, one.upper) for one in allocation.uncharged] == [(since, node.last_sync_at)]


def test_stopping_was_stopping_and_comes_back_so() -> None:
    node, replica, workload = _running()
    workload_stop_begin(workload_id=workload.pk, actor=workload.owner, reason="")
    _silent(node)
    nodes_check()
    assert Allocation.objects.get().state == "unconfirmed"
    answer = speaker(node).sync(report(replica, "running"))
    assert Allocation.objects.get().state == "stopping"
    assert answer["replicas"][0]["desired"] == "stop"


def test_a_stop_while_the_node_is_lost_waits_for_it() -> None:
    node, replica, workload = _lost()
    workload_stop_begin(workload_id=workload.pk, actor=workload.owner, reason="")
    assert _state(workload) == "stopping"
    assert Allocation.objects.get().state == "unconfirmed"
    agent = speaker(node)
    assert agent.sync(report(replica, "running"))["replicas"][0]["desired"] == "stop"
    assert (Replica.objects.get().state, Allocation.objects.get().state) == ("stopping", "stopping")
    agent.sync(exited(replica, 143, exit_reason="stopped"))
    assert _state(workload) == "cancelled"


def test_a_stop_ends_as_soon_as_the_lost_node_is_dead() -> None:
    node, _, workload = _lost()
    workload_stop_begin(workload_id=workload.pk, actor=workload.owner, reason="")
    node_confirm_dead(actor=make.admin(), node_id=node.pk)
    assert _state(workload) == "cancelled"


def test_a_dead_node_gives_back_and_requeues() -> None:
    node, replica, workload = _lost()
    queued_at = workload.queued_at
    node_confirm_dead(actor=make.admin(), node_id=node.pk, reason="It burnt")
    node.refresh_from_db()
    allocation = Allocation.objects.get()
    assert _state(workload) == "waiting"
    assert (workload.queued_at, workload.ended_at, workload.exit_code) == (queued_at, None, None)
    assert allocation.state == "ended"
    assert [(one.lower, one.upper) for one in allocation.uncharged] == [
        (node.last_sync_at, allocation.span.upper)
    ]
    assert (node.cpu_used_m, node.memory_used_mib, node.state, node.cordoned) == (0, 0, "lost", True)
    assert Attempt.objects.get().state == "ended"

    answer = speaker(node).sync(report(replica, "running"))  # it was not dead after all
    assert answer["replicas"] == []
    assert _conditions(node) == ["ready", "down", "cordoned"]
    assert Allocation.objects.get().span == allocation.span


def test_what_was_requeued_starts_again_elsewhere() -> None:
    node, replica, workload = _lost()
    tier = node.gpus.get().tier
    workload.spec = WorkloadSpec.objects.create(
        workload=workload, revision=2, document=make.spec_document(tier)
    )
    workload.save(update_fields=["spec"])
    node_confirm_dead(actor=make.admin(), node_id=node.pk)
    other = make.node(tier, 1)

    pass_once()

    assert _state(workload) == "starting"
    attempt = workload.attempts.get(number=2)
    again = attempt.replicas.get()
    assert again.fencing_token > replica.fencing_token
    (order,) = speaker(other).sync()["replicas"]
    assert (order["attempt"], order["desired"]) == (2, "run")


def test_a_dead_node_breaks_its_gangs() -> None:
    tier = make.tier()
    first, second = make.node(tier, 1), make.node(tier, 1)
    workload = make.workload(replicas=2)
    attempt = make.placed(workload, list(first.gpus.all()), list(second.gpus.all()), running=True)
    zero = attempt.replicas.get(index=0)
    _silent(second)
    nodes_check()
    agent = speaker(first)
    assert agent.sync(report(zero, "running"))["replicas"][0]["desired"] == "run"
    node_confirm_dead(actor=make.admin(), node_id=second.pk)
    assert _state(workload) == "stopping"
    assert agent.sync(report(zero, "running"))["replicas"][0]["desired"] == "stop"
    agent.sync(exited(zero, 143, exit_reason="stopped"))
    assert _state(workload) == "waiting"
    assert {node.cpu_used_m for node in Node.objects.all()} == {0}


def test_only_a_lost_node_is_confirmed_dead_and_only_by_an_admin() -> None:
    node, _, _ = _running()
    with pytest.raises(Conflict, match="not lost"):
        node_confirm_dead(actor=make.admin(), node_id=node.pk)
    with pytest.raises(Forbidden):
        node_confirm_dead(actor=make.user(), node_id=node.pk)


# --- What stops when it is cut off -----------------------------------------------------------------------------


def _stop_mode() -> tuple[Node, Replica, Workload]:
    return _lost(spec=make.spec_document("x", on_disconnect="stop"))


def test_what_stops_when_cut_off_is_requeued_after_lease_and_grace() -> None:
    node, _, workload = _stop_mode()
    assert nodes_check().requeued == 0
    _silent(node, 131.0)
    assert nodes_check().requeued == 1
    assert _state(workload) == "waiting"
    assert Allocation.objects.get().state == "ended"
    assert nodes_check().requeued == 0


def test_what_is_kept_is_never_requeued_by_time() -> None:
    node, _, workload = _lost()
    _silent(node, 100_000.0)
    assert nodes_check().requeued == 0
    assert _state(workload) == "running"


def test_an_agent_that_reports_the_lease_requeues_too() -> None:
    node, replica, workload = _running()
    speaker(node).sync(exited(replica, 137, exit_reason="lease"))
    assert _state(workload) == "waiting"


# --- Freeze ------------------------------------------------------------------------------------------------------


def _fleet(silent: int, well: int) -> list[Node]:
    nodes = [make.node() for _ in range(silent)]
    for _ in range(well):
        make.node()
    for node in nodes:
        _silent(node, 1000.0)
    return nodes


@pytest.mark.parametrize(
    ("silent", "well", "frozen"), [(2, 0, False), (3, 12, False), (3, 11, True), (4, 10, True)]
)
def test_when_the_fleet_is_frozen(silent: int, well: int, frozen: bool) -> None:
    _fleet(silent, well)
    assert nodes_check().silence.is_frozen is frozen


def test_nothing_is_requeued_while_frozen_and_the_alarm_is_raised_once() -> None:
    _, _, workload = _stop_mode()
    Node.objects.update(last_sync_at=clock.now() - timedelta(seconds=1000))
    nodes = _fleet(3, 0)
    for _ in range(2):
        assert nodes_check().requeued == 0
    assert _state(workload) == "running"
    assert Event.objects.filter(action="fleet.freeze").count() == 1

    for node in nodes:
        speaker(node).sync()
    assert nodes_check().requeued == 1
    assert Event.objects.filter(action="fleet.thaw").count() == 1


def test_a_cordoned_node_may_be_silent() -> None:
    for node in _fleet(3, 0):
        Node.objects.filter(pk=node.pk).update(cordoned=True)
    assert not nodes_check().silence.is_frozen


def test_the_task_runs() -> None:
    from scheduling.tasks import nodes_check as task

    node, _, _ = _running()
    _silent(node)
    task()
    node.refresh_from_db()
    assert node.state == "lost"
