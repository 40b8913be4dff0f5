"""What an agent says about its node: the inventory, and the telemetry of its GPUs. Checked as it comes in.

An agent may be newer than the server, so unknown fields are ignored; a known field of the wrong shape is refused.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


def storable(text: str) -> str:
    """The text without what PostgreSQL cannot store."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}")


Storable = Annotated[str, AfterValidator(storable)]
Amount = Annotated[int, Field(ge=0, le=2**31 - 1)]
Seconds = Annotated[float, Field(ge=0, le=10 * 365 * 86400, allow_inf_nan=False)]
Measure = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(lambda value: min(value, 100.0))]


class AgentMessage(BaseModel):
    model_config = ConfigDict(frozen=True)


class GpuReport(AgentMessage):
    uuid: Annotated[Storable, Field(min_length=1, max_length=80)]
    index: Annotated[int, Field(ge=0, le=4095)]
    model: Annotated[Storable, Field(max_length=120)]
    memory_mib: Annotated[int, Field(ge=1, le=2**31 - 1)]
    architecture: Annotated[Storable, Field(max_length=40)] = ""
    tier_hint: Annotated[Storable, Field(max_length=64)] = ""
    island: Annotated[int, Field(ge=0, le=4095)] = 0
    card_uuid: Annotated[Storable, Field(min_length=1, max_length=80)]
    is_instance: Literal[0, 1] = 0
    compute_slices: Annotated[int, Field(ge=1, le=100)] = 7
    card_slices: Annotated[int, Field(ge=1, le=100)] = 7

    @model_validator(mode="after")
    def _slices_fit(self) -> GpuReport:
        if self.compute_slices > self.card_slices:
            raise ValueError("compute_slices must not exceed card_slices")
        return self


class Inventory(AgentMessage):
    hostname: Annotated[Storable, Field(max_length=255)] = ""
    advertise_address: Annotated[Storable, Field(min_length=1, max_length=255)]
    port_range: tuple[Annotated[int, Field(ge=1, le=65535)], Annotated[int, Field(ge=1, le=65535)]]
    cpu_m: Amount
    memory_mib: Annotated[int, Field(ge=0, le=2**62)]
    simulated: bool = False
    gpus: Annotated[tuple[GpuReport, ...], Field(max_length=1024)]

    @model_validator(mode="after")
    def _ports_in_order(self) -> Inventory:
        if self.port_range[0] > self.port_range[1]:
            raise ValueError("port_range must be [lowest, highest]")
        return self


class TelemetryBucket(AgentMessage):
    """What one GPU did in the `duration_s` seconds that ended `ended_ago_s` ago. None: not known."""

    gpu_uuid: Annotated[Storable, Field(max_length=80)]
    ended_ago_s: Seconds
    duration_s: Seconds
    utilisation_pct: Percent | None = None
    memory_used_mib: Amount | None = None
    power_w: Measure | None = None
    temperature_c: Annotated[float, Field(ge=-300, le=1000, allow_inf_nan=False)] | None = None
