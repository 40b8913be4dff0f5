"""The real platform behind the browser tests, and what tests ask it through its REST API."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuyard.demo.client import Api
from gpuyard.demo.scenario import HOUR_S, PROGRAMS, Asked
from gpuyard.local.processes import die_with_parent
from tests.local.running import clean_environment, eventually, processes_of

_STOPS_WITHIN_S = 60


@dataclass(frozen=True)
class Stack:
    """A running platform: three nodes, three teams, nobody's work yet."""

    url: str
    password: str
    teams: dict[str, str]  # name → id
    tokens: dict[str, str]  # user name → API token

    def api(self, username: str) -> Api:
        return Api(self.url, self.tokens[username])

    def submit(self, asked: Asked) -> str:
        """Asks as its user and returns the workload's id."""
        api = self.api(asked.by)
        try:
            return str(api.post("workloads", asked.body(self.teams[asked.team]))["id"])
        finally:
            api.close()

    def workload(self, username: str, workload_id: str) -> dict[str, Any]:
        api = self.api(username)
        try:
            found: dict[str, Any] = api.get(f"workloads/{workload_id}")
            return found
        finally:
            api.close()

    def stop(self, username: str, workload_id: str) -> None:
        """Stops it, as one who saw enough."""
        api = self.api(username)
        try:
            api.post(f"workloads/{workload_id}/stop", {"reason": "seen"})
        finally:
            api.close()

    def names(self, username: str) -> list[str]:
        """The names of all workloads that this user sees."""
        api = self.api(username)
        try:
            return [one["name"] for one in api.pages("workloads")]
        finally:
            api.close()

    def node(self, name: str) -> str:
        """Its id."""
        api = self.api("admin")
        try:
            return next(str(one["id"]) for one in api.pages("nodes") if one["name"] == name)
        finally:
            api.close()

    def wait_for(self, username: str, workload_id: str, *states: str) -> None:
        deadline = time.monotonic() + 60
        while (state := self.workload(username, workload_id)["state"]) not in states:
            assert time.monotonic() < deadline, f"{workload_id} is {state}, not one of {states}"
            time.sleep(0.3)


def command(program: str, *arguments: str) -> list[str]:
    """One of the demo's programs."""
    return [sys.executable, "-u", str(PROGRAMS / f"{program}.py"), *arguments]


def gpus(count: int, tier: str) -> dict[str, Any]:
    """A spec's request of one replica."""
    return {
        "replicas_min": 1,
        "replicas_max": 1,
        "gpus_per_replica": count,
        "tiers": [tier],
        "cpu_m": 1000,
        "memory_mib": 1024,
    }


def session(name: str) -> Asked:
    """A development session of vision-member: runs at once, until somebody stops it."""
    return Asked(
        by="vision-member",
        team="vision",
        name=name,
        kind="development",
        ends="succeeded",
        command=command("session", "--busy-seconds", "2"),
        request=gpus(1, "l4-24g"),
    )


def training(name: str, *arguments: str, hours: int = 1, count: int = 1) -> Asked:
    """Training of vision-member; more than two hours need vision-manager's approval."""
    return Asked(
        by="vision-member",
        team="vision",
        name=name,
        kind="training",
        ends="succeeded",
        command=command("train", *arguments),
        request=gpus(count, "h100-80g"),
        time_limit_s=hours * HOUR_S,
        justification="The detection backbone for the spring release.",
    )


def failing(name: str) -> Asked:
    """Ends with exit code 3."""
    return Asked(
        by="vision-member",
        team="vision",
        name=name,
        kind="training",
        ends="failed",
        command=command("fail"),
        request=gpus(1, "a100-40g"),
    )


@contextmanager
def started() -> Iterator[Stack]:
    """Starts a platform of its own and leaves no process and no file behind."""
    folder = Path(tempfile.mkdtemp(prefix="gpuyard-browser-"))
    folder.chmod(0o755)  # PostgreSQL runs as `nobody` when we are root
    state = folder / "state"
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("platform_process.py"))],
        env=clean_environment(state),
        cwd="/",
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent(signal.SIGTERM),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"the platform ended with {process.wait()}; see above"
        yield Stack(**json.loads(line))
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        gone = eventually(lambda: not processes_of(state))
        left = processes_of(state)
        shutil.rmtree(folder, ignore_errors=True)
        assert gone, left
