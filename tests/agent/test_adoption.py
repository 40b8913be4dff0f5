"""A killed agent comes back and knows its replicas. Real agent, real shims, real HTTP."""

import os
import signal
import sys
import time
from pathlib import Path

from gpuyard_agent import files, proc, records
from tests.agent.conftest import AgentProcess, Eventually, Node
from tests.agent.fake_server import FakeServer

STUBBORN = [
    sys.executable,
    "-S",
    "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)",
]


def wait_for_file(path: str) -> list[str]:
    """A program that ends with exit code 3 once the file is there."""
    return ["sh", "-c", f"echo began; while [ ! -e {path} ]; do sleep 0.05; done; echo done; exit 3"]


def shim_of(state_dir: Path, replica_id: str) -> records.ShimIdentity:
    identity: records.ShimIdentity = files.read_json(
        str(state_dir / "replicas" / replica_id / records.SHIM_FILE)
    )
    return identity


def test_a_killed_agent_comes_back_to_its_replica(
    server: FakeServer, agent_process: AgentProcess, state_dir: Path, tmp_path: Path
) -> None:
    replica_id = server.order(wait_for_file(str(tmp_path / "go")))
    agent_process.start()
    server.wait(lambda: server.state(replica_id) == "running" and "began" in server.text(replica_id))
    shim = shim_of(state_dir, replica_id)

    agent_process.kill(signal.SIGKILL)
    assert proc.is_alive(shim["pid"], shim["started_ticks"])
    agent_process.start()
    server.wait(lambda: server.syncs[-1]["boot"] == 2)
    assert server.state(replica_id) == "running"
    assert shim_of(state_dir, replica_id) == shim

    (tmp_path / "go").touch()
    server.wait(lambda: server.reports[replica_id]["clean"])
    assert server.reports[replica_id]["exit_code"] == 3
    assert server.reports[replica_id]["exit_reason"] == "exited"
    assert server.text(replica_id) == "began\ndone\n"


def test_an_end_without_the_agent_is_reported_later(
    server: FakeServer, agent_process: AgentProcess, state_dir: Path, tmp_path: Path, eventually: Eventually
) -> None:
    replica_id = server.order(wait_for_file(str(tmp_path / "go")))
    process = agent_process.start()
    server.wait(lambda: server.state(replica_id) == "running")
    assert agent_process.kill(signal.SIGTERM) == 0  # ends its turn, leaves the replica
    assert process.returncode == 0

    (tmp_path / "go").touch()
    eventually(
        lambda: (files.read_json(str(state_dir / "replicas" / replica_id / "exit.json")) or {}).get("clean")
    )
    time.sleep(0.3)
    agent_process.start("--once")
    server.wait(lambda: server.state(replica_id) == "exited")
    assert server.reports[replica_id]["exit_code"] == 3
    assert server.reports[replica_id]["ended_ago_s"] > 0.25


def test_a_killed_shim_takes_its_replica_with_it(server: FakeServer, node: Node, state_dir: Path) -> None:
    family = f"import subprocess, time; subprocess.Popen({STUBBORN!r}); time.sleep(60)"
    replica_id = server.order([*STUBBORN[:-1], family])
    mark = f"GPUYARD_REPLICA={replica_id}"
    node.turn_until(lambda: len(proc.with_environment(mark, proc.all_stats())) == 2)
    shim = shim_of(state_dir, replica_id)
    proc.send_signal(shim["pid"], shim["started_ticks"], signal.SIGKILL)
    node.turn_until(lambda: server.state(replica_id) == "exited" and server.reports[replica_id]["clean"])
    assert server.reports[replica_id]["exit_reason"] == "shim_lost"
    assert not proc.with_environment(mark, proc.all_stats())


def test_without_its_state_it_starts_nothing_twice(server: FakeServer, node: Node, state_dir: Path) -> None:
    replica_id = server.order(STUBBORN)
    node.turn_until(lambda: server.state(replica_id) == "running")
    (state_dir / "replicas" / replica_id).rename(state_dir / "lost")
    node.executor.folders.clear()
    server.reports.clear()
    node.turn_until(lambda: server.reports.get(replica_id, {}).get("clean"))
    assert server.reports[replica_id]["exit_reason"] == "shim_lost"
    assert not proc.with_environment(f"GPUYARD_REPLICA={replica_id}", proc.all_stats())


def test_after_a_reboot_it_is_lost_and_clean(server: FakeServer, node: Node, state_dir: Path) -> None:
    replica_id = server.order(["sleep", "60"])
    node.turn_until(lambda: server.state(replica_id) == "running")
    node.close()
    shim = shim_of(state_dir, replica_id)
    os.kill(shim["pid"], signal.SIGKILL)
    for name in (records.SHIM_FILE, records.CHILD_FILE, records.ORDER_FILE):
        path = str(state_dir / "replicas" / replica_id / name)
        files.write_json(path, files.read_json(path) | {"boot_id": "before the reboot"})

    rebooted = Node(str(node.client._http.base_url), state_dir)
    rebooted.turn()
    rebooted.close()
    report = server.reports[replica_id]
    assert (report["exit_reason"], report["clean"], report["exit_code"]) == ("lost_on_reboot", True, None)
    assert report["running_ago_s"] is None


def test_a_start_cut_short_by_a_kill_is_finished(server: FakeServer, node: Node, state_dir: Path) -> None:
    """The agent was killed after it wrote the order and before it started the shim."""
    runner = node.executor._runner
    node.executor._runner = type(
        "Dead", (), {"observe": runner.observe, "start": lambda self, folder: None}
    )()
    replica_id = server.order(["sh", "-c", "echo hello"])
    node.turn()
    node.executor._runner = runner
    node.turn_until(lambda: server.state(replica_id) == "exited")
    assert server.reports[replica_id]["exit_code"] == 0
    assert server.text(replica_id) == "hello\n"


def test_ends_with_the_local_supervisor(
    server: FakeServer, agent_process: AgentProcess, state_dir: Path, eventually: Eventually
) -> None:
    replica_id = server.order(["sleep", "60"])
    reader, writer = os.pipe()
    process = agent_process.start(pass_fds=(reader,), GPUYARD_SUPERVISOR_FD=str(reader))
    os.close(reader)
    server.wait(lambda: server.state(replica_id) == "running")
    shim = shim_of(state_dir, replica_id)
    os.close(writer)
    assert process.wait(timeout=10) == 0
    eventually(lambda: not proc.is_alive(shim["pid"], shim["started_ticks"]))
    assert not proc.with_environment(f"GPUYARD_REPLICA={replica_id}", proc.all_stats())
