"""The CPU and memory that the processes of each replica use, from one walk through /proc."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuyard_agent import proc
from gpuyard_agent.devices.base import Use


@dataclass(frozen=True)
class _Total:
    ticks: int
    resident_mib: int


class UsageMeter:
    """Remembers the last totals, so that each call tells what was used since the one before."""

    def __init__(self) -> None:
        self._last: dict[str, _Total] | None = None

    def measure(self, shims: Mapping[str, int | None]) -> dict[str, Use]:
        """`shims`: replica → pid of its shim, None when that is gone (then nothing is known)."""
        stats = proc.all_stats()
        totals = {replica_id: _total(pid, stats) for replica_id, pid in shims.items() if pid is not None}
        use = {replica_id: self._since_last(replica_id, totals.get(replica_id)) for replica_id in shims}
        self._last = {replica_id: total for replica_id, total in totals.items() if total is not None}
        return use

    def _since_last(self, replica_id: str, total: _Total | None) -> Use:
        if total is None or self._last is None:
            return Use(cpu_s=None, resident_mib=total.resident_mib if total else None)
        before = self._last.get(replica_id)
        ticks = total.ticks - (before.ticks if before else 0)
        return Use(cpu_s=max(0, ticks) / proc.TICKS_PER_S, resident_mib=total.resident_mib)


def _total(shim_pid: int, stats: Mapping[int, proc.ProcStat]) -> _Total | None:
    """What ended processes used is in their parent's waited ticks, at last in the shim's."""
    shim = stats.get(shim_pid)
    if shim is None:
        return None
    below = list(proc.descendants(shim_pid, dict(stats)))
    ticks = shim.waited_ticks + sum(stat.own_ticks + stat.waited_ticks for stat in below)
    resident_bytes = sum(stat.rss_pages for stat in below) * proc.PAGE_BYTES
    return _Total(ticks, resident_bytes // (1024 * 1024))
