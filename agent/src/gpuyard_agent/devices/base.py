"""What every kind of device looks like to the rest of the agent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuyard_agent.protocol import Gpu


@dataclass(frozen=True)
class Use:
    """What the processes that hold a GPU used of this machine since the last sample; None is unknown."""

    cpu_s: float | None
    resident_mib: int | None


NO_USE = Use(cpu_s=0.0, resident_mib=0)


@dataclass(frozen=True)
class GpuSample:
    """One failing metric is None; it never takes the others with it."""

    gpu_uuid: str
    utilisation_pct: float | None
    memory_used_mib: int | None
    power_w: float | None = None
    temperature_c: float | None = None


class DeviceBackend(Protocol):
    @property
    def simulated(self) -> bool: ...

    def gpus(self) -> Sequence[Gpu]:
        """Every GPU of the node, by index; asked again at every sync, so that a change is seen."""

    def sample(self, *, duration_s: float, use_by_gpu: Mapping[str, Use]) -> Sequence[GpuSample]:
        """How each GPU was used over the last `duration_s`. A GPU without an entry is held by nobody."""

    def visible_devices(self, gpu_uuids: Sequence[str], gpu_indexes: Sequence[int]) -> str:
        """The value of CUDA_VISIBLE_DEVICES for a replica that holds these."""

    def close(self) -> None: ...
