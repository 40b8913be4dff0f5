"""What is asked of the machines: the `request` of a spec. Its numbers are for each replica."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from gpuyard.core.money import SLOTS_PER_GPU
from scheduling.spec_types import (
    MOST_INT,
    MOST_SECONDS,
    Architecture,
    Capability,
    Document,
    Level,
    Moment,
    NodeLabel,
    NodeName,
    NoRepeats,
    TierName,
    Tuple,
    WorkloadId,
    at_most,
)
from scheduling.spec_words import contradictions_raise

MOST_GPUS = 1024
MOST_REPLICAS = 1024
MOST_MEMBERS = 2000

Labels = Annotated[tuple[NodeLabel, ...], Tuple, NoRepeats, at_most(32, 0)]


class Capabilities(Document):
    """What a tier must have, instead of its name: at least this memory and generation, and all these labels."""

    memory_mib: int | None = Field(default=None, ge=1, le=MOST_INT)
    architecture: Architecture | None = None
    labels: Annotated[tuple[Capability, ...], Tuple, NoRepeats, at_most(16, 0)] = ()

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.memory_mib is None and self.architecture is None and not self.labels:
            raise PydanticCustomError("capabilities_empty", "No capability is named.")
        return self


class Topology(Document):
    """How close together the replicas stand: `required` in one domain of that level, or else it waits.

    `preferred` is insisted on for `wait_s` and then given up level by level. Levels: `island`, `node`, and those
    of the fabric, such as `rack`.
    """

    required: Level | None = None
    preferred: Level | None = None
    wait_s: int = Field(default=0, ge=0, le=MOST_SECONDS)

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        if self.required is None and self.preferred is None:
            raise PydanticCustomError("topology_empty", "No level is named.")
        if self.wait_s and self.preferred is None:
            raise PydanticCustomError("wait_without_preferred", "wait_s is for a preferred level.")
        return self


class Array(Document):
    """The same `count` times over, each a workload of its own; at most `parallel` of them at once."""

    count: int = Field(ge=1, le=MOST_MEMBERS)
    parallel: int | None = Field(default=None, ge=1, le=MOST_MEMBERS)


class Request(Document):
    """A gang of `replicas_min` to `replicas_max` replicas; GPUs, CPU and memory are for each of them.

    A replica has whole GPUs, or a part of one: `share` in thousandths, `gpu_memory_mib`, or the larger of both.
    """

    replicas_min: int = Field(default=1, ge=1, le=MOST_REPLICAS)
    replicas_max: int = Field(default=1, ge=1, le=MOST_REPLICAS)
    gpus_per_replica: int = Field(default=1, ge=1, le=MOST_GPUS)
    share: int | None = Field(default=None, ge=1, le=SLOTS_PER_GPU - 1)
    gpu_memory_mib: int | None = Field(default=None, ge=1, le=MOST_INT)
    # in order of preference; instead of capabilities
    tiers: Annotated[tuple[TierName, ...], Tuple, NoRepeats, at_most(16, 0)] = ()
    capabilities: Capabilities | None = None
    tier_choice: Literal["value", "order"] = "value"
    cpu_m: int = Field(default=1000, ge=1, le=MOST_INT)
    memory_mib: int = Field(default=1024, ge=1, le=MOST_INT)
    mix_tiers: bool = False
    elastic: bool = False
    node_labels: Labels = ()
    not_labels: Labels = ()
    not_nodes: Annotated[tuple[NodeName, ...], Tuple, NoRepeats, at_most(64, 0)] = ()
    topology: Topology | None = None
    spread_level: Level | None = None
    not_before: Moment | None = None
    depends_on: Annotated[tuple[WorkloadId, ...], Tuple, NoRepeats, at_most(64, 0)] = ()
    array: Array | None = None
    min_run_s: int = Field(default=0, ge=0, le=MOST_SECONDS)
    restart_cost_s: int = Field(default=0, ge=0, le=MOST_SECONDS)

    @model_validator(mode="before")
    @classmethod
    def _fixed_unless_said(cls, data: Any) -> Any:
        """Without `replicas_max` a gang has exactly `replicas_min`; without a part of a GPU it has whole ones."""
        if not isinstance(data, dict):
            return data
        if "replicas_min" in data and "replicas_max" not in data:
            data = {**data, "replicas_max": data["replicas_min"]}
        return data

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        contradictions_raise(code for code, is_so in self._contradictions().items() if is_so)
        return self

    def _contradictions(self) -> dict[str, bool]:
        """By the codes of `spec_words`."""
        given = self.model_fields_set
        return {
            "gpus_missing": not self.is_part and "gpus_per_replica" not in given,
            "share_of_many": self.is_part and self.gpus_per_replica > 1,
            "tiers_missing": not self.tiers and self.capabilities is None,
            "tiers_twice": bool(self.tiers) and self.capabilities is not None,
            "replicas_order": self.replicas_max < self.replicas_min,
            "elastic_fixed": self.elastic and self.replicas_max == self.replicas_min,
            "label_contradicted": bool(set(self.node_labels) & set(self.not_labels)),
            "spread_island": self.spread_level == "island",
        }

    @property
    def is_part(self) -> bool:
        """Whether a replica has a part of one GPU."""
        return self.share is not None or self.gpu_memory_mib is not None

    def slots_on(self, tier_memory_mib: int) -> int:
        """Of each GPU of a tier with that memory, in thousandths; above 1000 it never fits there."""
        if not self.is_part:
            return SLOTS_PER_GPU
        by_memory = -(-(self.gpu_memory_mib or 0) * SLOTS_PER_GPU // tier_memory_mib)
        return max(self.share or 0, by_memory)
