"""Waiting that ends early when the agent is told to stop."""

import os
import select
import signal


class Waiter:
    """Woken by SIGTERM and SIGINT, and by the end of the local supervisor (the write end of its pipe closes)."""

    def __init__(self, supervisor: int | None) -> None:
        self.should_stop = False
        self._supervisor = supervisor
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def wait(self, seconds: float) -> None:
        watched = [self._reader] if self._supervisor is None else [self._reader, self._supervisor]
        if self.should_stop:
            return
        ready, _, _ = select.select(watched, [], [], max(0.0, seconds))
        if self._supervisor in ready:  # nobody ever writes to it, so this is its end
            self.should_stop = True

    def _on_signal(self, _number: int, _frame: object) -> None:
        self.should_stop = True
        os.write(self._writer, b"x")
