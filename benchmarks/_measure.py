"""What every benchmark here does alike: time a call, tell the memory, judge a figure by its target."""

import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Result = dict[str, Any]
T = TypeVar("T")


def timed(call: Callable[[], T]) -> tuple[T, float, float]:
    """(what it returned, seconds of the clock, seconds of this process's CPU)."""
    begin, cpu_begin = time.perf_counter(), time.process_time()
    made = call()
    return made, time.perf_counter() - begin, time.process_time() - cpu_begin


def peak_mib() -> int:
    """The most memory that this process has had resident so far."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(most / 1024 / (1024 if sys.platform == "darwin" else 1))


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def judged(result: Result, *, most: Mapping[str, float] = {}, least: Mapping[str, float] = {}) -> Result:
    """The result with its targets and whether it meets them: `ok`."""
    met = all(result[name] <= limit for name, limit in most.items()) and all(
        result[name] >= limit for name, limit in least.items()
    )
    return result | {"at_most": dict(most), "at_least": dict(least), "ok": met}
