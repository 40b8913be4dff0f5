"""Sends the output of the replicas: pieces with byte offsets, repeated unchanged until the server has them.

A piece that was sent once keeps its bounds, also over a restart of the agent, so that the server may recognise
it by (replica, stream, offset) alone.
"""

import itertools
import json
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuyard_agent import records
from gpuyard_agent.protocol import LogAck, LogChunk, Stream
from gpuyard_agent.replicas import ReplicaFolder
from gpuyard_agent.spool import segments

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 64 * 1024
CHUNKS_PER_STREAM: Final = 4  # in one sync
SYNC_BYTES: Final = 1024 * 1024  # of all chunks as JSON; the server refuses bodies of more than 2.5 MB
STREAMS: Final[tuple[Stream, ...]] = ("stdout", "stderr")


@dataclass
class _Tail:
    """How far one stream was sent. `pending`: the end of each piece that was sent and not acknowledged."""

    acked: int = 0
    pending: list[int] = field(default_factory=list)


class LogSender:
    def __init__(self) -> None:
        self._tails: dict[str, dict[Stream, _Tail]] = {}
        self._turn = 0

    def collect(self, replicas: Sequence[tuple[ReplicaFolder, bool]]) -> list[LogChunk]:
        """`replicas`: each with whether its output is complete. Begins with another one at every call, so that
        one replica that talks a lot cannot silence the rest."""
        chunks: list[LogChunk] = []
        room = SYNC_BYTES
        self._turn += 1
        first = self._turn % len(replicas) if replicas else 0
        for folder, is_complete in [*replicas[first:], *replicas[:first]]:
            for stream in STREAMS:
                for chunk in self._stream_chunks(folder, stream, is_complete):
                    size = len(json.dumps(chunk["data"], ensure_ascii=False).encode())
                    if size > room:
                        break
                    room -= size
                    chunks.append(chunk)
        return chunks

    def acknowledge(self, folders: Iterable[ReplicaFolder], acks: Iterable[LogAck]) -> None:
        by_id = {folder.order.replica_id: folder for folder in folders}
        for ack in acks:
            folder = by_id.get(ack.replica_id)
            if folder is not None:
                self._acknowledge(folder, ack)

    def is_finished(self, folder: ReplicaFolder) -> bool:
        """True when the server has every byte."""
        return all(self._end(folder, stream) <= self._tail(folder, stream).acked for stream in STREAMS)

    def forget(self, folder: ReplicaFolder) -> None:
        self._tails.pop(folder.path, None)

    # -- one stream --

    def _stream_chunks(self, folder: ReplicaFolder, stream: Stream, is_complete: bool) -> list[LogChunk]:
        tail = self._tail(folder, stream)
        self._cut(folder, stream, tail, is_complete)
        chunks: list[LogChunk] = []
        start = tail.acked
        for end in tail.pending:
            data = _read(folder.file(records.LOG_FOLDER), stream, start, end - start)
            if len(data) < end - start:
                break
            chunks.append(_chunk(folder, stream, start, data))
            start = end
        return chunks

    def _cut(self, folder: ReplicaFolder, stream: Stream, tail: _Tail, is_complete: bool) -> None:
        before = len(tail.pending)
        while len(tail.pending) < CHUNKS_PER_STREAM:
            start = tail.pending[-1] if tail.pending else tail.acked
            data = _read(folder.file(records.LOG_FOLDER), stream, start, CHUNK_BYTES)
            if not is_complete or len(data) == CHUNK_BYTES:
                data = without_broken_end(data)
            if not data:
                break
            tail.pending.append(start + len(data))
        if len(tail.pending) != before:
            self._save(folder)

    def _acknowledge(self, folder: ReplicaFolder, ack: LogAck) -> None:
        tail = self._tail(folder, ack.stream)
        sent = tail.pending[-1] if tail.pending else tail.acked
        if not tail.acked < ack.offset <= sent:
            return
        is_on_bound = ack.offset in tail.pending
        tail.pending = [end for end in tail.pending if end > ack.offset] if is_on_bound else []
        tail.acked = ack.offset
        self._save(folder)
        _drop_segments(folder.file(records.LOG_FOLDER), ack.stream, ack.offset)

    def _tail(self, folder: ReplicaFolder, stream: Stream) -> _Tail:
        tails = self._tails.get(folder.path)
        if tails is None:
            stored = folder.read(records.TAIL_FILE) or {}
            tails = {name: _Tail(*stored.get(name, ())) for name in STREAMS}
            self._tails[folder.path] = tails
        return tails[stream]

    def _save(self, folder: ReplicaFolder) -> None:
        tails = self._tails[folder.path]
        content = {stream: [tail.acked, tail.pending] for stream, tail in tails.items()}
        folder.write(records.TAIL_FILE, content)

    def _end(self, folder: ReplicaFolder, stream: Stream) -> int:
        found = segments(folder.file(records.LOG_FOLDER), stream)
        return found[-1][0] + os.path.getsize(found[-1][1]) if found else 0


def _chunk(folder: ReplicaFolder, stream: Stream, offset: int, data: bytes) -> LogChunk:
    return {
        "replica_id": folder.order.replica_id,
        "fencing_token": folder.order.fencing_token,
        "stream": stream,
        "offset": offset,
        "data": as_text(data),
        "bytes": len(data),
    }


def as_text(data: bytes) -> str:
    """PostgreSQL stores no NUL, and neither a page nor JSON wants one."""
    return data.decode("utf-8", errors="replace").replace("\0", "\ufffd")


def without_broken_end(data: bytes) -> bytes:
    """Leave a character whose last bytes are not there yet for the next piece."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0b1100_0000 == 0b1000_0000:
            continue  # inside a character: look further back for its first byte
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if length > back else data
    return data


def _read(folder: str, stream: Stream, offset: int, limit: int) -> bytes:
    """Up to `limit` bytes from `offset`, over the ends of segments."""
    data = b""
    for first, path in segments(folder, stream):
        position = offset + len(data) - first
        if position < 0:
            break
        with open(path, "rb") as segment:
            segment.seek(position)
            data += segment.read(limit - len(data))
        if len(data) >= limit:
            break
    return data


def _drop_segments(folder: str, stream: Stream, acked: int) -> None:
    """The last one stays: the shim may still be writing to it."""
    found = segments(folder, stream)
    for (_, path), (next_first, _) in itertools.pairwise(found):
        if next_first <= acked:
            os.unlink(path)
