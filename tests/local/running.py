"""Starts this repository's programs as a stranger would, and looks for what they leave behind."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_OURS = ("DATABASE_URL", "MIGRATE_DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE")


def clean_environment(state: Path) -> dict[str, str]:
    """The environment without the test instance's addresses."""
    kept = {k: v for k, v in os.environ.items() if k not in _OURS and not k.startswith("GPUYARD_")}
    return kept | {"GPUYARD_STATE": str(state), "PYTHONUNBUFFERED": "1"}


def manage(state: Path, *arguments: str, timeout_s: float = 90) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), *arguments],
        env=clean_environment(state),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def processes_of(state: Path) -> dict[int, str]:
    """Processes of this state folder: by their environment, or, since Valkey overwrites that, where they stand."""
    mark = f"GPUYARD_STATE={state}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            inside = state in Path(os.readlink(folder / "cwd")).parents
            if inside or mark in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[int(folder.name)] = command
        except OSError:
            continue
    return found


def process_named(state: Path, part: str) -> int:
    """The oldest process of the folder whose command has `part` in it."""
    return min(pid for pid, command in processes_of(state).items() if part in command)


def eventually(claim: Callable[[], bool], *, timeout_s: float = 60) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if claim():
            return True
        time.sleep(0.1)
    return claim()


@contextmanager
def up(state: Path, *arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """`manage.py up` on a free port, and its address once it serves. Killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "manage.py"), "up", "--port", "0", *arguments],
        env=clean_environment(state),
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process, _address(process)
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def _address(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("GPU Yard serves on "):
            address: str = line.split()[4].rstrip(".")
            return address
    raise AssertionError(f"it ended before it served:\n{''.join(lines)}")
