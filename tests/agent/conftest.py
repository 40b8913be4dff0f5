import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuyard_agent import files, proc, records
from gpuyard_agent.client import ServerClient
from gpuyard_agent.devices.simulated import parse_simulation
from gpuyard_agent.executor import Executor
from gpuyard_agent.loop import Agent, Settings
from gpuyard_agent.replicas import ReplicaStore
from gpuyard_agent.runner.process import ProcessRunner
from gpuyard_agent.state import StateFolder
from tests.agent.fake_server import JOIN_TOKEN, FakeServer, serve

Eventually = Callable[[Callable[[], object]], None]


@pytest.fixture
def eventually() -> Eventually:
    def wait(holds: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + 15
        while not holds():
            assert time.monotonic() < deadline_s, "waited in vain"
            time.sleep(0.03)

    return wait


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def server_url(server: FakeServer) -> Iterator[str]:
    url, http_server = serve(server)
    yield url
    http_server.shutdown()
    http_server.server_close()


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """Whatever a test leaves running below it is ended."""
    folder = tmp_path / "state"
    yield folder
    for shim_file in folder.glob("replicas/*/shim.json"):
        _kill_shim(shim_file.parent)


def _kill_shim(folder: Path) -> None:
    owner = files.read_json(str(folder / records.SHIM_FILE))
    stats = proc.all_stats()
    proc.signal_all(list(proc.descendants(owner["pid"], stats)), signal.SIGKILL)
    if proc.send_signal(owner["pid"], owner["started_ticks"], signal.SIGKILL):
        while proc.is_alive(owner["pid"], owner["started_ticks"]):
            time.sleep(0.01)
    proc.signal_all(proc.with_environment(f"GPUYARD_REPLICA={folder.name}", proc.all_stats()), signal.SIGKILL)


class AgentProcess:
    """A real agent, as `gpuyard-agent run` starts it."""

    def __init__(self, server_url: str, state_dir: Path) -> None:
        self._argv = [
            sys.executable, "-m", "gpuyard_agent", "run", "--server", server_url, "--state", str(state_dir),
            "--name", "node-a", "--simulate", "4xl4-24g",
        ]  # fmt: skip
        self._log = open(state_dir.parent / "agent.log", "ab")  # noqa: SIM115  # closed by stop()
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, *arguments: str, pass_fds: tuple[int, ...] = (), **environment: str
    ) -> subprocess.Popen[bytes]:
        variables = {**os.environ, "GPUYARD_JOIN_TOKEN": JOIN_TOKEN, **environment}
        self._process = subprocess.Popen(
            [*self._argv, *arguments], stdout=self._log, stderr=self._log, env=variables, pass_fds=pass_fds
        )
        return self._process

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(timeout=15)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self._log.close()


@pytest.fixture
def agent_process(server_url: str, state_dir: Path) -> Iterator[AgentProcess]:
    agent = AgentProcess(server_url, state_dir)
    yield agent
    agent.close()


class Node:
    """An agent in this process whose turns the test takes one by one."""

    def __init__(self, server_url: str, state_dir: Path) -> None:
        self.client = ServerClient(server_url)
        self.devices = parse_simulation("4xl4-24g", "node-a")
        self.state = StateFolder(str(state_dir))
        self.executor = Executor(
            store=ReplicaStore(self.state.replica_root),
            runner=ProcessRunner(),
            devices=self.devices,
            lease_file=self.state.lease_file,
        )
        settings = Settings("host", "127.0.0.1", (20000, 20099), 4000, 4096)
        self.agent = Agent(
            state=self.state,
            client=self.client,
            devices=self.devices,
            executor=self.executor,
            settings=settings,
        )
        self._join()

    def _join(self) -> None:
        node = self.state.node()
        if node is None:
            request = {"join_token": JOIN_TOKEN, "name": "node-a", "inventory": self.agent.inventory()}
            answer = self.client.join(request)  # type: ignore[arg-type]  # a literal is no TypedDict yet
            node = {
                "node_id": answer.node_id, "node_secret": answer.node_secret, "name": "node-a",
                "sync_s": answer.sync_s, "lease_s": answer.lease_s,
            }  # fmt: skip
            self.state.save_node(node)
        self.agent.start(node_secret=node["node_secret"], sync_s=0.1)

    def turn(self) -> bool:
        return self.agent.turn_and_log().was_answered

    def turn_until(self, holds: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + 15
        while not holds():
            assert time.monotonic() < deadline_s, "waited in vain"
            self.turn()
            time.sleep(0.05)

    def close(self) -> None:
        self.client.close()
        self.state.close()


@pytest.fixture
def node(server_url: str, state_dir: Path) -> Iterator[Node]:
    made = Node(server_url, state_dir)
    yield made
    made.close()
