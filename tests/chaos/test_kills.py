"""Kills everything that can be killed, again and again, while real work runs; then looks at what is left.

A kill is always -9 and the order comes from a seed, so that a failure can be played again.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpuyard.demo.client import Api, ApiError
from gpuyard.demo.scenario import HOUR_S, Asked
from tests.browser.stack import gpus
from tests.local.running import ROOT, clean_environment, eventually, manage, processes_of

ENDED = {"succeeded", "failed", "cancelled", "rejected", "expired"}
SETTLES_WITHIN_S = 100.0
# What is killed: a part of its command line. A killed backend makes PostgreSQL restart all of them.
VICTIMS = {
    "agent": "gpuyard_agent run",
    "shim": "gpuyard_agent.shim",
    "pass": "-Q pass",
    "worker": "-Q default,long",
    "beat": " beat ",
    "web": "gunicorn",
    "valkey": "valkey-server",
    "backend": "postgres: app ",
    "postmaster": "bin/postgres",
}
WEIGHTS = {"agent": 6, "shim": 1, "pass": 4, "worker": 3, "beat": 1, "web": 4, "valkey": 2, "backend": 2}


@dataclass
class Platform:
    """A platform under fire, and what was asked of it."""

    state: Path
    process: "subprocess.Popen[str]"
    facts: dict[str, Any]
    asked: dict[str, str] = field(default_factory=dict)  # workload id → who asked
    killed: Counter[str] = field(default_factory=Counter)

    def call(self, username: str, act: Callable[[Api], Any]) -> Any:
        """As a patient client: tries again while servers are down."""
        deadline = time.monotonic() + 60
        while True:
            api = Api(self.facts["url"], self.facts["tokens"][username])
            try:
                return act(api)
            except (httpx.HTTPError, ApiError) as problem:
                if time.monotonic() > deadline or _is_refusal(problem):
                    raise
                time.sleep(0.3)
            finally:
                api.close()

    def submit(self, asked: Asked) -> str:
        body, key = asked.body(self.facts["teams"][asked.team]), f"chaos-{asked.name}"
        made = self.call(asked.by, lambda api: api.post("workloads", body, key=key))
        self.asked[made["id"]] = asked.by
        return str(made["id"])

    def detail(self, workload_id: str) -> dict[str, Any]:
        who = self.asked[workload_id]
        found: dict[str, Any] = self.call(who, lambda api: api.get(f"workloads/{workload_id}"))
        return found

    def stop(self, workload_id: str) -> None:
        with suppress(ApiError):  # it has ended meanwhile
            self.call(
                self.asked[workload_id],
                lambda api: api.post(f"workloads/{workload_id}/stop", {}, key=f"stop-{workload_id}"),
            )

    def processes(self) -> dict[int, str]:
        """Agents and their work are not told the state folder, but their commands name it."""
        found = processes_of(self.state)
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if f"{self.state}/" in command:
                    found[int(folder.name)] = command
        return found

    def kill(self, dice: random.Random) -> None:
        (name,) = dice.choices(list(WEIGHTS), list(WEIGHTS.values()))
        part = VICTIMS[name]
        pids = sorted(pid for pid, command in self.processes().items() if part in command)
        if pids:
            with suppress(ProcessLookupError):
                os.kill(dice.choice(pids), signal.SIGKILL)
                self.killed[name] += 1


def _is_refusal(problem: Exception) -> bool:
    """An answer of the platform itself, which asking again does not change."""
    text = str(problem)
    return isinstance(problem, ApiError) and any(f": {status} " in text for status in (400, 403, 404, 409))


@contextmanager
def platform() -> Iterator[Platform]:
    folder = Path(tempfile.mkdtemp(prefix="gpuyard-chaos-"))
    folder.chmod(0o755)  # PostgreSQL runs as `nobody` when we are root
    state = folder / "state"
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "browser" / "platform_process.py")],
        env=clean_environment(state),
        cwd="/",
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    made: Platform | None = None
    try:
        line = process.stdout.readline()
        assert line, f"the platform ended with {process.wait()}"
        made = Platform(state, process, json.loads(line))
        yield made
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        left = made.processes() if made and not eventually(lambda: not made.processes()) else {}
        shutil.rmtree(folder, ignore_errors=True)
        assert not left, left


# --- What is asked for ---------------------------------------------------------------------------------------


def _asked(name: str, command: list[str], request: dict[str, Any], *, hours: int = 1, by: str = "") -> Asked:
    team = by or ("vision", "nlp", "recsys")[len(name) % 3]
    return Asked(
        by=f"{team}-member",
        team=team,
        name=name,
        kind="training",
        ends="",
        command=command,
        request=request,
        time_limit_s=hours * HOUR_S,
    )


def _shell(text: str) -> list[str]:
    return ["sh", "-c", text]


def workloads() -> list[Asked]:
    """Short ones of every sort: they succeed, fail, gang up, talk, ignore signals, wait for ever, need approval."""
    gang = {**gpus(4, "h100-80g"), "tiers": ["h100-80g", "a100-40g"], "mix_tiers": True}
    gang |= {"replicas_min": 2, "replicas_max": 2}
    return [
        _asked("short-0", _shell("sleep 4"), gpus(1, "h100-80g")),
        _asked("short-1", _shell("sleep 8; echo done"), gpus(2, "a100-40g")),
        _asked("gang-of-2", _shell("echo rank $RANK; sleep 6"), gang, by="nlp"),
        _asked("fails", _shell("sleep 2; exit 3"), gpus(1, "l4-24g")),
        _asked("talks", _shell("for i in $(seq 3000); do echo line $i; done; sleep 3"), gpus(1, "l4-24g")),
        _asked("all-l4", _shell("sleep 5"), gpus(4, "l4-24g"), by="recsys"),
        _asked("all-l4-again", _shell("sleep 5"), gpus(4, "l4-24g"), by="recsys"),
        _asked("gang-of-2-again", _shell("sleep 5"), gang, by="vision"),
        _asked("leaves-a-child", _shell("sleep 300 & sleep 3"), gpus(1, "a100-40g")),
        _asked("stopped", _shell("trap '' TERM; while :; do sleep 1; done"), gpus(1, "a100-40g"), by="nlp"),
        _asked("never", _shell("true"), gpus(16, "h100-80g")),
        _asked("needs-approval", _shell("sleep 3"), gpus(2, "h100-80g"), hours=8, by="vision"),
    ]


def _approve(stack: Platform) -> None:
    def decide(api: Api) -> None:
        for case in api.pages("cases", to_decide="true"):
            api.post(f"cases/{case['id']}/decision", {"approve": True}, key=f"approve-{case['id']}")

    stack.call("vision-manager", decide)


# --- What must hold ------------------------------------------------------------------------------------------

_LEFT = """
import json
from django.core.management import call_command
from gpuyard.fleet.models import Node
from scheduling.models import Allocation, PortLease, Replica
from scheduling.states import ALLOCATION_LIVE
call_command("verify_books", meter=True, json=True)
call_command("verify_audit")
print(json.dumps({
    "held": Allocation.objects.filter(state__in=ALLOCATION_LIVE).count(),
    "leases": PortLease.objects.count(),
    "replicas": Replica.objects.exclude(state="exited").count(),
    "counters": list(Node.objects.exclude(cpu_used_m=0, memory_used_mib=0).values_list("name", flat=True)),
}))
"""
_NOTHING = {"held": 0, "leases": 0, "replicas": 0, "counters": []}


def _left(state: Path) -> Any:
    """What is still held; both verifications ended with exit code 0."""
    answer = manage(state, "shell", "--no-imports", "-c", _LEFT)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return json.loads(answer.stdout.splitlines()[-1])


def _is_settled(detail: dict[str, Any]) -> bool:
    return detail["state"] in ENDED or (detail["state"] == "waiting" and detail["verdict"] is not None)


def _check(stack: Platform) -> None:
    last: dict[str, str] = {}

    def settled() -> bool:
        details = [stack.detail(one) for one in stack.asked]
        last.update({one["name"]: one["state"] for one in details})
        return all(
            _is_settled(one) and (one["state"] in ENDED) == (one["name"] != "never") for one in details
        )

    assert eventually(settled, timeout_s=SETTLES_WITHIN_S), (last, stack.killed)
    assert _left(stack.state) == _NOTHING, stack.killed
    details = {one["name"]: one for one in map(stack.detail, stack.asked)}
    assert details["never"]["verdict"]["blockers"]
    assert details["fails"]["exit_code"] in (3, None), details["fails"]  # None: its shim was killed


def _storm(asked: list[Asked], *, seed: int, kills: int, pause_s: tuple[float, float]) -> None:
    dice = random.Random(seed)
    with platform() as stack:
        first, later = asked[: len(asked) // 2], asked[len(asked) // 2 :]
        for one in first:
            stack.submit(one)
        for number in range(kills):
            time.sleep(dice.uniform(*pause_s))
            stack.kill(dice)
            if later:
                stack.submit(later.pop(0))
            if number == kills // 2:
                _approve(stack)
        for one in later:
            stack.submit(one)
        _approve(stack)
        for workload_id in stack.asked:
            if stack.detail(workload_id)["name"] == "stopped":
                stack.stop(workload_id)
        _check(stack)
        assert sum(stack.killed.values()) >= kills // 2, stack.killed


@pytest.mark.proof
@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm_of_kills_leaves_nothing_half_done(seed: int) -> None:
    _storm(workloads(), seed=seed, kills=30, pause_s=(0.3, 1.5))


def test_a_few_kills_leave_nothing_half_done() -> None:
    short = [one for one in workloads() if one.name in {"short-0", "fails", "gang-of-2", "never", "stopped"}]
    _storm(short, seed=7, kills=6, pause_s=(0.2, 0.8))
