"""Child processes that never outlive us, and free ports."""

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from gpuyard.local.state import LocalServicesError, ServerUser

_PR_SET_PDEATHSIG = 1
# Loaded before any fork: loading a library between fork and exec could deadlock.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None


def die_with_parent(death_signal: int, parent: int | None = None) -> Callable[[], None]:
    """For `preexec_fn`: the kernel sends the signal when the *thread* that started the child ends.

    So children are started from threads that live as long as the children should. Linux only; elsewhere an
    orphan is found and stopped at the next start.
    """
    expected = parent or os.getpid()

    def prepare() -> None:
        if _libc is not None:
            _libc.prctl(_PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != expected:  # it died before we asked
            os._exit(1)

    return prepare


def spawn(
    argv: Sequence[str | Path],
    *,
    death_signal: int = signal.SIGTERM,
    user: ServerUser | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | Path = "/",
    output: int | IO[bytes] = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Starts a child in a session of its own, so that Ctrl-C reaches only us and we stop it in order."""
    # preexec_fn runs after the change of user, which would clear the death signal.
    return subprocess.Popen(
        [str(part) for part in argv],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        env=None if env is None else dict(env),
        user=user.uid if user else None,
        group=user.gid if user else None,
        extra_groups=[] if user else None,
        preexec_fn=die_with_parent(death_signal),
        start_new_session=True,
        pass_fds=pass_fds,
    )


def stop(process: subprocess.Popen[bytes], stop_signal: int, *, patience_s: float) -> None:
    """Signals, waits, and kills the whole group only if it does not end by itself."""
    if process.poll() is None:
        process.send_signal(stop_signal)
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            kill_group(process)
    process.wait()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # spawn() made it the leader of its group


# Below the range from which systems give out ports by themselves: a client that retries while a server restarts
# could be given that very port as its own, connect to itself, and keep the server from coming back.
_SERVER_PORTS = range(10_000, 20_000)
_AGENT_PORTS = range(20_000, 32_000)


def free_port() -> int:
    return free_port_range(1, _SERVER_PORTS)[0]


def free_port_range(size: int = 100, within: range = _AGENT_PORTS) -> tuple[int, int]:
    """A block of ports that nobody listens on now."""
    blocks = list(within[::size])
    random.shuffle(blocks)
    for first in blocks:
        if all(_is_free(port) for port in range(first, first + size)):
            return first, first + size - 1
    raise LocalServicesError(f"No {size} free ports in a row from {within[0]} to {within[-1]}.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def below(folder: Path) -> list[int]:
    """Processes that stand in this folder, or name it in their command or environment (Linux only)."""
    name = os.fsencode(folder) + b"/"
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            place = os.fsencode(os.readlink(entry / "cwd")) + b"/"
            texts = (place, (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes())
            if int(entry.name) != os.getpid() and any(name in text for text in texts):
                found.append(int(entry.name))
    return found


def wait_until(claim: Callable[[], bool], *, timeout_s: float, pause_s: float = 0.05) -> bool:
    deadline = time.monotonic() + timeout_s
    while not claim():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
    return True


def command_line(pid: int) -> str:
    """The command of a process, empty if there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        pass
    if sys.platform.startswith("linux"):
        return ""
    answer = subprocess.run(
        ["ps", "-p", str(pid), "-o", "command="],  # noqa: S607  macOS keeps it in /bin, others elsewhere
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip()
