"""Lost, repeated, late and foreign messages change nothing; the next good answer does."""

import signal
from pathlib import Path

import pytest

from gpuyard_agent import files
from tests.agent.conftest import AgentProcess, Node
from tests.agent.fake_server import FakeServer, Fault

COUNT_STARTS = ["sh", "-c", "echo started; sleep 60"]


def test_a_replica_from_order_to_forgotten(server: FakeServer, node: Node, state_dir: Path) -> None:
    replica_id = server.order(["sh", "-c", "echo hello; exit 3"])
    node.turn_until(lambda: server.state(replica_id) == "exited" and server.reports[replica_id]["clean"])
    report = server.reports[replica_id]
    assert (report["exit_code"], report["exit_reason"], report["fencing_token"]) == (3, "exited", 5)
    assert report["ended_ago_s"] <= report["running_ago_s"] < 15
    assert server.text(replica_id) == "hello\n"

    server.withdraw(replica_id)
    server.forget.add(replica_id)
    node.turn_until(lambda: not (state_dir / "replicas" / replica_id).exists())
    node.turn()
    assert server.syncs[-1]["replicas"] == []


@pytest.mark.parametrize(
    "fault", ["lost", "answer_lost", "replay", "malformed", "error", "refused", "stale", "unauthorized"]
)
def test_a_bad_sync_changes_nothing(server: FakeServer, node: Node, fault: Fault) -> None:
    replica_id = server.order(COUNT_STARTS)
    node.turn_until(lambda: server.text(replica_id) == "started\n")
    server.withdraw(replica_id)  # what the lost answer would say
    server.faults.extend([fault, fault])
    node.turn()
    node.turn()
    assert node.executor.stop_grace_s(replica_id) is None

    node.turn_until(lambda: server.state(replica_id) == "exited")
    assert server.text(replica_id) == "started\n"
    assert server.reports[replica_id]["exit_reason"] == "stopped"


def test_a_lost_answer_does_not_start_twice(server: FakeServer, node: Node) -> None:
    replica_id = server.order(COUNT_STARTS)
    server.faults.extend(["answer_lost", "replay", "answer_lost"])
    for _ in range(6):
        node.turn()
    node.turn_until(lambda: server.state(replica_id) == "running" and server.text(replica_id))
    assert server.history[replica_id] in (["running"], ["starting", "running"])
    assert server.text(replica_id) == "started\n"


def test_an_older_generation_is_ignored(server: FakeServer, node: Node) -> None:
    replica_id = server.order(COUNT_STARTS)
    node.turn_until(lambda: server.state(replica_id) == "running")
    server.faults.append("older_generation")  # it also says that nothing should run
    node.turn()
    assert node.executor.stop_grace_s(replica_id) is None


def test_an_old_token_is_refused(server: FakeServer, node: Node, caplog: pytest.LogCaptureFixture) -> None:
    replica_id = server.order(COUNT_STARTS)
    node.turn_until(lambda: server.state(replica_id) == "running")
    server.change(replica_id, fencing_token=4, desired="stop")
    node.turn()
    node.turn()
    assert node.executor.stop_grace_s(replica_id) is None
    assert caplog.text.count("refused the old token 4") == 1
    assert server.old_token_reports >= 1  # and the server takes no report under another token


def test_a_newer_token_replaces_the_replica(server: FakeServer, node: Node) -> None:
    replica_id = server.order(COUNT_STARTS)
    node.turn_until(lambda: server.state(replica_id) == "running")
    server.change(replica_id, fencing_token=6, command=["sh", "-c", "exit 4"])
    node.turn_until(lambda: server.state(replica_id) == "exited")
    assert (server.reports[replica_id]["fencing_token"], server.reports[replica_id]["exit_code"]) == (6, 4)


def test_a_stop_of_a_stranger_is_confirmed(server: FakeServer, node: Node) -> None:
    replica_id = server.order(["true"], desired="stop")
    node.turn_until(lambda: server.state(replica_id) == "exited" and server.reports[replica_id]["clean"])
    assert server.reports[replica_id]["exit_reason"] == "stopped"


