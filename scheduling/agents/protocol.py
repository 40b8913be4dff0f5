"""The messages of `/agent/v1/`, checked as they come in. The agent has its own copy of the shapes."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field, model_validator

from gpuyard.fleet.reports import AgentMessage, Inventory, Seconds, Storable, TelemetryBucket

Counter = Annotated[int, Field(ge=0, le=2**62)]
MAX_REPLICAS = 4096
MAX_BUCKETS = 100_000
MAX_CHUNKS = 10_000


class JoinRequest(AgentMessage):
    join_token: Annotated[str, Field(min_length=1, max_length=200)]
    name: Annotated[Storable, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    inventory: Inventory


class ReplicaReport(AgentMessage):
    """How a replica is. Durations are monotonic; `clean`: no process of it is left, its GPUs are free."""

    replica_id: UUID
    fencing_token: Counter
    state: Literal["starting", "running", "stopping", "exited"]
    exit_code: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    # A word of `outcomes.ExitReason`; from a newer agent perhaps one that is not known yet.
    exit_reason: Annotated[Storable, Field(max_length=40)] | None = None
    signal: Annotated[int, Field(ge=1, le=128)] | None = None
    running_ago_s: Seconds | None = None
    ended_ago_s: Seconds | None = None
    clean: bool = False
    healthy: bool | None = None
    message: Storable = ""
    checkpoint_ago_s: Seconds | None = None  # an agent before this field knows of no checkpoints


class LogChunk(AgentMessage):
    """Output from byte `offset` on; `bytes` is its size before decoding."""

    replica_id: UUID
    fencing_token: Counter
    stream: Literal["stdout", "stderr"]
    offset: Counter
    data: Storable
    bytes: Annotated[int, Field(ge=0, le=2**31 - 1)]

    @model_validator(mode="after")
    def _no_more_than_said(self) -> LogChunk:
        # No decoding makes more characters than there were bytes: the limit of a log counts bytes.
        if len(self.data) > self.bytes:
            raise ValueError("data must not have more characters than bytes")
        return self


class SyncRequest(AgentMessage):
    boot: Counter
    boot_id: Annotated[Storable, Field(max_length=64)] = ""
    seq: Counter
    agent_version: Annotated[Storable, Field(max_length=40)] = ""
    inventory: Inventory | None = None
    telemetry: Annotated[tuple[TelemetryBucket, ...], Field(max_length=MAX_BUCKETS)] = ()
    replicas: Annotated[tuple[ReplicaReport, ...], Field(max_length=MAX_REPLICAS)] = ()
    logs: Annotated[tuple[LogChunk, ...], Field(max_length=MAX_CHUNKS)] = ()
