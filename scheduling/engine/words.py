"""Numbers in the words of people: what all sentences of the engine share."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from scheduling.engine.snapshot import UNITS_PER_GPU

Names = Mapping[str, str]  # what people call the teams, tiers, nodes and workloads with these ids
Data = Mapping[str, Any]


def named(names: Names, key: str | None, otherwise: str = "") -> str:
    """Its name; an id without one stands for itself, and none at all for `otherwise`."""
    return otherwise if key is None else names.get(key, key)


def count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def gpus(units: int) -> str:
    return number(units / UNITS_PER_GPU)


def gpu_count(units: int) -> str:
    return f"{gpus(units)} {'GPU' if units == UNITS_PER_GPU else 'GPUs'}"


def gpu_hours(gpu_s: float) -> str:
    """Minutes where hours would be nothing but a fraction."""
    if gpu_s < 3600:
        minutes = round(gpu_s / 60)
        return count(minutes, "GPU-minute")
    hours = round(gpu_s / 3600, 1)
    return f"{number(hours)} {'GPU-hour' if hours == 1 else 'GPU-hours'}"


def span(seconds: float) -> str:
    """How long ago or how long for, in the largest unit that says enough."""
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size:
            return count(int(seconds // size), unit)
    return count(int(seconds), "second")


def cores(cpu_m: int) -> str:
    return f"{number(cpu_m / 1000)} CPU cores"


def gib(memory_mib: int) -> str:
    return f"{number(memory_mib / 1024)} GiB memory"


def moment(time_us: int) -> str:
    return f"{datetime.fromtimestamp(time_us // 1_000_000, UTC):%Y-%m-%d %H:%M} UTC"


def listing(things: list[str]) -> str:
    """a, b and c."""
    return " and ".join(part for part in (", ".join(things[:-1]), things[-1] if things else "") if part)
