"""What a pass commits, and what happens to it when the world moves between its snapshot and its commit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection

from gpuyard.audit.models import Event
from gpuyard.core import clock
from gpuyard.fleet.models import Node
from scheduling.commit import Committed, Overtaken, plan_commit
from scheduling.engine.decisions import Plan, Policy
from scheduling.engine.plan import plan
from scheduling.explanations import verdict_explain
from scheduling.loader import Loaded, snapshot_load
from scheduling.models import (
    Allocation,
    Attempt,
    PassRecord,
    PortLease,
    Replica,
    SchedulerState,
    Verdict,
    Workload,
)
from scheduling.moments import to_us
from scheduling.passes import pass_once, pass_turns
from scheduling.records import Timings
from tests import factories as make
from tests.databases import url

Connect = Callable[..., psycopg.Connection[tuple[Any, ...]]]


def _planned() -> tuple[Loaded, Plan]:
    loaded = snapshot_load()
    return loaded, plan(loaded.snapshot, loaded.policy, loaded.now_us)


def _commit(loaded: Loaded, decided: Plan) -> Committed:
    return plan_commit(loaded, decided, Timings(clock.now(), 0.0, 0.0))


def _counts() -> tuple[int, ...]:
    rows = (Allocation, Attempt, Replica, PortLease, Verdict, PassRecord, Event)
    return tuple(model.objects.count() for model in rows)


@pytest.mark.django_db
def test_a_workload_that_fits_starts_with_all_its_rows() -> None:
    tier = make.tier()
    node = make.node(tier, 8)
    workload = make.workload(make.team(), tier, gpus=4, cpu_m=3000, memory_mib=2048)
    done = pass_once()
    workload.refresh_from_db()
    node.refresh_from_db()
    replica = Replica.objects.get()
    assert done.started == [workload.id]
    assert workload.state == "starting"
    assert {row.state for row in Allocation.objects.all()} == {"held"}
    assert [row.units for row in Allocation.objects.all()] == [7000] * 4
    assert (replica.state, replica.node_id, replica.attempt.number) == ("assigned", node.id, 1)
    assert (node.cpu_used_m, node.memory_used_mib) == (3000, 2048)
    assert Event.objects.get(action="workload.start").subject_id == workload.id


@pytest.mark.django_db
def test_a_gang_gets_ports_to_meet_at_and_rising_fencing_tokens() -> None:
    tier = make.tier()
    make.node(tier, 2, name="a")
    make.node(tier, 2, name="b")
    make.workload(make.team(), tier, gpus=2, replicas=2)
    pass_once()
    first, second = Replica.objects.order_by("index")
    assert first.node_id != second.node_id
    assert first.fencing_token != second.fencing_token
    assert [lease.name for lease in PortLease.objects.all()] == ["rendezvous", "rendezvous"]


@pytest.mark.django_db
def test_a_verdict_is_stored_and_goes_with_the_start() -> None:
    tier = make.tier()
    workload = make.workload(make.team(), tier, gpus=2)
    pass_once()
    assert Verdict.objects.get().workload_id == workload.id
    make.node(tier, 2)
    pass_once()
    workload.refresh_from_db()
    assert workload.state == "starting"
    assert not Verdict.objects.exists()


@pytest.mark.django_db
def test_an_unchanged_verdict_is_not_written_again() -> None:
    make.workload(make.team(), make.tier(), gpus=2)
    first = pass_once()
    pass_once()
    assert Verdict.objects.get().pass_number == first.pass_number
    assert [record.number for record in PassRecord.objects.all()] == [first.pass_number]


@pytest.mark.django_db
def test_a_pass_that_was_overtaken_changes_nothing() -> None:
    tier = make.tier()
    make.node(tier, 8)
    make.workload(make.team(), tier, gpus=2)
    stalled = _planned()
    make.workload(make.team(), tier, gpus=1)
    pass_once()
    before = _counts()
    with pytest.raises(Overtaken):
        _commit(*stalled)
    assert _counts() == before


@pytest.mark.django_db
def test_a_cordon_between_snapshot_and_commit_is_honoured() -> None:
    tier = make.tier()
    node = make.node(tier, 8)
    workload = make.workload(make.team(), tier, gpus=2)
    decided = _planned()
    Node.objects.filter(pk=node.pk).update(cordoned=True, epoch=node.epoch + 1)
    done = _commit(*decided)
    workload.refresh_from_db()
    assert done.refused == {workload.id: "node_changed"}
    assert workload.state == "waiting"
    assert not Allocation.objects.exists()
    assert Verdict.objects.get().blockers[0]["code"] == "changed_meanwhile"


@pytest.mark.django_db
def test_a_cancel_between_snapshot_and_commit_is_honoured() -> None:
    tier = make.tier()
    make.node(tier, 8)
    cancelled = make.workload(make.team(), tier, gpus=2)
    other = make.workload(make.team(), tier, gpus=2)
    decided = _planned()
    Workload.objects.filter(pk=cancelled.pk).update(state="cancelled")
    done = _commit(*decided)
    cancelled.refresh_from_db()
    assert done.started == [other.id]
    assert cancelled.state == "cancelled"
    assert not Attempt.objects.filter(workload=cancelled).exists()


@pytest.mark.django_db
def test_a_gang_that_lost_one_gpu_gets_none_and_the_rest_goes_on() -> None:
    tier = make.tier()
    nodes = [make.node(tier, 2), make.node(tier, 2)]
    gang = make.workload(make.team(), tier, gpus=2, replicas=2, priority=5)
    decided = _planned()
    thief = make.replica(make.attempt(make.workload(make.team(), tier), tier), nodes[0])
    make.allocation(thief, nodes[0].gpus.all()[0])
    done = _commit(*decided)
    gang.refresh_from_db()
    assert done.refused == {gang.id: "gpu_taken"}
    assert gang.state == "waiting"
    assert Allocation.objects.filter(workload=gang).count() == 0
    assert PortLease.objects.count() == 0


@pytest.mark.django_db
def test_a_snapshot_takes_a_bounded_number_of_queries(django_assert_max_num_queries: Any) -> None:
    tier = make.tier()
    for _ in range(4):
        make.node(tier, 2)
        make.workload(make.team(), tier, gpus=2)
    pass_once()
    with django_assert_max_num_queries(28):
        snapshot_load()


@pytest.mark.django_db(transaction=True)
def test_only_one_process_runs_passes(other_connection: Connect) -> None:
    elsewhere = other_connection()
    elsewhere.execute("SELECT pg_advisory_lock(%s)", (0x67707579,))
    assert pass_turns() == []
    elsewhere.execute("SELECT pg_advisory_unlock(%s)", (0x67707579,))
    assert len(pass_turns()) == 1


@pytest.mark.django_db(transaction=True)
def test_a_pass_killed_in_its_commit_leaves_nothing_and_the_next_one_does_it_all(
    owner_connection: psycopg.Connection[tuple[Any, ...]],
) -> None:
    tier = make.tier()
    make.node(tier, 8)
    workload = make.workload(make.team(), tier, gpus=4, replicas=2)
    # The commit's last statement stalls, so that the kill meets it with everything else already written.
    owner_connection.execute(
        "CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(60); RETURN NEW; END $$"
    )
    owner_connection.execute(
        "CREATE TRIGGER stall BEFORE INSERT ON scheduling_passrecord FOR EACH ROW EXECUTE FUNCTION stall()"
    )
    before = _counts()
    worker = subprocess.Popen(
        [sys.executable, "manage.py", "shell", "-c", "from scheduling.tasks import pass_run; pass_run()"],
        env={**os.environ, "DATABASE_URL": url("default"), "MIGRATE_DATABASE_URL": url("owner")},
        start_new_session=True,
    )
    _wait_until(lambda: _sleeping(owner_connection) == 1)
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    owner_connection.execute("DROP TRIGGER stall ON scheduling_passrecord")
    # The server notices the lost client when the statement ends: we do not wait for that, but end it.
    owner_connection.execute(
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    )
    _wait_until(lambda: _sleeping(owner_connection) == 0)
    assert _counts() == before
    assert SchedulerState.objects.get().pass_number == 0
    _wait_until(lambda: bool(pass_turns()))
    workload.refresh_from_db()
    assert workload.state == "starting"
    assert Allocation.objects.filter(state="held").count() == 8


def _sleeping(own: psycopg.Connection[tuple[Any, ...]]) -> int:
    row = own.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    ).fetchone()
    return int(row[0]) if row else 0


def _wait_until(claim: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    connection.close_if_unusable_or_obsolete()


@pytest.mark.django_db
def test_the_snapshot_carries_what_is_lent_and_the_weight() -> None:
    tier, company = make.tier(), make.company()
    row = make.quota(company, tier, guaranteed_gpus=8)
    type(row).objects.filter(pk=row.pk).update(lend_limit=2 * 7000, weight=3)
    (quota,) = snapshot_load().snapshot.quotas
    assert (quota.guaranteed, quota.lend_limit, quota.weight) == (8 * 7000, 2 * 7000, 3)


@pytest.mark.django_db
def test_a_promised_start_is_known_to_the_next_pass() -> None:
    tier = make.tier()
    make.node(tier, 2)
    runs = make.workload(make.team(), tier, gpus=2, time_limit_s=3600)
    pass_once()
    waits = make.workload(make.team(), tier, gpus=2)
    pass_once()
    verdict = Verdict.objects.get(workload=waits)
    assert (verdict.eta_basis, verdict.eta is not None) == ("promise", True)
    loaded = snapshot_load().snapshot
    assert loaded.live[0].workload_id == str(runs.id)
    assert verdict.eta is not None
    assert loaded.requests[0].promised_us == to_us(verdict.eta)


@pytest.mark.django_db
def test_fair_shares_and_the_verdict_before_are_kept() -> None:
    company, tier = make.company(), make.tier()
    team = make.team(company)
    make.node(tier, 2)
    for _ in range(2):
        make.workload(team, tier, gpus=2)
    last = make.workload(team, tier, gpus=1)
    pass_once()
    assert SchedulerState.objects.get().shares == {
        str(tier.pk): {str(company.pk): 14_000, str(team.pk): 14_000}
    }
    assert last.verdict.before is None
    make.quota(team, tier, limit_gpus=2)
    pass_once()
    last.verdict.refresh_from_db()
    before = last.verdict.before
    assert before is not None
    assert (before["position"], before["codes"]) == (2, ["not_enough_free_gpus"])


@pytest.mark.django_db
def test_a_persons_sessions_are_counted_over_all_teams() -> None:
    tier, company = make.tier(), make.company()
    make.node(tier, 4)
    ana = make.user("member", company)
    first, second = (make.workload(make.team(company), tier, owner=ana, kind="development") for _ in range(2))
    assert len(pass_once(Policy(sessions_per_person=1)).started) == 1
    (waits,) = Workload.objects.filter(state="waiting", pk__in=[first.pk, second.pk])
    shown = verdict_explain(ana, waits)
    assert shown is not None
    assert shown.headline == (
        "Waiting: its owner's sessions may hold 1 GPU at once; they hold 1 and this asks for 1"
    )
    assert pass_once().started == [waits.pk]
