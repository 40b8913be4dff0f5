"""The local PostgreSQL and Valkey together: one starter at a time, found by others through running.json."""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

from gpuyard.local import state as state_module
from gpuyard.local.postgres import PostgresServer
from gpuyard.local.state import LocalServicesError
from gpuyard.local.valkey import ValkeyServer

Server = PostgresServer | ValkeyServer


class LocalServices:
    """Starts what the environment does not name already.

    The starter holds a lock for as long as it lives, so the kernel frees it even after kill -9.
    Call `start` from a thread that lives as long as the servers should.
    """

    def __init__(self, state: Path, *, purpose: str) -> None:
        self.state = state
        self.purpose = purpose
        self.environment: dict[str, str] = {}
        self.servers: list[Server] = []
        self._lock: IO[str] | None = None

    def start(self, *, wait_s: float = 60.0, on_wait: Callable[[str], None] | None = None) -> dict[str, str]:
        state_module.prepare(self.state)
        self._take_lock(wait_s, on_wait)
        try:
            self._start_servers()
        except BaseException:
            self.stop()
            raise
        return self.environment

    def try_start(self) -> bool:
        """Like `start`, but False if another process holds the state folder."""
        state_module.prepare(self.state)
        if not self._try_lock():
            return False
        self.start()
        return True

    def reset(self, *, wait_s: float = 60.0) -> None:
        """Forgets everything but the copied programs."""
        state_module.prepare(self.state)
        self._take_lock(wait_s, None)
        for path in self.state.iterdir():
            if path.name in {"lock", "users", "bin"}:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def stop(self, *, wait_for_users_s: float = 0.0) -> None:
        with _no_users(self.state, wait_for_users_s) if wait_for_users_s else nullcontext():
            if self._lock is not None:
                state_module.running_file(self.state).unlink(missing_ok=True)
            for server in reversed(self.servers):
                server.stop()
            self.servers = []
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def announce(self, **more: Any) -> None:
        """Tells other processes where we are; `more` adds facts such as the web address."""
        record = {"pid": os.getpid(), "purpose": self.purpose, "env": self.environment, **more}
        state_module.write_private(state_module.running_file(self.state), json.dumps(record))

    def _start_servers(self) -> None:
        given = {name: os.environ[name] for name in state_module.VARIABLES if os.environ.get(name)}
        self.environment = given
        if "DATABASE_URL" not in given:
            self._run(PostgresServer(self.state))
        if "REDIS_URL" not in given:
            self._run(ValkeyServer(self.state))
        self.announce()

    def _run(self, server: Server) -> None:
        self.servers.append(server)
        server.start()
        self.environment = self.environment | server.environment()

    def _try_lock(self) -> bool:
        if self._lock is not None:
            return True
        file = (self.state / "lock").open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._lock = file
        return True

    def _take_lock(self, wait_s: float, on_wait: Callable[[str], None] | None) -> None:
        deadline = time.monotonic() + wait_s
        told = False
        while not self._try_lock():
            holder = (state_module.running(self.state) or {}).get("purpose", "another command")
            if time.monotonic() > deadline or holder in {"up", "demo"}:
                raise LocalServicesError(
                    f"GPU Yard already runs with the state folder {self.state} ({holder}). Stop it first, "
                    "or set GPUYARD_STATE to another folder to run a second one."
                )
            if on_wait and not told:
                on_wait(f"Waiting for {holder}, which uses {self.state} …")
                told = True
            time.sleep(0.1)


def _users_file(state: Path) -> IO[str]:
    return (state / "users").open("a")


@contextmanager
def using(state: Path) -> Iterator[None]:
    """Marks us as a user of the servers: a command that started them waits for us before it stops."""
    with _users_file(state) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


@contextmanager
def _no_users(state: Path, wait_s: float) -> Iterator[None]:
    """Waits until nobody uses the servers; who comes meanwhile waits in `using` until they have stopped."""
    deadline = time.monotonic() + wait_s
    with _users_file(state) as file:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.1)
        yield
