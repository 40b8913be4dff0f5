"""What keeps a request from starting whatever the machines and quotas say: it is not its time yet."""

from collections import Counter
from collections.abc import Mapping

from scheduling.engine import decisions as codes
from scheduling.engine.decisions import Blocker
from scheduling.engine.snapshot import Request, Snapshot

_LISTED_WORKLOADS = 5


def arrays_running(snapshot: Snapshot) -> Counter[str]:
    """How many members of each array hold or claim something; the starts of a pass are to be added to it."""
    return Counter(request.array_id for request in snapshot.placed if request.array_id is not None)


def gate(request: Request, now_us: int, array_running: Mapping[str, int]) -> list[Blocker]:
    """Earliest start, dependencies and the cap of its array; an empty list: it may start."""
    found = []
    if request.not_before_us is not None and request.not_before_us > now_us:
        found.append(Blocker(codes.NOT_BEFORE, {"not_before_us": request.not_before_us}))
    if request.depends_on:
        listed = list(request.depends_on[:_LISTED_WORKLOADS])
        data = {"workload_ids": listed, "count": len(request.depends_on)}
        found.append(Blocker(codes.DEPENDENCY, data))
    if request.array_id is not None and request.array_cap is not None:
        running = array_running.get(request.array_id, 0)
        if running >= request.array_cap:
            data = {"array_id": request.array_id, "cap": request.array_cap, "running": running}
            found.append(Blocker(codes.ARRAY_CAP, data))
    return found
