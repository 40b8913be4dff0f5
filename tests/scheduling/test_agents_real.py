"""A real agent against the real server: it joins, runs, is killed, comes back, and the true exit code arrives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard.fleet.models import Gpu, GpuTelemetry, Node, Tier
from gpuyard.fleet.services import join_token_create
from scheduling.lifecycle import workload_stop_begin
from scheduling.models import Allocation, LogChunk, Replica, Workload
from tests import factories as make

pytestmark = pytest.mark.django_db(transaction=True)

ENDS_WITH_3 = """
import os, sys, time
print("hello from", os.environ["GPUYARD_WORKLOAD"], flush=True)
time.sleep(6)
sys.exit(3)
"""
WAITS = "import time; print('up', flush=True); time.sleep(600)"


class RealAgent:
    """Starts the agent's program again and again on one state folder."""

    def __init__(self, server: str, state: Path) -> None:
        self._server, self.state = server, state
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, join_token: str = "") -> None:
        command = [
            sys.executable,
            "-m",
            "gpuyard_agent",
            "run",
            "--server",
            self._server,
            "--state",
            str(self.state),
        ]
        with (self.state.parent / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--name", "real-1", "--simulate", "2xh100-80g"],
                env={**os.environ, "GPUYARD_JOIN_TOKEN": join_token},
                stderr=log,
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture
def tier(db: None) -> Tier:
    return make.tier("h100-80g", rule_for="NVIDIA H100 80GB HBM3")


@pytest.fixture
def agent(live_server: Any, tmp_path: Path, tier: Tier) -> Iterator[RealAgent]:
    _token, secret = join_token_create(actor=None, pool=make.pool())
    one = RealAgent(live_server.url, tmp_path / "state")
    one.start(secret)
    yield one
    one.kill()
    for shim in (tmp_path / "state").glob("replicas/*/child.json"):
        _kill_group(shim)


def _kill_group(child_file: Path) -> None:
    try:
        os.killpg(json.loads(child_file.read_text())["pid"], signal.SIGKILL)
    except (ProcessLookupError, PermissionError, ValueError, KeyError):
        return


def _until(holds: Callable[[], bool], what: str, timeout_s: float = 40.0) -> None:
    ends = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < ends, f"not within {timeout_s} s: {what}"
        time.sleep(0.1)


def _place(tier: Tier, program: str) -> Workload:
    workload = make.workload(
        None, tier, spec=make.spec_document(tier, gpus=2, command=[sys.executable, "-u", "-c", program])
    )
    make.placed(workload, list(Gpu.objects.order_by("index")))
    return workload


def _is(workload: Workload, state: str) -> Callable[[], bool]:
    def holds() -> bool:
        workload.refresh_from_db()
        return workload.state == state

    return holds


def _node_is_ready() -> bool:
    return Node.objects.filter(state="ready").exists()


def test_a_job_outlives_its_agent_and_ends_with_its_real_code(agent: RealAgent, tier: Tier) -> None:
    _until(_node_is_ready, "the node is ready")
    assert Gpu.objects.filter(tier=tier).count() == 2
    workload = _place(tier, ENDS_WITH_3)
    _until(_is(workload, "running"), "it runs")
    agent.kill()
    agent.start()

    _until(_is(workload, "failed"), "it ended")

    assert workload.exit_code == 3
    replica = Replica.objects.get()
    assert replica.running_at is not None
    assert replica.ended_at is not None
    assert (replica.ended_at - replica.running_at).total_seconds() == pytest.approx(6.0, abs=3.0)
    assert set(Allocation.objects.values_list("state", flat=True)) == {"ended"}
    assert Node.objects.get().cpu_used_m == 0
    text = "".join(LogChunk.objects.filter(stream="stdout").values_list("text", flat=True))
    assert text == f"hello from {workload.public_id}\n"
    assert any(sum(row.seconds) > 0 for row in GpuTelemetry.objects.all())


def test_a_stop_reaches_the_process(agent: RealAgent, tier: Tier) -> None:
    _until(_node_is_ready, "the node is ready")
    workload = _place(tier, WAITS)
    _until(_is(workload, "running"), "it runs")
    workload_stop_begin(workload_id=workload.pk, actor=workload.owner, reason="")
    _until(_is(workload, "cancelled"), "it stopped")
    assert Replica.objects.get().exit_reason == "stopped"
    assert set(Allocation.objects.values_list("state", flat=True)) == {"ended"}
    _until(lambda: not list((agent.state / "replicas").iterdir()), "the agent has forgotten it")
