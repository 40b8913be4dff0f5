"""Replicas above the least: work and services that may grow and shrink while they run.

Such replicas are always borrowed: they never count against a guarantee, and each can be taken back by itself.
"""

from collections.abc import Iterable

from scheduling.engine.snapshot import Live, Request, Snapshot

INFERENCE = "inference"

Replica = tuple[str, int]  # workload, index


def is_elastic(request: Request) -> bool:
    """Whether replicas above `replicas_min` come and go by themselves. A service's always do."""
    return request.replicas_max > request.replicas_min and (request.elastic or request.kind == INFERENCE)


def surplus(snapshot: Snapshot) -> frozenset[Replica]:
    """The replicas above the least of all that runs: those with the highest indexes."""
    asked = {request.workload_id: request for request in snapshot.placed if is_elastic(request)}
    indexes: dict[str, set[int]] = {}
    for live in snapshot.live:
        if live.workload_id in asked and live.state != "stopping":
            indexes.setdefault(live.workload_id, set()).add(live.replica)
    return frozenset(
        (workload_id, index)
        for workload_id, found in indexes.items()
        for index in sorted(found)[asked[workload_id].replicas_min :]
    )


def replicas_of(live: Iterable[Live]) -> dict[str, set[int]]:
    """The indexes of the replicas that each workload has."""
    found: dict[str, set[int]] = {}
    for row in live:
        found.setdefault(row.workload_id, set()).add(row.replica)
    return found
