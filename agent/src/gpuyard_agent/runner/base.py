"""What the agent's loop needs from whatever runs replicas."""

from dataclasses import dataclass
from typing import Protocol

from gpuyard_agent.protocol import ReplicaState
from gpuyard_agent.replicas import ReplicaFolder


@dataclass(frozen=True)
class Observation:
    """One replica as it is now. Times are on the agent's clock (see clock.py)."""

    state: ReplicaState
    exit_code: int | None = None
    exit_reason: str | None = None
    signal: int | None = None
    started_s: float | None = None
    ended_s: float | None = None
    clean: bool = False
    message: str = ""
    owner_pid: int | None = None  # the process above all of the replica's processes, while it lives


class Runner(Protocol):
    def start(self, folder: ReplicaFolder) -> None:
        """Start what the folder describes. Safe to repeat: a replica is started at most once."""

    def stop(self, folder: ReplicaFolder, grace_s: float) -> None:
        """Ask politely, and end it by force after the grace. Returns at once; safe to repeat."""

    def has_remains(self, replica_id: str) -> bool:
        """True when something of a replica runs although it has no folder: the state folder was lost."""

    def observe(self, folder: ReplicaFolder) -> Observation:
        """How it is now; also finishes what an interrupted start or a killed shim left half-done."""
