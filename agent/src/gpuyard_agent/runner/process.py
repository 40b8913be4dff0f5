"""Replicas as plain processes, each under its own shim."""

import logging
import os
import signal
import sys
from pathlib import Path

from gpuyard_agent import clock, environment, files, proc, records, shim
from gpuyard_agent.replicas import ReplicaFolder
from gpuyard_agent.runner.base import Observation

logger = logging.getLogger(__name__)

MAX_START_TRIES = 3
SHIM_LOG = "shim.log"
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])


class ProcessRunner:
    def __init__(self, *, supervisor: int | None = None) -> None:
        self._supervisor = supervisor
        if supervisor is not None:
            os.set_inheritable(supervisor, True)  # by the shims; nothing else is started from here
        self._boot_id = clock.boot_id()
        self._shims: dict[str, int] = {}  # pids of those started in this life of the agent and not waited for
        self._tries: dict[str, int] = {}

    def start(self, folder: ReplicaFolder) -> None:
        self._tries[folder.path] = self._tries.get(folder.path, 0) + 1
        # -S: without site-packages the shim starts in a third of the time
        argv = [sys.executable, "-S", "-P", "-m", "gpuyard_agent.shim", folder.path]
        log_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            self._shims[folder.path] = os.posix_spawn(
                sys.executable,
                argv,
                self._shim_environment(),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, folder.file(SHIM_LOG), log_flags, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
            )
        except OSError as error:  # no memory, no process slot: the next look tries again
            logger.error("replica %s: the shim could not be started: %s", folder.order.replica_id, error)

    def _shim_environment(self) -> dict[str, str]:
        variables = {"PATH": environment.DEFAULT_PATH, "PYTHONPATH": _PACKAGE_ROOT}
        if self._supervisor is not None:
            variables[shim.SUPERVISOR_VARIABLE] = str(self._supervisor)
        return variables

    def stop(self, folder: ReplicaFolder, grace_s: float) -> None:
        stop: records.Stop = {"grace_s": grace_s}
        try:
            folder.write(records.STOP_FILE, stop)
        except (
            OSError
        ) as error:  # a full disk: the signal alone still ends it, with the grace it started with
            logger.error("replica %s: %s", folder.order.replica_id, error)
        owner = self._live_shim(folder)
        if owner is not None:  # it looks at the file within a second anyway; this makes it at once
            proc.send_signal(owner["pid"], owner["started_ticks"], signal.SIGTERM)

    def has_remains(self, replica_id: str) -> bool:
        return any(not stat.is_gone for stat in proc.with_environment(_mark(replica_id), proc.all_stats()))

    def observe(self, folder: ReplicaFolder) -> Observation:
        ended: records.Exit | None = folder.read(records.EXIT_FILE)
        if ended is not None and ended["clean"]:
            self._reap(folder)
            self._tries.pop(folder.path, None)
            return self._exited(folder, ended, owner_pid=None)
        owner = self._live_shim(folder)
        if owner is not None:
            return self._under_shim(folder, folder.read(records.EXIT_FILE), owner["pid"])
        return self._without_shim(folder)

    def _live_shim(self, folder: ReplicaFolder) -> records.ShimIdentity | None:
        owner: records.ShimIdentity | None = folder.read(records.SHIM_FILE)
        if owner is None or owner["boot_id"] != self._boot_id:
            return None
        return owner if proc.is_alive(owner["pid"], owner["started_ticks"]) else None

    def _under_shim(self, folder: ReplicaFolder, ended: records.Exit | None, owner_pid: int) -> Observation:
        if ended is not None:
            return self._exited(folder, ended, owner_pid=owner_pid)
        child: records.Child | None = folder.read(records.CHILD_FILE)
        started_s = None if child is None else child["started_s"]
        if os.path.exists(folder.file(records.STOP_FILE)):
            return Observation("stopping", started_s=started_s, owner_pid=owner_pid)
        return Observation(
            "starting" if child is None else "running", started_s=started_s, owner_pid=owner_pid
        )

    def _exited(self, folder: ReplicaFolder, ended: records.Exit, owner_pid: int | None) -> Observation:
        child: records.Child | None = folder.read(records.CHILD_FILE)
        same_boot = ended["boot_id"] == self._boot_id
        return Observation(
            state="exited",
            exit_code=ended["exit_code"],
            exit_reason=ended["reason"],
            signal=ended["signal"],
            started_s=child["started_s"] if child is not None and child["boot_id"] == self._boot_id else None,
            ended_s=ended["ended_s"] if same_boot else 0.0,  # before this boot; the server clamps it
            clean=ended["clean"],
            message=ended["message"],
            owner_pid=owner_pid,
        )

    # -- no shim --

    def _without_shim(self, folder: ReplicaFolder) -> Observation:
        ended: records.Exit | None = folder.read(records.EXIT_FILE)  # again: it may have ended just now
        owner: records.ShimIdentity | None = folder.read(records.SHIM_FILE)
        accepted_in = owner["boot_id"] if owner is not None else folder.boot_id
        if accepted_in != self._boot_id:
            return self._after_reboot(folder, ended)
        if owner is None and ended is None:
            return self._before_shim(folder)
        self._reap(folder)
        return self._settle(folder, ended)

    def _after_reboot(self, folder: ReplicaFolder, ended: records.Exit | None) -> Observation:
        """Nothing survives a reboot, so whatever it was is clean now."""
        if ended is None:
            ended = folder.write_exit(reason="lost_on_reboot", clean=True, ended_s=0.0)
        return self._exited(folder, {**ended, "clean": True}, owner_pid=None)

    def _before_shim(self, folder: ReplicaFolder) -> Observation:
        """Its shim is just starting, or an agent was killed before it could start one."""
        if self._reap(folder):
            if os.path.exists(folder.file(records.SHIM_FILE)):
                return Observation("starting")  # it came and went meanwhile: the next look tells
            if self._tries.get(folder.path, 0) >= MAX_START_TRIES:
                message = f"the shim does not start, see {SHIM_LOG} in {folder.path} on the node"
                ended = folder.write_exit(reason="start_failed", message=message, clean=True)
                return self._exited(folder, ended, owner_pid=None)
            self.start(folder)
        return Observation("starting")

    def _settle(self, folder: ReplicaFolder, ended: records.Exit | None) -> Observation:
        """The shim is gone (or never was) and did not come to the end of its work: do that here."""
        if ended is None:
            logger.error("replica %s: its shim was killed", folder.order.replica_id)
            ended = folder.write_exit(
                reason="shim_lost",
                message="the process that watches over the replica was killed",
                clean=False,
            )
        leftover = self._leftover(folder)
        proc.signal_all(leftover, signal.SIGKILL)
        if not leftover:
            ended = {**ended, "clean": True}
            files.write_json(folder.file(records.EXIT_FILE), ended, durable=True)
        return self._exited(folder, ended, owner_pid=None)

    def _leftover(self, folder: ReplicaFolder) -> list[proc.ProcStat]:
        """By the mark in their environment, or by the session for those that changed it."""
        stats = proc.all_stats()
        found = {stat.pid: stat for stat in proc.with_environment(_mark(folder.order.replica_id), stats)}
        child: records.Child | None = folder.read(records.CHILD_FILE)
        if child is not None and child["boot_id"] == self._boot_id:
            for stat in stats.values():
                if stat.session == child["pid"] and stat.started_ticks >= child["started_ticks"]:
                    found[stat.pid] = stat
        return [stat for stat in found.values() if not stat.is_gone]

    def _reap(self, folder: ReplicaFolder) -> bool:
        """True when no shim of ours is left for this replica."""
        pid = self._shims.get(folder.path)
        if pid is not None and os.waitpid(pid, os.WNOHANG)[0] == 0:
            return False
        self._shims.pop(folder.path, None)
        return True


def _mark(replica_id: str) -> str:
    return f"GPUYARD_REPLICA={replica_id}"
