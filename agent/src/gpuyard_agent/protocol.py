"""The messages between agent and server, and the checks on what comes in.

Outgoing messages are TypedDicts; an answer is read into frozen dataclasses, whole or not at all: one field of
the wrong type makes the answer malformed, and a malformed answer changes nothing.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar, cast

from gpuyard_agent.records import OnDisconnect

Desired = Literal["run", "stop"]
Stream = Literal["stdout", "stderr"]
ReplicaState = Literal["starting", "running", "stopping", "exited"]
T = TypeVar("T")


class MalformedAnswer(ValueError):
    """The server's answer is not what the protocol says."""


# -- agent → server --


class Gpu(TypedDict):
    uuid: str
    index: int
    model: str
    memory_mib: int
    architecture: str
    tier_hint: str
    island: int
    card_uuid: str
    is_instance: int
    compute_slices: int
    card_slices: int


class Inventory(TypedDict):
    hostname: str
    advertise_address: str
    port_range: list[int]
    cpu_m: int
    memory_mib: int
    simulated: bool
    gpus: list[Gpu]


class TelemetryBucket(TypedDict):
    gpu_uuid: str
    ended_ago_s: float
    duration_s: float
    utilisation_pct: float | None
    memory_used_mib: int | None
    power_w: float | None
    temperature_c: float | None


class ReplicaReport(TypedDict):
    replica_id: str
    fencing_token: int
    state: ReplicaState
    exit_code: int | None
    exit_reason: str | None
    signal: int | None
    running_ago_s: float | None
    ended_ago_s: float | None
    clean: bool
    healthy: bool | None
    message: str
    checkpoint_ago_s: float | None


class LogChunk(TypedDict):
    replica_id: str
    fencing_token: int
    stream: Stream
    offset: int
    data: str
    bytes: int


class SyncRequest(TypedDict):
    boot: int
    boot_id: str
    seq: int
    agent_version: str
    inventory: Inventory | None
    telemetry: list[TelemetryBucket]
    replicas: list[ReplicaReport]
    logs: list[LogChunk]


class JoinRequest(TypedDict):
    join_token: str
    name: str
    inventory: Inventory


# -- server → agent --


@dataclass(frozen=True)
class Port:
    name: str
    port: int
    health_path: str | None


@dataclass(frozen=True)
class Peer:
    rank: int
    address: str
    port: int


@dataclass(frozen=True)
class ReplicaOrder:
    replica_id: str
    fencing_token: int
    desired: Desired
    grace_s: float
    on_disconnect: OnDisconnect
    command: tuple[str, ...]
    env: dict[str, str]
    working_dir: str | None
    checkpoint_dir: str | None
    gpu_uuids: tuple[str, ...]
    gpu_indexes: tuple[int, ...]
    cpu_m: int
    memory_mib: int
    time_limit_s: float | None
    rank: int
    world_size: int
    workload_id: str
    attempt: int
    team: str
    ports: tuple[Port, ...]
    peers: tuple[Peer, ...]


@dataclass(frozen=True)
class LogAck:
    replica_id: str
    stream: Stream
    offset: int


@dataclass(frozen=True)
class SyncAnswer:
    boot: int
    seq: int
    generation: int
    lease_s: float
    sync_s: float
    grace_default_s: float
    replicas: tuple[ReplicaOrder, ...]
    log_acks: tuple[LogAck, ...]
    forget: tuple[str, ...]


@dataclass(frozen=True)
class JoinAnswer:
    node_id: str
    node_secret: str
    sync_s: float
    lease_s: float


def read_join_answer(body: object) -> JoinAnswer:
    fields = _Fields(body, "join")
    return JoinAnswer(
        node_id=fields.text("node_id"),
        node_secret=fields.text("node_secret"),
        sync_s=fields.number("sync_s"),
        lease_s=fields.number("lease_s"),
    )


def read_sync_answer(body: object) -> SyncAnswer:
    fields = _Fields(body, "sync")
    return SyncAnswer(
        boot=fields.integer("boot"),
        seq=fields.integer("seq"),
        generation=fields.integer("generation"),
        lease_s=fields.number("lease_s"),
        sync_s=fields.number("sync_s"),
        grace_default_s=fields.number("grace_default_s"),
        replicas=fields.items("replicas", read_order),
        log_acks=fields.items("log_acks", _read_ack),
        forget=fields.items("forget", _read_id),
    )


