"""The engine's cases of `benchmarks/pass.py`, small: they run, and say what they are asked for."""

import json
import subprocess
import sys
from typing import Any

from benchmarks.packing import ROOT


def figures(*arguments: str) -> Any:
    command = [sys.executable, "benchmarks/pass.py", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_a_full_cluster_starts_nothing_and_reserves() -> None:
    found = figures("full", "--quick")["full"]
    assert found["reservations_50"]["starts"] == 0
    assert found["reservations_50"]["verdicts"] == found["waiting"]
    assert found["reservations_50"]["reservations"] == 50
    assert found["peak_mib"] > 0


def test_a_gang_that_cannot_run_is_answered() -> None:
    found = figures("gang", "--quick")["gang"]
    assert found["running"] == 400
    assert found["never_a_whole_node"]["blockers"]
    assert "ok" not in found  # targets are for the full size


def test_an_unknown_case_is_named() -> None:
    command = [sys.executable, "benchmarks/pass.py", "speed"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no such case: speed" in done.stderr
