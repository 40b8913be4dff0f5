"""One stream of one replica's output as a client follows it: by byte offsets."""

from __future__ import annotations

from dataclasses import dataclass

from gpuyard.core.models import User
from scheduling.models import LogChunk, Replica, Workload
from scheduling.selectors import LOG_CHUNKS, attempt_list
from scheduling.states import ReplicaState

MOST_BYTES = 1024 * 1024


@dataclass(frozen=True)
class StreamPiece:
    """`next_offset` asks for what follows. `is_ended`: the replica has exited, and nothing follows."""

    text: str
    next_offset: int
    is_ended: bool
    attempt: int | None


def stream_read(
    actor: User,
    workload: Workload,
    *,
    replica_index: int = 0,
    stream: str = "stdout",
    after: int = 0,
    attempt_number: int | None = None,
) -> StreamPiece:
    """About a mebibyte from byte `after` on, of the latest attempt unless one is named.

    Before the first attempt there is nothing, and it has not ended. Offsets count the bytes that the agent read:
    take them from an answer, for a text that is not UTF-8 has another length.
    """
    attempts = attempt_list(actor, workload)
    if attempt_number is not None:
        attempts = attempts.filter(number=attempt_number)
    attempt = attempts.last()
    replica = (
        next((one for one in attempt.replicas.all() if one.index == replica_index), None) if attempt else None
    )
    if attempt is None or replica is None:
        return StreamPiece("", after, False, attempt.number if attempt else None)
    return _piece(replica, stream, after, attempt.number)


def _piece(replica: Replica, stream: str, after: int, number: int) -> StreamPiece:
    rows = LogChunk.objects.filter(replica=replica, stream=stream, offset__gte=after).order_by("offset")
    texts: list[str] = []
    reached, has_more = after, False
    for row in rows[:LOG_CHUNKS].iterator(chunk_size=20):
        if reached - after > MOST_BYTES:
            has_more = True
            break
        texts.append(row.text)
        reached = row.offset + row.size
    has_more = has_more or len(texts) == LOG_CHUNKS
    return StreamPiece("".join(texts), reached, replica.state == ReplicaState.EXITED and not has_more, number)
