"""Appends replicas' output. What is known already is acknowledged again; after a gap the agent hears where to go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from scheduling.agents.protocol import LogChunk as SentChunk
from scheduling.models import LogChunk, Replica

# Of one stream of one replica: a program that talks for ever must not fill the database.
MOST_BYTES = 256 * 1024 * 1024
_CUT_NOTICE = "\n[GPU Yard keeps no more of this output]\n"
_COUNTERS = {"stdout": "stdout_bytes", "stderr": "stderr_bytes"}


def logs_append(replicas: Mapping[UUID, Replica], chunks: Sequence[SentChunk]) -> list[dict[str, Any]]:
    """Stores what continues each stream; returns the acknowledgements: how far the server has each of them.

    A chunk of an unknown replica or under an old token is ignored. The caller holds the node's row locked.
    """
    new: list[LogChunk] = []
    acks: dict[tuple[UUID, str], int] = {}
    grown: dict[UUID, Replica] = {}
    for chunk in chunks:
        replica = replicas.get(chunk.replica_id)
        if replica is None or replica.fencing_token != chunk.fencing_token:
            continue
        counter = _COUNTERS[chunk.stream]
        stored = getattr(replica, counter)
        if chunk.offset == stored and chunk.bytes > 0:
            if stored < MOST_BYTES:
                new.append(_row(replica, chunk, is_last=stored + chunk.bytes >= MOST_BYTES))
            stored += chunk.bytes  # also of what is not kept, or its agent would send it again
            setattr(replica, counter, stored)
            grown[replica.pk] = replica
        acks[replica.pk, chunk.stream] = stored
    if new:
        LogChunk.objects.bulk_create(new)
    if grown:
        Replica.objects.bulk_update(grown.values(), list(_COUNTERS.values()))
    return [
        {"replica_id": str(replica_id), "stream": stream, "offset": offset}
        for (replica_id, stream), offset in acks.items()
    ]


def _row(replica: Replica, chunk: SentChunk, *, is_last: bool) -> LogChunk:
    text = chunk.data + _CUT_NOTICE if is_last else chunk.data
    return LogChunk(replica=replica, stream=chunk.stream, offset=chunk.offset, size=chunk.bytes, text=text)
