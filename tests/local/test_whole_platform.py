"""The whole platform, not only the engine: everything that is submitted starts and ends, and the books agree."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local.running import ROOT, clean_environment


@pytest.mark.proof
def test_two_thousand_workloads_on_a_hundred_nodes_start_and_end(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/whole_platform.py", "--nodes", "100", "--workloads", "2000"]
    done = subprocess.run(
        command, cwd=ROOT, env=clean_environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["states"] == {"succeeded": 2000}
    assert not any(found["left"].values())
    assert found["overfull_nodes"] == []
    assert found["verify_books"]
    assert found["verify_audit"]
