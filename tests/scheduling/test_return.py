"""Work taken back by real passes: what is guaranteed starts where somebody had borrowed."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from gpuyard.fleet.models import Node
from scheduling.models import Allocation, Eviction, Replica, Workload
from scheduling.passes import pass_once
from tests import factories as make
from tests.scheduling.speaking import exited, report, speaker

HOUR = 3600.0


def _borrowed(advance_clock: Callable[[float], None]) -> tuple[Node, Workload, Workload]:
    """A node that somebody borrowed an hour ago, and work of the team that it is guaranteed to."""
    tier = make.tier()
    node = make.node(tier, 2)
    company = make.company()
    owner = make.team(company)
    make.quota(company, tier, guaranteed_gpus=2)
    make.quota(owner, tier, guaranteed_gpus=2)
    borrower = make.workload(make.team(), tier, gpus=2, preemptible=True, time_limit_s=100_000)
    assert pass_once().started == [borrower.id]
    speaker(node).sync(report(Replica.objects.get(), "running"))
    advance_clock(HOUR)
    return node, borrower, make.workload(owner, tier, gpus=2)


@pytest.mark.django_db(transaction=True)
def test_a_guarantee_gets_back_what_was_borrowed(advance_clock: Callable[[float], None]) -> None:
    node, borrower, waiting = _borrowed(advance_clock)
    done = pass_once()
    assert (done.claimed, done.stopped, done.refused) == ([waiting.id], [borrower.id], {})
    assert pass_once().started == []
    agent = speaker(node)
    agent.seq = 10
    agent.sync(exited(Replica.objects.get(attempt__workload=borrower), exit_reason="stopped"))
    assert pass_once().started == [waiting.id]
    borrower.refresh_from_db()
    assert borrower.state == "waiting"
    assert Eviction.objects.get().why["rule"] == "return"
    assert {row.state for row in Allocation.objects.filter(workload=waiting)} == {"held"}


@pytest.mark.django_db(transaction=True)
def test_a_pass_that_breaks_in_its_commit_takes_nothing_back(
    advance_clock: Callable[[float], None], owner_connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    _node, borrower, waiting = _borrowed(advance_clock)
    owner_connection.execute(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'broken'; END $$"
    )
    owner_connection.execute(
        "CREATE TRIGGER fail BEFORE INSERT ON scheduling_passrecord FOR EACH ROW EXECUTE FUNCTION fail()"
    )
    with pytest.raises(Exception, match="broken"):
        pass_once()
    borrower.refresh_from_db()
    assert borrower.state == "running"
    assert not Allocation.objects.filter(workload=waiting).exists()
    assert not Eviction.objects.exists()
    owner_connection.execute("DROP TRIGGER fail ON scheduling_passrecord")
    assert pass_once().stopped == [borrower.id]
