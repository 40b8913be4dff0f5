"""Carries out what `reconcile` decided, and knows the replicas of this node."""

import logging
from collections.abc import Iterable
from typing import Final

from gpuyard_agent import clock, records
from gpuyard_agent.devices.base import DeviceBackend
from gpuyard_agent.environment import replica_environment
from gpuyard_agent.logs import LogSender
from gpuyard_agent.protocol import ReplicaOrder
from gpuyard_agent.reconcile import Action, Bury, Forget, Refuse, Restart, Start, Stop
from gpuyard_agent.replicas import ReplicaFolder, ReplicaStore
from gpuyard_agent.runner.base import Observation, Runner

logger = logging.getLogger(__name__)

SPOOL_BYTES: Final = 64 * 1024 * 1024  # per stream, while the server cannot take it
LOGS_WAIT_S: Final = 60.0  # how long a forgotten replica's folder waits for its last output to be taken


class Executor:
    def __init__(
        self, *, store: ReplicaStore, runner: Runner, devices: DeviceBackend, lease_file: str
    ) -> None:
        self._store = store
        self._runner = runner
        self._devices = devices
        self._lease_file = lease_file
        self._forget_since_s: dict[str, float] = {}
        self._refused: set[tuple[str, int]] = set()
        self.logs = LogSender()
        self.folders: dict[str, ReplicaFolder] = {folder.order.replica_id: folder for folder in store.load()}

    def observe(self) -> dict[str, Observation]:
        return {replica_id: self._runner.observe(folder) for replica_id, folder in self.folders.items()}

    def stop_grace_s(self, replica_id: str) -> float | None:
        stop: records.Stop | None = self.folders[replica_id].read(records.STOP_FILE)
        return None if stop is None else stop["grace_s"]

    def execute(self, actions: Iterable[Action], *, lease_deadline_s: float) -> None:
        for action in actions:
            try:
                self._execute(action, lease_deadline_s)
            except OSError as error:  # one that fails must not hold up the others; the next answer asks again
                logger.error("%s failed: %s", type(action).__name__, error)

    def _execute(self, action: Action, lease_deadline_s: float) -> None:
        match action:
            case Start(order):
                self._start(order, lease_deadline_s)
            case Restart(order):
                self._remove(order.replica_id)
                self._start(order, lease_deadline_s)
            case Stop(replica_id, grace_s):
                logger.info("replica %s: stop within %.1f s", replica_id, grace_s)
                self._runner.stop(self.folders[replica_id], grace_s)
            case Bury(order):
                self._bury(order)
            case Forget(replica_id):
                self._forget(replica_id)
            case Refuse(replica_id, known_token, asked_token):
                self._refuse(replica_id, known_token, asked_token)

    def _start(self, order: ReplicaOrder, lease_deadline_s: float) -> None:
        unknown = set(order.gpu_uuids) - {gpu["uuid"] for gpu in self._devices.gpus()}
        if unknown:
            self._never_started(order, "start_failed", f"this node has no GPU {', '.join(sorted(unknown))}")
            return
        if self._runner.has_remains(order.replica_id):
            self._never_started(
                order, "shim_lost", "it ran on this node already, and the agent's state was lost"
            )
            return
        folder = self._store.prepare(order)
        folder.write(records.LAUNCH_FILE, self._launch(folder, lease_deadline_s))
        self._store.commit(folder)
        self.folders[order.replica_id] = folder
        logger.info("replica %s: start, token %d", order.replica_id, order.fencing_token)
        self._runner.start(folder)

    def _launch(self, folder: ReplicaFolder, lease_deadline_s: float) -> records.Launch:
        order = folder.order
        work = folder.file(records.WORK_FOLDER)
        temporary = self._store.make_temporary_dir()
        devices = self._devices.visible_devices(order.gpu_uuids, order.gpu_indexes)
        return {
            "argv": list(order.command),
            "env": replica_environment(order, visible_devices=devices, work_folder=work, temporary=temporary),
            "working_dir": order.working_dir or work,
            "temporary_dir": temporary,
            "time_limit_s": order.time_limit_s,
            "grace_s": order.grace_s,
            "on_disconnect": order.on_disconnect,
            "lease_file": self._lease_file,
            "lease_deadline_s": lease_deadline_s,
            "spool_bytes": SPOOL_BYTES,
        }

    def _bury(self, order: ReplicaOrder) -> None:
        if order.replica_id in self.folders:
            self._remove(order.replica_id)
        self._never_started(order, "stopped", "it was stopped before it started on this node")

    def _never_started(self, order: ReplicaOrder, reason: str, message: str) -> None:
        """Not clean before the runner has looked: an earlier state folder may have left processes of it here."""
        folder = self._store.prepare(order)
        folder.write_exit(reason=reason, message=message, clean=False)
        self._store.commit(folder)
        self.folders[order.replica_id] = folder
        logger.warning("replica %s: %s", order.replica_id, message)

    def _forget(self, replica_id: str) -> None:
        folder = self.folders[replica_id]
        since_s = self._forget_since_s.setdefault(replica_id, clock.now_s())
        if self.logs.is_finished(folder) or clock.now_s() - since_s > LOGS_WAIT_S:
            self._remove(replica_id)

    def _remove(self, replica_id: str) -> None:
        folder = self.folders.pop(replica_id)
        self._forget_since_s.pop(replica_id, None)
        self.logs.forget(folder)
        self._store.remove(folder)

    def _refuse(self, replica_id: str, known_token: int, asked_token: int) -> None:
        if (
            replica_id,
            asked_token,
        ) not in self._refused:  # it comes with every answer; once is enough to read
            self._refused.add((replica_id, asked_token))
            logger.error("replica %s: refused the old token %d, has %d", replica_id, asked_token, known_token)
