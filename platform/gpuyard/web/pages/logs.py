"""The output of one replica as lines."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpuyard.core.models import User
from gpuyard.web.workload_contexts import LogLine, LogView
from scheduling.models import LogChunk, Workload
from scheduling.selectors import LogPage, log_read
from scheduling.states import WORKLOAD_ENDED

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
MOST_TEXT_PAGES = 200


def tail(actor: User, workload: Workload, *, most: int, rank: str = "") -> LogView:
    """The last lines; an empty view where nothing was written yet."""
    found = log_read(actor, workload, tail=True, replica_index=_rank(rank))
    lines = lines_of(found.chunks)[-most:]
    return LogView(
        lines=lines,
        follows=workload.state not in WORKLOAD_ENDED,
        shown=len(lines),
        total_bytes=_written(found),
        rank=_rank(rank),
    )


def text_of(actor: User, workload: Workload, *, rank: str = "") -> str:
    """All of it, stdout and stderr in the order in which they came."""
    parts: list[str] = []
    cursor = ""
    for _turn in range(MOST_TEXT_PAGES):
        found = log_read(actor, workload, after=cursor, replica_index=_rank(rank))
        parts.extend(chunk.text for chunk in found.chunks)
        cursor = found.cursor
        if not found.has_more:
            break
    return "".join(parts)


def lines_of(chunks: Iterable[LogChunk]) -> list[LogLine]:
    """A line may lie in two pieces of its stream; a progress bar's last state stands for it."""
    lines: list[LogLine] = []
    open_ends: dict[str, str] = {}
    for chunk in chunks:
        *whole, open_ends[chunk.stream] = (open_ends.get(chunk.stream, "") + chunk.text).split("\n")
        lines.extend(
            _line(chunk.stream, f"{chunk.offset}-{number}", text) for number, text in enumerate(whole)
        )
    lines.extend(_line(stream, "end", text) for stream, text in open_ends.items() if text)
    return lines


def _line(stream: str, place: str, text: str) -> LogLine:
    shown = ESCAPES.sub("", text.rstrip("\r").rpartition("\r")[2])
    return LogLine(key=f"{stream}-{place}", stream=stream, text=shown[:2000])


def _written(found: LogPage) -> int:
    return found.replica.stdout_bytes + found.replica.stderr_bytes if found.replica else 0


def _rank(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0
