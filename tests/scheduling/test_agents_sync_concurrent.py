"""Syncs beside one another and beside a stop, on real connections."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from django.db import connection

from gpuyard.core.errors import StaleState
from gpuyard.fleet.models import Node
from scheduling.lifecycle import workload_stop_begin
from scheduling.models import Allocation, Replica, Workload
from tests import factories as make
from tests.conftest import Connection
from tests.scheduling.speaking import Speaker, exited, report, speaker

pytestmark = pytest.mark.django_db(transaction=True)


def _gang(size: int) -> tuple[list[Speaker], list[Replica], Workload]:
    tier = make.tier()
    nodes = [make.node(tier, 1) for _ in range(size)]
    workload = make.workload(replicas=size)
    attempt = make.placed(workload, *(list(node.gpus.all()) for node in nodes))
    return [speaker(node) for node in nodes], list(attempt.replicas.order_by("index")), workload


def _in_thread(act: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        try:
            return act()
        finally:
            connection.close()

    return run


def _wait_for_waiters(other: Connection, count: int) -> None:
    statement = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    for _ in range(500):
        row = other.execute(statement).fetchone()
        if row and row[0] >= count:
            return
        threading.Event().wait(0.01)
    raise AssertionError("nobody waits for the lock")


def test_two_ranks_that_begin_at_once_are_both_seen(other_connection: Callable[..., Connection]) -> None:
    agents, replicas, workload = _gang(2)
    blocker, watcher = other_connection(autocommit=False), other_connection()
    blocker.execute("SELECT 1 FROM scheduling_workload WHERE id = %s FOR UPDATE", (workload.pk,))
    with ThreadPoolExecutor(2) as threads:
        # Both have written their own replica, and see nothing of the other's, when they come to the workload.
        syncs = [
            threads.submit(_in_thread(partial(agent.sync, report(replica, "running"))))
            for agent, replica in zip(agents, replicas, strict=True)
        ]
        _wait_for_waiters(watcher, 2)
        blocker.rollback()
        for one in syncs:
            one.result(timeout=20)
    workload.refresh_from_db()
    assert workload.state == "running"


def test_ranks_ending_and_a_stop_all_at_once_end_once() -> None:
    for turn in range(4):
        agents, replicas, workload = _gang(4)
        for agent, replica in zip(agents, replicas, strict=True):
            agent.sync(report(replica, "running"))
        acts: list[Callable[[], Any]] = [
            partial(agent.sync, exited(replica, index))
            for index, (agent, replica) in enumerate(zip(agents, replicas, strict=True))
        ]
        acts.insert(turn, partial(_stop, workload))
        with ThreadPoolExecutor(len(acts)) as threads:
            for one in [threads.submit(_in_thread(act)) for act in acts]:
                one.result(timeout=30)
        workload.refresh_from_db()
        assert workload.state in ("failed", "cancelled")
        assert {node.cpu_used_m for node in Node.objects.all()} == {0}
        assert set(Allocation.objects.values_list("state", flat=True)) == {"ended"}


def _stop(workload: Workload) -> None:
    try:
        workload_stop_begin(workload_id=workload.pk, actor=workload.owner, reason="")
    except StaleState:
        return  # it had ended


def test_the_same_sync_twice_at_once_is_applied_once() -> None:
    (agent,), (replica,), _ = _gang(1)
    agent.seq = 1
    body = agent.message(exited(replica, 0))
    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(_in_thread(lambda: agent.send(body))) for _ in range(4)]
        statuses = sorted(one.result(timeout=20).status_code for one in answers)
    assert statuses == [200, 409, 409, 409]
    assert Node.objects.get().cpu_used_m == 0
