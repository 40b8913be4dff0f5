"""GPUs that are not there: `--simulate 8xh100-80g` or `4xl4-24g,2xt4-16g` or `8xa100-40g:island=4`.

Their utilisation follows real processes: a GPU is as busy as the CPU of the replica that holds it, where one
busy core is 100 % (one process drives all of its GPUs, as in a data-parallel step). So a program that works,
sleeps or hangs looks on the pages as it would on real GPUs.
"""

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuyard_agent.devices.base import NO_USE, GpuSample, Use
from gpuyard_agent.protocol import Gpu

MAX_GPUS = 1024
ISLAND_SIZES = (1, 2, 4, 8)
_PART = re.compile(r"(?P<count>\d{1,4})x(?P<model>[a-z0-9.-]+)(?::island=(?P<island>\d{1,2}))?")
_UUID_NAMESPACE = uuid.UUID("6f1c9a52-7f0e-4a53-9d2f-3f6f0c7f1b0d")


@dataclass(frozen=True)
class Model:
    product_name: str
    memory_mib: int
    architecture: str
    island_size: int  # GPUs joined by NVLink on the usual board; 1 for PCIe cards


MODELS: Mapping[str, Model] = {
    "h100-80g": Model("NVIDIA H100 80GB HBM3", 81559, "hopper", 8),
    "a100-80g": Model("NVIDIA A100-SXM4-80GB", 81920, "ampere", 8),
    "a100-40g": Model("NVIDIA A100-SXM4-40GB", 40960, "ampere", 8),
    "l40s-48g": Model("NVIDIA L40S", 46068, "ada", 1),
    "l4-24g": Model("NVIDIA L4", 23034, "ada", 1),
    "t4-16g": Model("Tesla T4", 15360, "turing", 1),
}


class BadSimulation(ValueError):
    """The text after --simulate does not say which GPUs."""


class SimulatedBackend:
    simulated = True

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = gpus

    def gpus(self) -> Sequence[Gpu]:
        return self._gpus

    def sample(self, *, duration_s: float, use_by_gpu: Mapping[str, Use]) -> Sequence[GpuSample]:
        return [_sample(gpu, use_by_gpu.get(gpu["uuid"], NO_USE), duration_s) for gpu in self._gpus]

    def visible_devices(self, gpu_uuids: Sequence[str], gpu_indexes: Sequence[int]) -> str:
        return ",".join(str(index) for index in gpu_indexes)

    def close(self) -> None:
        pass


def _sample(gpu: Gpu, use: Use, duration_s: float) -> GpuSample:
    utilisation_pct = None
    if use.cpu_s is not None and duration_s > 0:
        utilisation_pct = round(min(100.0, 100.0 * max(0.0, use.cpu_s) / duration_s), 1)
    memory_used_mib = None if use.resident_mib is None else min(use.resident_mib, gpu["memory_mib"])
    return GpuSample(gpu["uuid"], utilisation_pct, memory_used_mib)


def parse_simulation(text: str, node_name: str) -> SimulatedBackend:
    """The same name always gets the same GPU uuids, as the same machine would."""
    gpus: list[Gpu] = []
    first_island = 0
    for part in text.split(","):
        model_name, count, island_size = _parse_part(part.strip())
        for position in range(count):
            island = first_island + position // island_size
            gpus.append(_gpu(node_name, len(gpus), model_name, island))
        first_island = gpus[-1]["island"] + 1
    if len(gpus) > MAX_GPUS:
        raise BadSimulation(f"--simulate: {len(gpus)} GPUs are more than a node may have ({MAX_GPUS})")
    return SimulatedBackend(gpus)


def _parse_part(part: str) -> tuple[str, int, int]:
    match = _PART.fullmatch(part)
    if match is None or int(match["count"]) == 0:
        raise BadSimulation(f"--simulate: {part!r} is not like 8xh100-80g or 8xh100-80g:island=4")
    model = MODELS.get(match["model"])
    if model is None:
        raise BadSimulation(f"--simulate: unknown model {match['model']!r}; use one of {', '.join(MODELS)}")
    island_size = int(match["island"] or model.island_size)
    if island_size not in ISLAND_SIZES:
        raise BadSimulation(f"--simulate: an island has 1, 2, 4 or 8 GPUs, not {island_size}")
    return match["model"], int(match["count"]), island_size


def _gpu(node_name: str, index: int, model_name: str, island: int) -> Gpu:
    model = MODELS[model_name]
    gpu_uuid = f"GPU-{uuid.uuid5(_UUID_NAMESPACE, f'{node_name}/{index}/{model_name}')}"
    return {
        "uuid": gpu_uuid,
        "index": index,
        "model": model.product_name,
        "memory_mib": model.memory_mib,
        "architecture": model.architecture,
        "tier_hint": model_name,
        "island": island,
        "card_uuid": gpu_uuid,
        "is_instance": 0,
        "compute_slices": 7,
        "card_slices": 7,
    }
