"""What to do about the difference between what runs here and what the server wants. Pure.

Like a kubelet: only the latest wish counts, so a lost, repeated or late answer does no harm. Doing an action
twice is the same as doing it once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuyard_agent.protocol import ReplicaOrder, ReplicaState, SyncAnswer


@dataclass(frozen=True)
class Known:
    """A replica that has a folder here."""

    replica_id: str
    fencing_token: int
    state: ReplicaState
    clean: bool = False
    stop_grace_s: float | None = None  # of the stop already asked for


@dataclass(frozen=True)
class Start:
    order: ReplicaOrder


@dataclass(frozen=True)
class Restart:
    """The same replica under a newer token; nothing of the old one is left."""

    order: ReplicaOrder


@dataclass(frozen=True)
class Stop:
    replica_id: str
    grace_s: float


@dataclass(frozen=True)
class Bury:
    """To be stopped, but never seen here: the server must still hear that nothing of it runs."""

    order: ReplicaOrder


@dataclass(frozen=True)
class Forget:
    replica_id: str


@dataclass(frozen=True)
class Refuse:
    replica_id: str
    known_token: int
    asked_token: int


Action = Start | Restart | Stop | Bury | Forget | Refuse


def reconcile(known: Iterable[Known], answer: SyncAnswer) -> list[Action]:
    here = {replica.replica_id: replica for replica in known}
    wanted = {order.replica_id: order for order in answer.replicas}
    actions: list[Action] = []
    for replica_id in sorted(here.keys() - wanted.keys()):
        actions += _unwanted(here[replica_id], answer)
    for replica_id in sorted(wanted):
        actions += _wanted(here, wanted[replica_id])
    return actions


def _unwanted(replica: Known, answer: SyncAnswer) -> list[Action]:
    if replica.state != "exited":
        return _stop(replica, answer.grace_default_s)
    if replica.clean and replica.replica_id in answer.forget:
        return [Forget(replica.replica_id)]
    return []


def _wanted(here: Mapping[str, Known], order: ReplicaOrder) -> list[Action]:
    replica = here.get(order.replica_id)
    if replica is None:
        return [Start(order) if order.desired == "run" else Bury(order)]
    if order.fencing_token < replica.fencing_token:
        return [Refuse(order.replica_id, replica.fencing_token, order.fencing_token)]
    if order.fencing_token > replica.fencing_token:
        return _replace(replica, order)
    return _stop(replica, order.grace_s) if order.desired == "stop" else []


def _replace(replica: Known, order: ReplicaOrder) -> list[Action]:
    if replica.state != "exited":
        return _stop(replica, order.grace_s)
    if not replica.clean:
        return []
    return [Restart(order) if order.desired == "run" else Bury(order)]


def _stop(replica: Known, grace_s: float) -> list[Action]:
    """A second stop only where it is more urgent than the first."""
    if replica.state == "exited" and replica.clean:
        return []
    if replica.stop_grace_s is not None and replica.stop_grace_s <= grace_s:
        return []
    return [Stop(replica.replica_id, grace_s)]