def test_an_unknown_gpu_is_a_failed_start(server: FakeServer, node: Node) -> None:
    replica_id = server.order(["true"], gpu_uuids=["GPU-0"], gpu_indexes=[0])
    node.turn_until(lambda: server.state(replica_id) == "exited" and server.reports[replica_id]["clean"])
    assert server.reports[replica_id]["exit_reason"] == "start_failed"
    assert "no GPU GPU-0" in server.reports[replica_id]["message"]


def test_a_program_that_does_not_exist_says_so(server: FakeServer, node: Node) -> None:
    replica_id = server.order(["no-such-program"])
    node.turn_until(lambda: server.state(replica_id) == "exited")
    assert server.reports[replica_id]["message"] == "command no-such-program: No such file or directory"


def test_the_lease_counts_from_the_sending(server: FakeServer, node: Node, state_dir: Path) -> None:
    node.turn()
    lease = files.read_json(str(state_dir / "lease.json"))
    server.faults.extend(["lost", "answer_lost", "error"])
    for _ in range(3):
        node.turn()
    assert files.read_json(str(state_dir / "lease.json")) == lease
    node.turn()
    assert files.read_json(str(state_dir / "lease.json"))["deadline_s"] > lease["deadline_s"]


def test_without_contact_policy_decides(server: FakeServer, node: Node) -> None:
    server.lease_s = 1.0
    keeps = server.order(["sleep", "60"])
    stops = server.order(["sleep", "60"], on_disconnect="stop")
    node.turn_until(lambda: server.state(keeps) == server.state(stops) == "running")
    server.faults.extend(["lost"] * 1000)
    node.turn_until(lambda: node.executor.observe()[stops].clean)
    server.faults.clear()
    node.turn()
    assert server.reports[stops]["exit_reason"] == "lease"
    assert server.state(keeps) == "running"


def test_after_a_refusal_it_syncs_without_logs_and_then_with_them(server: FakeServer, node: Node) -> None:
    replica_id = server.order(["sh", "-c", "echo hello"])
    node.turn_until(lambda: server.state(replica_id) == "exited")
    server.logs.clear()
    server.acks_logs = False
    server.faults.append("refused")
    node.turn()
    assert node.turn()
    assert server.syncs[-1]["logs"] == []


def test_the_inventory_is_sent_until_it_is_answered(server: FakeServer, node: Node) -> None:
    server.faults.append("lost")
    for _ in range(3):
        node.turn()
    assert len(server.inventories) == 1
    assert server.syncs[-1]["inventory"] is None
    assert [gpu["model"] for gpu in server.inventories[0]["gpus"]] == ["NVIDIA L4"] * 4


def test_the_inventory_is_sent_again_now_and_then(
    server: FakeServer, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may have got a rule for a GPU that it left out before."""
    monkeypatch.setattr("gpuyard_agent.loop.INVENTORY_AGAIN_S", 0.2)
    node.turn_until(lambda: len(server.inventories) == 3)
    assert len(server.syncs) > 3


def test_each_start_of_the_agent_is_a_new_boot(
    server: FakeServer, agent_process: AgentProcess, state_dir: Path
) -> None:
    assert agent_process.start("--once").wait(timeout=15) == 0
    assert agent_process.start("--once").wait(timeout=15) == 0
    assert [(sync["boot"], sync["seq"]) for sync in server.syncs] == [(1, 1), (2, 1)]
    assert len(server.joins) == 1


def test_refused_by_the_server_it_keeps_the_work(
    server: FakeServer, agent_process: AgentProcess, tmp_path: Path
) -> None:
    replica_id = server.order(["sh", "-c", f"touch {tmp_path}/up; sleep 60"])
    process = agent_process.start()
    server.wait(lambda: server.state(replica_id) == "running")
    server.faults.extend(["unauthorized"] * 1000)
    server.wait(lambda: "does not accept this node" in (tmp_path / "agent.log").read_text())
    assert process.poll() is None
    assert agent_process.kill(signal.SIGTERM) == 0
