"""One supervised program: its start, its log lines, its restarts with growing pauses."""

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from gpuyard.local import processes

LogLine = Callable[[str, str], None]
_PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_STEADY_S = 60.0  # one that ran this long starts again without a long pause


@dataclass(frozen=True)
class Program:
    """What to run, and how it ends."""

    name: str
    argv: Sequence[str | Path]
    env: Mapping[str, str]
    stop_signal: int = signal.SIGTERM
    death_signal: int = signal.SIGKILL  # if we are killed; every program here is safe to kill at any moment
    patience_s: float = 10.0
    restart: bool = True
    pass_fds: Sequence[int] = field(default=())


class Child:
    """A running program."""

    def __init__(self, program: Program, log: LogLine, folder: Path) -> None:
        self.program = program
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._log = log
        self._folder = folder
        self._started_at = 0.0
        self._failures = 0
        self._start_at: float | None = None

    def start(self) -> None:
        program = self.program
        self.process = processes.spawn(
            program.argv,
            env=program.env,
            cwd=self._folder,
            death_signal=program.death_signal,
            output=subprocess.PIPE,
            pass_fds=program.pass_fds,
        )
        self.starts += 1
        self._started_at = time.monotonic()
        self._start_at = None
        assert self.process.stdout is not None
        threading.Thread(target=self._copy_lines, args=(self.process.stdout,), daemon=True).start()

    def watch(self) -> None:
        """Notices an end; starts it again once its pause is over."""
        if self.process is None or self.process.poll() is None or not self.program.restart:
            return
        if self._start_at is None:
            steady = time.monotonic() - self._started_at > _STEADY_S
            self._failures = 0 if steady else self._failures + 1
            pause_s = _PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)]
            self._start_at = time.monotonic() + pause_s
            self._log(
                self.program.name, f"ended with {self.process.returncode}; starts again in {pause_s:g} s"
            )
        elif time.monotonic() >= self._start_at:
            self.start()

    def ask_to_stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(self.program.stop_signal)

    def stop(self) -> None:
        if self.process is not None:
            processes.stop(self.process, self.program.stop_signal, patience_s=self.program.patience_s)

    def _copy_lines(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                self._log(self.program.name, line.decode(errors="replace").rstrip("\n"))
