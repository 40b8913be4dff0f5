"""Live rows where claims wait for others to leave: who gives back what once they have left."""

from collections.abc import Iterable
from dataclasses import replace

from scheduling.engine.snapshot import Live

CLAIMED, STOPPING = "claimed", "stopping"


def settled(live: Iterable[Live]) -> list[Live]:
    """Who leaves gives back only what nobody has claimed yet, so that nothing is given back twice.

    GPUs are known one by one; CPU and memory are taken off whoever leaves the node, in order.
    """
    rows = list(live)
    claims = [row for row in rows if row.state == CLAIMED]
    if not claims:
        return rows
    gpu_ids = {gpu_id for row in claims for gpu_id in row.gpu_ids}
    beside: dict[str, list[int]] = {}
    for row in claims:
        taken = beside.setdefault(row.node_id, [0, 0])
        taken[0] += row.cpu_m
        taken[1] += row.memory_mib
    return [_less(row, gpu_ids, beside) if row.state == STOPPING else row for row in rows]


def _less(row: Live, gpu_ids: set[str], beside: dict[str, list[int]]) -> Live:
    left = tuple(gpu_id for gpu_id in row.gpu_ids if gpu_id not in gpu_ids)
    taken = beside.get(row.node_id, [0, 0])
    cpu_m, memory_mib = min(row.cpu_m, taken[0]), min(row.memory_mib, taken[1])
    taken[0] -= cpu_m
    taken[1] -= memory_mib
    units = row.units * len(left) // len(row.gpu_ids) if row.gpu_ids else row.units
    return replace(
        row,
        gpu_ids=left,
        units=units,
        cpu_m=row.cpu_m - cpu_m,
        memory_mib=row.memory_mib - memory_mib,
    )
