"""The sync endpoint: who may speak, what is news, what is answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from gpuyard.fleet.models import GpuTelemetry, Node
from scheduling.agents import logs
from scheduling.models import Allocation, LogChunk, PortLease, Replica, Workload
from tests import factories as make
from tests.scheduling.speaking import Speaker, exited, report, rows_dump, speaker

pytestmark = pytest.mark.django_db


def _placed(gpus: int = 1, *, running: bool = False, **fields: Any) -> tuple[Speaker, Replica]:
    node = make.node(make.tier(), gpus)
    workload = make.workload(gpus=gpus, **fields)
    attempt = make.placed(workload, list(node.gpus.all()), running=running)
    return speaker(node), attempt.replicas.get()


def test_an_unknown_secret_is_refused() -> None:
    agent = speaker(make.node())
    response = replace(agent, secret="another").try_sync()
    assert response.status_code == 401
    assert response.json()["code"] == "agent_unknown"
    assert response["Content-Type"] == "application/problem+json"


def test_a_missing_secret_is_refused() -> None:
    speaker(make.node())
    Node.objects.update(secret_digest="")  # a node without a secret must not match an empty one
    for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": "Basic eA=="}):
        response = Client().post("/agent/v1/sync", {}, content_type="application/json", headers=headers)
        assert response.status_code == 401


def test_a_retired_node_is_refused() -> None:
    agent = speaker(make.node(state="retired", retired_at="2026-01-01T00:00:00Z"))
    assert agent.try_sync().status_code == 401


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seq", -1),
        ("seq", "x"),
        ("boot", 2**70),
        ("telemetry", [{"gpu_uuid": "g", "ended_ago_s": -1, "duration_s": 1}]),
        ("telemetry", [{"gpu_uuid": "g", "ended_ago_s": 1e300, "duration_s": 1}]),
        ("replicas", [{"replica_id": "no uuid", "fencing_token": 1, "state": "running"}]),
        ("replicas", {}),
        ("logs", [{"stream": "other"}]),
        ("inventory", {"gpus": []}),
    ],
)
def test_a_malformed_message_is_refused_with_its_field(field: str, value: Any) -> None:
    agent = speaker(make.node())
    before = rows_dump()
    response = agent.try_sync(**{field: value})
    assert response.status_code == 400
    assert response.json()["errors"][0]["field"].startswith(field)
    assert rows_dump() == before


@pytest.mark.parametrize("body", ["", "{", "[1]", "null", '"text"', "[" * 100_000, '{"boot": NaN}'])
def test_what_is_no_message_is_refused(body: str) -> None:
    agent = speaker(make.node())
    response = Client().post(
        "/agent/v1/sync",
        body,
        content_type="application/json",
        headers={"Authorization": f"Bearer {agent.secret}"},
    )
    assert response.status_code == 400


def test_the_answer_says_what_shall_run() -> None:
    agent, replica = _placed(
        2, spec=make.spec_document("x", gpus=2, env={"A": "1"}, ports=[{"name": "http", "health_path": "/h"}])
    )
    PortLease.objects.create(node=agent.node, port=20_001, replica=replica, name="http", health_path="/h")
    answer = agent.sync()

    (order,) = answer["replicas"]
    assert order["replica_id"] == str(replica.pk)
    assert order["fencing_token"] == replica.fencing_token
    assert order["desired"] == "run"
    assert order["command"] == ["python3", "-u", "train.py"]
    assert order["env"] == {"A": "1"}
    assert order["gpu_indexes"] == [0, 1]
    assert order["gpu_uuids"] == [gpu.device_uuid for gpu in agent.node.gpus.order_by("index")]
    assert order["ports"] == [{"name": "http", "port": 20_001, "health_path": "/h"}]
    assert (order["rank"], order["world_size"], order["attempt"]) == (0, 1, 1)
    assert answer["generation"] == 1
    assert answer["forget"] == []


def test_ranks_are_told_their_peers() -> None:
    tier = make.tier()
    first, second = make.node(tier, 1), make.node(tier, 1, advertise_address="10.0.0.2")
    attempt = make.placed(make.workload(replicas=2), list(first.gpus.all()), list(second.gpus.all()))
    for replica in attempt.replicas.all():
        PortLease.objects.create(node=replica.node, port=20_005, replica=replica, name="rendezvous")

    (order,) = speaker(second).sync()["replicas"]

    assert (order["rank"], order["world_size"]) == (1, 2)
    assert order["peers"] == [
        {"rank": 0, "address": "127.0.0.1", "port": 20_005},
        {"rank": 1, "address": "10.0.0.2", "port": 20_005},
    ]


def test_the_generation_grows_only_with_the_orders() -> None:
    agent, replica = _placed()
    assert [agent.sync()["generation"] for _ in range(3)] == [1, 1, 1]
    assert agent.sync(report(replica, "running"))["generation"] == 1
    assert agent.sync(exited(replica))["generation"] == 2


def test_repeated_and_late_syncs_change_nothing() -> None:
    agent, replica = _placed(running=True)
    agent.seq = 5
    late = agent.message(exited(replica, 3))
    agent.sync(report(replica, "running"))
    newest = agent.message(exited(replica, 1))
    before = rows_dump()

    for body in (late, newest, {**newest, "boot": 0, "seq": 99}):
        response = agent.send(body)
        assert response.status_code == 409
        assert response.json()["code"] == "stale_sync"
    assert rows_dump() == before


def test_syncs_in_any_order_repeated_or_lost_lead_to_the_same_end() -> None:
    """As long as the last one arrives, once, at any time: nothing that comes after it counts."""
    for order in (*permutations(range(4)), (3,), (0, 3), (3, 3), (0, 0, 1, 1, 3, 2, 3)):
        agent, replica = _placed(2)
        reports = (
            report(replica, "starting"),
            report(replica, "running", running_ago_s=1.0),
            exited(replica, 3, clean=False),
            exited(replica, 3, running_ago_s=1.0),
        )
        messages = []
        for one in reports:
            agent.seq += 1
            messages.append(agent.message(one))
        for index in order:
            agent.send(messages[index])
        workload = Workload.objects.get(pk=replica.attempt.workload_id)
        assert (workload.state, workload.exit_code) == ("failed", 3), order
        assert {one.state for one in Allocation.objects.filter(workload=workload)} == {"ended"}
        agent.node.refresh_from_db()
        assert (agent.node.cpu_used_m, agent.node.memory_used_mib) == (0, 0)


def test_a_new_start_of_the_agent_counts_anew() -> None:
    agent = speaker(make.node())
    agent.seq = 50
    agent.sync()
    assert replace(agent, boot=2, seq=0).try_sync().status_code == 200


def test_an_old_fencing_token_is_refused() -> None:
    agent, replica = _placed(running=True)
    before = rows_dump(without=["fleet_node"])
    answer = agent.sync(exited(replica, 1, fencing_token=replica.fencing_token - 1))
    assert rows_dump(without=["fleet_node"]) == before
    assert answer["forget"] == []


def test_a_node_speaks_for_its_own_replicas_only() -> None:
    _other, replica = _placed(running=True)
    agent = speaker(make.node())
    chunk = {
        "replica_id": str(replica.pk),
        "fencing_token": replica.fencing_token,
        "stream": "stdout",
        "offset": 0,
        "data": "x",
        "bytes": 1,
    }
    before = rows_dump(without=["fleet_node"])
    answer = agent.sync(exited(replica), logs=[chunk])
    assert rows_dump(without=["fleet_node"]) == before
    assert answer["log_acks"] == []
    assert answer["forget"] == [str(replica.pk)]  # not its own: it may drop what it has of it


def test_what_ended_may_be_forgotten_once_its_output_is_here() -> None:
    agent, replica = _placed(running=True)
    assert agent.sync(exited(replica), logs=[_chunk(replica, 0, "bye")])["forget"] == []
    assert agent.sync(exited(replica))["forget"] == [str(replica.pk)]


# --- Logs ----------------------------------------------------------------------------------------------------


def _chunk(replica: Replica, offset: int, data: str, stream: str = "stdout", **fields: Any) -> dict[str, Any]:
    return {
        "replica_id": str(replica.pk),
        "fencing_token": replica.fencing_token,
        "stream": stream,
        "offset": offset,
        "data": data,
        "bytes": len(data.encode()),
        **fields,
    }


def _text(stream: str = "stdout") -> str:
    return "".join(LogChunk.objects.filter(stream=stream).values_list("text", flat=True))


def test_output_is_appended_once_and_gaps_are_told() -> None:
    agent, replica = _placed(running=True)
    ack = {"replica_id": str(replica.pk), "stream": "stdout", "offset": 3}
    assert agent.sync(logs=[_chunk(replica, 0, "abc")])["log_acks"] == [ack]
    assert agent.sync(logs=[_chunk(replica, 0, "abc")])["log_acks"] == [ack]
    assert agent.sync(logs=[_chunk(replica, 7, "xyz")])["log_acks"] == [ack]
    answer = agent.sync(
        logs=[_chunk(replica, 3, "dé"), _chunk(replica, 6, "f"), _chunk(replica, 0, "e", "stderr")]
    )
    assert [one["offset"] for one in answer["log_acks"]] == [7, 1]
    assert _text() == "abcdéf"
    assert _text("stderr") == "e"


def test_output_under_an_old_token_and_nul_characters() -> None:
    agent, replica = _placed(running=True)
    old = _chunk(replica, 0, "old", fencing_token=replica.fencing_token - 1)
    assert agent.sync(logs=[old])["log_acks"] == []
    agent.sync(logs=[_chunk(replica, 0, "a\x00b")])
    assert _text() == "a�b"


# --- Cost ------------------------------------------------------------------------------------------------------


def test_a_program_that_talks_for_ever_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_BYTES", 6)
    agent, replica = _placed(running=True)
    for offset, text in ((0, "1234"), (4, "5678"), (8, "9abc")):
        answer = agent.sync(logs=[_chunk(replica, offset, text)])
        assert answer["log_acks"][0]["offset"] == offset + 4  # its agent goes on, and sends nothing again
    assert _text() == "12345678\n[GPU Yard keeps no more of this output]\n"


def test_output_that_is_longer_than_it_says_is_refused() -> None:
    agent, replica = _placed(running=True)
    response = agent.try_sync(logs=[_chunk(replica, 0, "x" * 5000, bytes=1)])
    assert (response.status_code, response.json()["errors"][0]["field"]) == (400, "logs.0")
    assert not LogChunk.objects.exists()


def _count(act: Callable[[], object]) -> int:
    with CaptureQueriesContext(
        connection,
    ) as queries:
        act()
    return len(queries)


def _busy_node(replica_count: int) -> tuple[Speaker, list[Replica]]:
    node = make.node(make.tier(), replica_count)
    replicas = []
    for gpu in node.gpus.all():
        attempt = make.placed(make.workload(), [gpu], running=True)
        replicas.append(attempt.replicas.get())
    return speaker(node), replicas


def test_a_sync_without_news_is_cheap_however_much_runs() -> None:
    counts = []
    for replica_count in (1, 6):
        agent, replicas = _busy_node(replica_count)
        reports = [report(replica, "running", running_ago_s=5.0) for replica in replicas]
        agent.sync(*reports)
        counts.append(_count(lambda: agent.sync(*reports)))  # noqa: B023 - called at once
    assert counts[0] == counts[1] <= 10, counts


def test_telemetry_and_logs_cost_the_same_however_many() -> None:
    counts = []
    for replica_count in (1, 6):
        agent, replicas = _busy_node(replica_count)
        buckets = [
            {"gpu_uuid": gpu.device_uuid, "ended_ago_s": 0.0, "duration_s": 2.0, "utilisation_pct": 50.0}
            for gpu in agent.node.gpus.all()
        ]
        chunks = [_chunk(replica, 0, "line") for replica in replicas]
        counts.append(_count(lambda: agent.sync(telemetry=buckets, logs=chunks)))  # noqa: B023
    assert counts[0] == counts[1] <= 20, counts
    assert GpuTelemetry.objects.count() == 7


def test_a_short_run_that_was_never_seen_running() -> None:
    agent, replica = _placed()
    agent.sync(exited(replica, 0, running_ago_s=0.0))
    workload = Workload.objects.get()
    assert (workload.state, workload.exit_code) == ("succeeded", 0)
    allocation = Allocation.objects.get()
    assert allocation.state == "ended"
    assert allocation.span.lower < allocation.span.upper
