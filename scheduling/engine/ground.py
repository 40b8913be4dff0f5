"""Where the victims of one circle stand on the nodes of one tier, and what each would give back.

Nothing here depends on who asks: all shapes of a phase share it, and a start changes only the nodes it touches.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from scheduling.engine.placement import Fleet, Ints, TierNodes
from scheduling.engine.snapshot import WHOLE, Live
from scheduling.engine.victims import Victim

NEVER = 1 << 62


class Gives:
    """What one victim gives back on one node, as this tier sees it."""

    __slots__ = ("cards", "cpu_m", "memory_mib")

    def __init__(self, cards: Ints, cpu_m: int, memory_mib: int) -> None:
        self.cards, self.cpu_m, self.memory_mib = cards, cpu_m, memory_mib  # (cards,) slots

    def add(self, other: "Gives", sign: int) -> None:
        self.cards = self.cards + sign * other.cards
        self.cpu_m += sign * other.cpu_m
        self.memory_mib += sign * other.memory_mib


class Ground:
    """`changed` lists the rows that look different, one after another: whoever keeps answers reads on from there."""

    def __init__(self, fleet: Fleet, tier: TierNodes, victims: Iterable[Victim]) -> None:
        self.fleet, self.tier = fleet, tier
        self.on: dict[int, dict[Victim, Gives]] = {}  # by row of the tier
        self.changed: list[int] = []
        self._rows_of: dict[Victim, list[int]] = {}
        for victim in victims:
            for live in victim.live:
                self._enter(victim, live)
        self.on_several = {victim: None for victim, rows in self._rows_of.items() if len(rows) > 1}
        # (tier nodes,) no card there becomes free for less; victims that leave later only raise it.
        self.least_each = np.full(tier.nodes.size, NEVER, dtype=np.int64)
        # Were they all gone: slots of each card, whole cards, CPU and memory.
        self.slots: Ints = tier.slots.copy()  # (tier nodes, cards)
        self.whole: Ints = tier.usable.copy()  # (tier nodes,)
        self.cpu_m: Ints = fleet.cpu_free[tier.nodes]  # (tier nodes,)
        self.memory_mib: Ints = fleet.memory_free[tier.nodes]  # (tier nodes,)
        for row, there in self.on.items():
            self._sum_up(row)
            each = (
                victim.weight // max(1, int(np.count_nonzero(gives.cards))) for victim, gives in there.items()
            )
            self.least_each[row] = min(each)

    def rows(self, victim: Victim) -> Sequence[int]:
        return self._rows_of.get(victim, ())

    def forget(self, rows: Iterable[int], gone: Iterable[Victim]) -> None:
        """These nodes have changed; these victims have left."""
        touched = dict.fromkeys(rows)
        for victim in gone:
            self.on_several.pop(victim, None)
            for row in self._rows_of.pop(victim, ()):
                del self.on[row][victim]
                touched[row] = None
        for row in touched:
            self._sum_up(row)
        self.changed += touched

    def _enter(self, victim: Victim, live: Live) -> None:
        tier, node = self.tier, self.fleet.node_index.get(live.node_id)
        row = None if node is None else tier.row_of.get(node)
        if row is None:
            return
        there = self.on.setdefault(row, {})
        gives = there.get(victim)
        if gives is None:
            gives = there[victim] = Gives(np.zeros(tier.slots.shape[1], dtype=np.int64), 0, 0)
            self._rows_of.setdefault(victim, []).append(row)
        gives.cpu_m += live.cpu_m
        gives.memory_mib += live.memory_mib
        if live.tier_id == tier.tier_id:
            for column, gpu in enumerate(tier.gpus[row]):
                if gpu.id in live.gpu_ids and tier.is_ready[row, column]:
                    gives.cards[column] += live.slots

    def _sum_up(self, row: int) -> None:
        tier, node = self.tier, int(self.tier.nodes[row])
        slots, cpu_m = tier.slots[row], int(self.fleet.cpu_free[node])
        memory_mib = int(self.fleet.memory_free[node])
        for gives in self.on.get(row, {}).values():
            slots = slots + gives.cards
            cpu_m += gives.cpu_m
            memory_mib += gives.memory_mib
        self.slots[row] = np.minimum(slots, WHOLE)
        self.whole[row] = int((self.slots[row] == WHOLE).sum())
        self.cpu_m[row], self.memory_mib[row] = cpu_m, memory_mib
