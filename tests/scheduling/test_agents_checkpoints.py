"""What agents say of checkpoints: only what this attempt wrote counts, and it never goes back."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gpuyard.core import clock
from scheduling.loader_work import running_load
from scheduling.models import Replica
from tests import factories as make
from tests.scheduling.speaking import Speaker, report, speaker

pytestmark = pytest.mark.django_db


@pytest.fixture
def running() -> tuple[Speaker, Replica]:
    """It has run for ten minutes."""
    node = make.node(make.tier(), 1)
    attempt = make.placed(make.workload(), list(node.gpus.all()), running=True)
    replica = attempt.replicas.get()
    Replica.objects.filter(pk=replica.pk).update(running_at=clock.now() - timedelta(minutes=10))
    return speaker(node), replica


def _ago_s(replica: Replica) -> float | None:
    replica.refresh_from_db()
    return (clock.now() - replica.checkpoint_at).total_seconds() if replica.checkpoint_at else None


def test_its_age_is_kept_and_the_pass_knows_it(running: tuple[Speaker, Replica]) -> None:
    agent, replica = running
    agent.sync(report(replica, "running", checkpoint_ago_s=120.0))
    assert _ago_s(replica) == pytest.approx(120, abs=5)
    (known,) = running_load(86_400)
    assert replica.checkpoint_at is not None
    assert known.checkpoint_us == round(replica.checkpoint_at.timestamp() * 1_000_000)


def test_what_is_older_than_its_start_is_none_of_its_own(running: tuple[Speaker, Replica]) -> None:
    agent, replica = running
    agent.sync(report(replica, "running", checkpoint_ago_s=3_600.0))
    assert _ago_s(replica) is None


def test_it_never_goes_back(running: tuple[Speaker, Replica]) -> None:
    agent, replica = running
    agent.sync(report(replica, "running", checkpoint_ago_s=30.0))
    for later in (300.0, None):
        agent.sync(report(replica, "running", checkpoint_ago_s=later))
    assert _ago_s(replica) == pytest.approx(30, abs=5)


def test_an_agent_that_does_not_know_the_field_is_understood(running: tuple[Speaker, Replica]) -> None:
    agent, replica = running
    said = report(replica, "running")
    assert "checkpoint_ago_s" not in said
    agent.sync(said)
    assert _ago_s(replica) is None


def test_agents_are_told_where_checkpoints_are() -> None:
    node = make.node(make.tier(), 1)
    document = make.spec_document("h100-80g", checkpoint_dir="/data/run-7")
    make.placed(make.workload(spec=document), list(node.gpus.all()))
    (order,) = speaker(node).sync()["replicas"]
    assert order["checkpoint_dir"] == "/data/run-7"