def read_order(body: object) -> ReplicaOrder:
    fields = _Fields(body, "replica")
    time_limit_s = fields.optional("time_limit_s")
    return ReplicaOrder(
        replica_id=_read_id(fields.get("replica_id")),
        fencing_token=fields.integer("fencing_token"),
        desired=cast(Desired, fields.one_of("desired", ("run", "stop"))),
        grace_s=fields.number("grace_s"),
        on_disconnect=cast(OnDisconnect, fields.one_of("on_disconnect", ("keep", "stop"))),
        command=_read_command(fields),
        env=_read_env(fields.get("env")),
        working_dir=fields.optional_text("working_dir"),
        checkpoint_dir=fields.optional_text("checkpoint_dir"),
        gpu_uuids=fields.items("gpu_uuids", _read_text),
        gpu_indexes=fields.items("gpu_indexes", _read_integer),
        cpu_m=fields.integer("cpu_m"),
        memory_mib=fields.integer("memory_mib"),
        time_limit_s=None if time_limit_s is None else fields.number("time_limit_s"),
        rank=fields.integer("rank"),
        world_size=fields.integer("world_size"),
        workload_id=fields.text("workload_id"),
        attempt=fields.integer("attempt"),
        team=fields.text("team"),
        ports=fields.items("ports", _read_port),
        peers=fields.items("peers", _read_peer),
    )


class _Fields:
    """Typed access to one JSON object; every complaint names the field."""

    def __init__(self, body: object, what: str) -> None:
        if not isinstance(body, dict):
            raise MalformedAnswer(f"{what}: an object was expected, not {type(body).__name__}")
        self._body: dict[str, Any] = body
        self._what = what

    def get(self, name: str) -> object:
        if name not in self._body:
            raise MalformedAnswer(f"{self._what}.{name} is missing")
        return self._body[name]

    def optional(self, name: str) -> object:
        return self._body.get(name)

    def text(self, name: str) -> str:
        return _typed(self.get(name), str, f"{self._what}.{name}")

    def optional_text(self, name: str) -> str | None:
        return None if self.optional(name) is None else self.text(name)

    def integer(self, name: str) -> int:
        return _typed(self.get(name), int, f"{self._what}.{name}")

    def number(self, name: str) -> float:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise MalformedAnswer(f"{self._what}.{name} must be a number, 0 or more")
        return float(value)

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        value = self.text(name)
        if value not in allowed:
            raise MalformedAnswer(f"{self._what}.{name} must be one of {', '.join(allowed)}")
        return value

    def items(self, name: str, read: Callable[[object], T]) -> tuple[T, ...]:
        return tuple(read(item) for item in _typed(self.get(name), list, f"{self._what}.{name}"))


def _typed(value: object, kind: type[T], where: str) -> T:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise MalformedAnswer(f"{where} must be of type {kind.__name__}")
    return value


def _read_text(value: object) -> str:
    return _typed(value, str, "item")


def _read_integer(value: object) -> int:
    return _typed(value, int, "item")


def _read_id(value: object) -> str:
    """Replica ids name folders, so nothing but a plain UUID may pass."""
    text = _typed(value, str, "replica_id")
    try:
        canonical = str(uuid.UUID(text))
    except ValueError:
        canonical = ""
    if canonical != text:
        raise MalformedAnswer("replica_id must be a UUID in its usual form")
    return text


def _read_command(fields: _Fields) -> tuple[str, ...]:
    command = fields.items("command", _read_text)
    if not command and fields.get("desired") == "run":
        raise MalformedAnswer("replica.command is empty")
    return command


def _read_env(value: object) -> dict[str, str]:
    env = _typed(value, dict, "replica.env")
    if not all(isinstance(name, str) and isinstance(entry, str) for name, entry in env.items()):
        raise MalformedAnswer("replica.env must map text to text")
    return env


def _read_port(value: object) -> Port:
    fields = _Fields(value, "port")
    return Port(fields.text("name"), fields.integer("port"), fields.optional_text("health_path"))


def _read_peer(value: object) -> Peer:
    fields = _Fields(value, "peer")
    return Peer(fields.integer("rank"), fields.text("address"), fields.integer("port"))


def _read_ack(value: object) -> LogAck:
    fields = _Fields(value, "log_ack")
    stream = cast(Stream, fields.one_of("stream", ("stdout", "stderr")))
    return LogAck(_read_id(fields.get("replica_id")), stream, fields.integer("offset"))
