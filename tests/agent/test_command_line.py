import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard_agent import cli
from gpuyard_agent.client import Backoff, is_loopback
from gpuyard_agent.state import AlreadyRunning, BadState, StateFolder
from tests.agent.conftest import AgentProcess
from tests.agent.fake_server import JOIN_TOKEN, FakeServer


@pytest.fixture
def arguments(server_url: str, state_dir: Path) -> list[str]:
    return [
        "run",
        "--server",
        server_url,
        "--state",
        str(state_dir),
        "--name",
        "node-a",
        "--simulate",
        "2xl4-24g",
        "--once",
    ]


@pytest.fixture(autouse=True)
def own_signals_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """main() runs in this process here, and takes its signals."""
    monkeypatch.delenv("GPUYARD_JOIN_TOKEN", raising=False)
    monkeypatch.setattr(signal, "signal", lambda *_: None)


def said(caplog: pytest.LogCaptureFixture) -> str:
    return " ".join(caplog.messages)


def test_joins_once_and_syncs(server: FakeServer, arguments: list[str]) -> None:
    assert (
        cli.main([*arguments, "--join-token", JOIN_TOKEN, "--cpu-m", "3000", "--ports", "21000-21009"]) == 0
    )
    assert cli.main(arguments) == 0  # the token is not needed again
    inventory = server.joins[0]["inventory"]
    assert (inventory["cpu_m"], inventory["memory_mib"], inventory["port_range"]) == (
        3000,
        131072,
        [21000, 21009],
    )
    assert len(server.syncs) == 2


@pytest.mark.parametrize(
    ("more", "expected", "message"),
    [
        ([], 2, "this node has not joined yet: pass --join-token or set GPUYARD_JOIN_TOKEN"),
        (["--join-token", "wrong"], 1, "the join token is not valid"),
        (["--simulate", "8xh900"], 2, "unknown model 'h900'; use one of h100-80g"),
        (["--simulate", ""], 2, "pass --simulate"),
        (["--server", "yard.example.com"], 2, "is not like https://yard.example.com"),
        (["--cpu-m", "0"], 2, "must be above 0"),
    ],
)
def test_says_what_is_wrong(
    arguments: list[str], caplog: pytest.LogCaptureFixture, more: list[str], expected: int, message: str
) -> None:
    assert cli.main([*arguments, *more]) == expected
    assert message in said(caplog)


def test_a_taken_name_says_so(
    server: FakeServer, arguments: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    server.secret = "of another node"
    assert cli.main([*arguments, "--join-token", JOIN_TOKEN]) == 1
    assert "a node named node-a has joined already" in said(caplog)


@pytest.mark.parametrize("ports", ["20000", "0-10", "30000-20000", "20000-70000"])
def test_a_bad_port_range_is_refused(arguments: list[str], ports: str) -> None:
    with pytest.raises(SystemExit):
        cli.main([*arguments, "--ports", ports])


def test_waits_for_a_server_that_is_not_up_yet(state_dir: Path, tmp_path: Path) -> None:
    agent = AgentProcess("http://127.0.0.1:9", state_dir)
    process = agent.start()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=2)
    assert agent.kill(signal.SIGTERM) == 0
    agent.close()
    assert "join: no answer" in (tmp_path / "agent.log").read_text()


def test_two_agents_cannot_share_a_state_folder(state_dir: Path) -> None:
    first = StateFolder(str(state_dir))
    with pytest.raises(AlreadyRunning, match="another agent is running"):
        StateFolder(str(state_dir))
    first.close()
    StateFolder(str(state_dir)).close()


def test_boots_are_counted_over_restarts(state_dir: Path) -> None:
    for expected in (1, 2, 3):
        state = StateFolder(str(state_dir))
        assert state.next_boot() == expected
        state.close()


def test_damaged_state_stops_the_start(state_dir: Path) -> None:
    """Counting from 1 again would make every sync stale."""
    state = StateFolder(str(state_dir))
    (state_dir / "boot.json").write_text("{")
    with pytest.raises(BadState, match=r"boot\.json is damaged"):
        state.next_boot()
    state.close()


def test_a_node_secret_is_for_the_agent_alone(state_dir: Path) -> None:
    state = StateFolder(str(state_dir))
    state.save_node({"node_id": "n", "node_secret": "s", "name": "a", "sync_s": 2.0, "lease_s": 90.0})
    assert os.stat(state_dir / "node.json").st_mode & 0o777 == 0o600
    assert os.stat(state_dir).st_mode & 0o777 == 0o700
    state.close()


def test_backoff_grows_to_its_limit_and_starts_anew() -> None:
    backoff = Backoff(first_s=1.0, limit_s=8.0)
    delays = [backoff.next_s() for _ in range(6)]
    assert 0.75 <= delays[0] <= 1.25
    assert all(6.0 <= delay <= 10.0 for delay in delays[3:])
    backoff.reset()
    assert backoff.next_s() <= 1.25


@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("10.0.0.1", False)]
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_the_agent_needs_no_django() -> None:
    program = "import sys, gpuyard_agent.cli; print('django' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"
