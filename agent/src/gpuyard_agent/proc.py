"""What /proc says about processes, and signals that cannot hit the wrong one."""

import os
import signal
from collections.abc import Iterable, Iterator
from typing import NamedTuple

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcStat(NamedTuple):
    pid: int
    state: str
    parent: int
    session: int
    own_ticks: int
    waited_ticks: int  # of its children that ended and were waited for
    threads: int
    started_ticks: int
    rss_pages: int

    @property
    def is_gone(self) -> bool:
        """A zombie; but not one whose first thread ended while others run on, which looks like a zombie."""
        return self.state in "ZX" and self.threads <= 1


def read_stat(pid: int) -> ProcStat | None:
    """None when the process is gone. A zombie is returned, with state Z."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat_file:
            return _parse_stat(pid, stat_file.read())
    except (FileNotFoundError, ProcessLookupError):
        return None


def _parse_stat(pid: int, content: bytes) -> ProcStat:
    # the second field is the program's name in brackets and may itself hold spaces and brackets
    fields = content[content.rindex(b")") + 2 :].split()
    return ProcStat(
        pid=pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        session=int(fields[3]),
        own_ticks=int(fields[11]) + int(fields[12]),
        waited_ticks=int(fields[13]) + int(fields[14]),
        threads=int(fields[17]),
        started_ticks=int(fields[19]),
        rss_pages=int(fields[21]),
    )


def all_stats() -> dict[int, ProcStat]:
    found: dict[int, ProcStat] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = read_stat(int(name))
            if stat is not None:
                found[stat.pid] = stat
    return found


def descendants(root: int, stats: dict[int, ProcStat]) -> Iterator[ProcStat]:
    """Every process below `root`, without `root` itself."""
    children: dict[int, list[ProcStat]] = {}
    for stat in stats.values():
        children.setdefault(stat.parent, []).append(stat)
    waiting = list(children.get(root, ()))
    while waiting:
        stat = waiting.pop()
        yield stat
        waiting.extend(children.get(stat.pid, ()))


def is_alive(pid: int, started_ticks: int) -> bool:
    """True for the very process seen before; a zombie, or a stranger with the same pid, is not it."""
    stat = read_stat(pid)
    return stat is not None and stat.started_ticks == started_ticks and not stat.is_gone


def send_signal(pid: int, started_ticks: int, number: signal.Signals) -> bool:
    """Signal exactly this process: the descriptor pins the pid while its start time is compared."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        stat = read_stat(pid)
        if stat is None or stat.started_ticks != started_ticks:
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(descriptor)


def signal_all(stats: Iterable[ProcStat], number: signal.Signals) -> None:
    for stat in stats:
        if not stat.is_gone:
            send_signal(stat.pid, stat.started_ticks, number)


def with_environment(entry: str, stats: dict[int, ProcStat]) -> list[ProcStat]:
    """The live processes that were started with this NAME=value in their environment."""
    wanted = entry.encode()
    found = []
    for stat in stats.values():
        try:
            with open(f"/proc/{stat.pid}/environ", "rb") as environ_file:
                entries = environ_file.read().split(b"\0")
        except OSError:
            continue  # gone meanwhile, or another user's
        if wanted in entries:
            found.append(stat)
    return found
