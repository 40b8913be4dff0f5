"""A replica's output on its way to the server: segments named by the offset of their first byte.

The shim appends; the agent sends from the front and deletes segments that the server has. When the server
is away for so long that the spool is full, new output is dropped and a line says how much, so offsets
never have a gap.
"""

import os
from typing import Final

STREAMS: Final = ("stdout", "stderr")
SEGMENT_BYTES: Final = 4 * 1024 * 1024


def segments(folder: str, stream: str) -> list[tuple[int, str]]:
    """(first offset, path) of each segment, oldest first."""
    prefix = f"{stream}."
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(
        (int(name[len(prefix) :]), os.path.join(folder, name)) for name in names if name.startswith(prefix)
    )


class SpoolWriter:
    """Used by one process only: the shim that owns the replica."""

    def __init__(self, folder: str, stream: str, limit_bytes: int) -> None:
        self._folder = folder
        self._stream = stream
        self._limit_bytes = limit_bytes
        self._segment_bytes = max(1, min(SEGMENT_BYTES, limit_bytes // 2))
        self._offset = 0
        self._dropped = 0
        self._descriptor = -1
        self._room_in_segment = 0

    def write(self, data: bytes) -> None:
        if self._dropped:
            self._note_drop()
        while data and not self._dropped:
            if self._room_in_segment == 0 and not self._open_next():
                break
            data = data[self._write_some(data) :]
        self._dropped += len(data)

    def close(self) -> None:
        if self._dropped:
            self._note_drop(force=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _note_drop(self, *, force: bool = False) -> None:
        """Once there is room again (or at the end), say in the log itself what is missing from it."""
        if not force and self._room_in_segment == 0 and not self._open_next():
            return
        note = f"\n[gpuyard: {self._dropped} bytes of output were dropped, the log was full]\n".encode()
        self._dropped = 0
        if self._descriptor >= 0:
            self._write_some(note, whole=True)

    def _write_some(self, data: bytes, *, whole: bool = False) -> int:
        piece = data if whole else data[: self._room_in_segment]
        try:
            written = os.write(self._descriptor, piece)
        except OSError:  # a full disk loses output, not the replica
            self._dropped += len(data)
            return len(data)
        self._offset += written
        self._room_in_segment = max(0, self._room_in_segment - written)
        return written

    def _open_next(self) -> bool:
        existing = segments(self._folder, self._stream)
        held = self._offset - existing[0][0] if existing else 0
        if held + self._segment_bytes > self._limit_bytes:
            return False
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        path = os.path.join(self._folder, f"{self._stream}.{self._offset}")
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError:
            return False
        self._room_in_segment = self._segment_bytes
        return True
