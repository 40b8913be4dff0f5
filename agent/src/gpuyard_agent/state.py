"""The agent's state folder: who this node is, how often the agent started, the lease, the replicas."""

import fcntl
import os
from typing import Any, Final, TypedDict

from gpuyard_agent import clock, files, records

NODE_FILE: Final = "node.json"
BOOT_FILE: Final = "boot.json"
LEASE_FILE: Final = "lease.json"
LOCK_FILE: Final = "agent.lock"
REPLICA_FOLDER: Final = "replicas"


class NodeRecord(TypedDict):
    node_id: str
    node_secret: str
    name: str
    sync_s: float
    lease_s: float


class AlreadyRunning(Exception):
    """Another agent uses this state folder."""


class BadState(Exception):
    """The state folder holds something that the agent cannot work with."""


class StateFolder:
    """Owned by one agent at a time: the lock is held until the process ends, however it ends."""

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)
        os.makedirs(self._path, mode=0o700, exist_ok=True)
        self._lock = os.open(self._file(LOCK_FILE), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise AlreadyRunning(f"--state {self._path}: another agent is running on this folder") from error
        self._boot_id = clock.boot_id()

    @property
    def replica_root(self) -> str:
        return self._file(REPLICA_FOLDER)

    @property
    def lease_file(self) -> str:
        return self._file(LEASE_FILE)

    def next_boot(self) -> int:
        """Count this start of the agent. On the disk before the first sync, or two starts could share one."""
        stored = self._read(BOOT_FILE)
        boot = int(stored["boot"]) + 1 if stored else 1
        files.write_json(self._file(BOOT_FILE), {"boot": boot}, durable=True)
        return boot

    def node(self) -> NodeRecord | None:
        record: NodeRecord | None = self._read(NODE_FILE)
        return record

    def save_node(self, record: NodeRecord) -> None:
        """Readable by the agent's user only; replicas never get it in their environment."""
        files.write_json(self._file(NODE_FILE), record, durable=True, mode=0o600)

    def extend_lease(self, deadline_s: float) -> None:
        lease: records.Lease = {"deadline_s": deadline_s, "boot_id": self._boot_id}
        files.write_json(self.lease_file, lease)

    def close(self) -> None:
        """Lets another agent have the folder. Safe to repeat."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _read(self, name: str) -> Any:
        path = self._file(name)
        content = files.read_json(path)
        if content is None and os.path.exists(path):
            raise BadState(
                f"{path} is damaged; restore it, or retire the node and join it again with an empty --state"
            )
        return content

    def _file(self, name: str) -> str:
        return os.path.join(self._path, name)
