"""Log lines on the terminal, without waiting for it: one that is paused must not stop the platform."""

import contextlib
import os
import queue
import sys
import threading

_WAITING_LINES = 2_000
_LAST_LINES_S = 1.0


class Terminal:
    """Shows lines in order from a thread of its own; leaves lines out while nobody reads them."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue(_WAITING_LINES)
        self._left_out = 0
        self._thread: threading.Thread | None = None
        self._changes = threading.Lock()

    def show(self, line: str) -> None:
        """Returns at once, from any thread."""
        with self._changes:
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name="terminal", daemon=True)
                self._thread.start()
            try:
                self._lines.put_nowait(line)
            except queue.Full:
                self._left_out += 1

    def close(self) -> None:
        """Gives the last lines a moment to be read."""
        with self._changes:
            thread, self._thread = self._thread, None
            with contextlib.suppress(queue.Full):
                self._lines.put_nowait(None)
        if thread is not None:
            thread.join(_LAST_LINES_S)

    def _write(self) -> None:
        # Not through sys.stdout: a thread that holds its lock when Python ends would make it end badly.
        descriptor = sys.stdout.fileno()
        while (line := self._lines.get()) is not None:
            with self._changes:
                left_out, self._left_out = self._left_out, 0
            if left_out:
                line += f"{'up':<12}| {left_out} lines are only in the log files: the terminal was paused\n"
            with contextlib.suppress(OSError):  # the terminal is gone
                _write_all(descriptor, line.encode())


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
