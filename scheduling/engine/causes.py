"""Which causes of the machines keep a gang waiting: each is judged with all the others thought away.

A cause (a cordon, busy GPUs, CPU in use …) blocks when the gang would not fit even if every other such cause were
gone. Where no single cause blocks alone but together they do (one node has the GPUs, another the CPU), every cause
whose removal would be enough is listed. So the list is complete: with all of it gone, the gang fits.
"""

from itertools import combinations

import numpy as np

from scheduling.engine.placement import Bools, Fleet, Ints, Shape, TierNodes
from scheduling.engine.snapshot import ISLAND

POOL, CORDON, READY, FREE, CPU, MEMORY = "pool", "cordon", "ready", "free", "cpu", "memory"
SELECTION, TOPOLOGY = "selection", "topology"
# What a person would look at first stands first: it decides where several combinations would be enough.
CAUSES = (FREE, CPU, MEMORY, TOPOLOGY, READY, CORDON, SELECTION, POOL)

_Causes = frozenset[str]


class Room:
    """Replicas of one shape on each node of one tier, as it is and with causes thought away."""

    def __init__(self, fleet: Fleet, tier: TierNodes, shape: Shape) -> None:
        self.fleet, self.tier, self.shape = fleet, tier, shape
        self.masks: dict[str, Bools] = {  # (tier nodes,)
            CORDON: fleet.schedulable[tier.nodes],
            POOL: fleet.pool_mask(tier, shape.pool_ids),
        }
        if shape.node_labels or shape.not_labels or shape.not_nodes:
            self.masks[SELECTION] = fleet.selected(tier, shape)
        here = {FREE, CPU, MEMORY, READY, *self.masks, *({TOPOLOGY} if shape.required_level else ())}
        self.possible = tuple(cause for cause in CAUSES if cause in here)
        rows = tier.nodes
        ample = np.full(rows.size, np.iinfo(np.int64).max)  # (tier nodes,)
        self._gpus = {frozenset(gone): self._by_gpu(shape, gone) for gone in _GPU_CAUSES}
        on_islands = shape.required_level == ISLAND
        self._island_gpus = {
            frozenset(gone): self._by_gpu(shape, gone, on_islands=True) for gone in _GPU_CAUSES if on_islands
        }
        self._cpu = [_quotient(held[rows], shape.cpu_m, ample) for held in (fleet.cpu_free, fleet.cpu_total)]
        memories = (fleet.memory_free, fleet.memory_total)
        self._memory = [_quotient(held[rows], shape.memory_mib, ample) for held in memories]

    def _by_gpu(self, shape: Shape, gone: tuple[str, ...], *, on_islands: bool = False) -> Ints:
        count = self.tier.replicas_on_islands if on_islands else self.tier.replicas_by_gpu
        return count(shape, all_ready=READY in gone, all_free=FREE in gone)

    def replicas(self, gone: _Causes) -> Ints:
        """Replicas for each node once the causes in `gone` are thought away."""
        by_gpu = self._gpus if TOPOLOGY in gone or not self._island_gpus else self._island_gpus
        fit = np.minimum(by_gpu[gone & {READY, FREE}], self._cpu[CPU in gone])
        fit = np.minimum(fit, self._memory[MEMORY in gone])
        for cause, allowed in self.masks.items():
            if cause not in gone:
                fit = fit * allowed
        return fit

    def fits(self, gone: _Causes) -> bool:
        fit = self.replicas(gone)
        if TOPOLOGY in gone or TOPOLOGY not in self.possible:
            return int(fit.sum()) >= self.shape.replicas
        return self.fleet.topology.holds(self.tier, self.shape, fit)

    def causes(self) -> tuple[_Causes, _Causes]:
        """(causes that block alone, causes that block only together: removing one of these is enough)."""
        everything = frozenset(self.possible)
        alone = frozenset(cause for cause in self.possible if not self.fits(everything - {cause}))
        if self.fits(alone):
            return alone, frozenset()
        rest = [cause for cause in self.possible if cause not in alone]
        enough = frozenset(cause for cause in rest if self.fits(alone | {cause}))
        # The GPUs are free, but not beside the CPU or not near each other: "not enough free" would puzzle.
        if len(enough) > 1 and (TOPOLOGY in enough or self.fits(alone | {CPU, MEMORY})):
            enough -= {FREE}
        if enough:
            return alone, enough
        for size in range(2, len(rest) + 1):
            for together in combinations(rest, size):
                if self.fits(alone | frozenset(together)):
                    return alone | frozenset(together), frozenset()
        return alone, frozenset()


_GPU_CAUSES: tuple[tuple[str, ...], ...] = ((), (READY,), (FREE,), (READY, FREE))


def _quotient(held: Ints, asked: int, ample: Ints) -> Ints:
    return np.maximum(held // asked, 0) if asked else ample
