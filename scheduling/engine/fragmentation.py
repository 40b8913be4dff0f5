"""How badly cut up a node is, for the mix of what is asked: one number, smaller is better.

    P = fragments * F + shares * Phi + stranded * S        (in slots, thousandths of a GPU)

F counts the free GPU that asks of the mix cannot use, Phi what free parts of GPUs lack of their price as whole
ones, S the free GPU beside which the CPU runs out first. All three add up over the GPUs of a node, or depend on
sums over them, so a node is its tier, its free CPU and one row of such sums ("traits").
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scheduling.engine.mix import Ask, Mix, accepts, scarcity
from scheduling.engine.shareprices import best_fill, share_prices
from scheduling.engine.snapshot import WHOLE

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Fragments(StrEnum):
    PLACEABLE = "placeable"  # free GPU less what as many tasks of one ask as fit would take
    SLIVERS = "slivers"  # FGD's: free GPU on cards with too little left; all of it where the ask cannot run


@dataclass(frozen=True, slots=True)
class PackingPolicy:
    """Weights of the score. In slots, thousandths of a GPU, where nothing else is said."""

    fragments: float = 0.3
    shares: float = 1.5
    stranded: float = 0.9
    scarcity: float = 4.0  # per slot asked, times by how much the tier is scarce
    scarce_from: float = 0.75  # above this ratio of demand that can go nowhere else to the GPUs there are
    balance: float = 2.0  # steps, for a node with all of its GPU but no CPU left
    fullness: float = 0.001  # steps, for a node without anything on its GPUs: decides between equal costs
    islands: float = 1.0  # steps for each island more than one that the GPUs of a task come from
    step_slots: float = 40.0  # smaller differences than this are left to balance and fullness; 0 counts all
    # F looks only at the most frequent asks. With more of them, a mix learned from a few hundred tasks comes to
    # hang on the chance of one large ask being among them.
    popular_part: float = 0.9
    popular_most: int = 200  # and never at more of them than this
    measure: Fragments = Fragments.PLACEABLE


class Parts(NamedTuple):
    """The summands of P, each (rows,)."""

    fragments: Floats
    shares: Floats
    stranded: Floats


class Potential:
    """P under one mix and policy, for any number of node states at once.

    All weights are multiples of 2**-20, so that every sum is exact and does not depend on the order of its
    terms: equal states have equal P to the last bit, on every machine and in every batch.
    """

    def __init__(self, mix: Mix, tiers: tuple[str, ...], supply: Floats, policy: PackingPolicy) -> None:
        self.policy = policy
        self.scarcity = _exact(policy.scarcity * scarcity(mix, tiers, supply, policy.scarce_from))  # (tiers,)
        popular = mix.popular(policy.popular_part, policy.popular_most)
        self._learn_columns(mix, popular)
        self._learn_popular(popular, tiers)
        self._learn_stranding(mix)

    def _learn_columns(self, mix: Mix, popular: Mix) -> None:
        """Traits of one GPU by its free slots; those of a node are the sums over its GPUs."""
        sizes = sorted({ask.slots for ask in popular.asks if ask.gpus} | {WHOLE})
        free = np.arange(WHOLE + 1)  # (slots,)
        held = [free // size for size in sizes]
        if self.policy.measure is Fragments.SLIVERS:
            held += [np.where(free >= size, free, 0) for size in sizes]
        # (slots, traits): shares held by size, [usable slots by size,] price, free slots
        self.traits_of: Floats = np.column_stack([*held, self._prices(mix), free]).astype(np.float64)
        self._column = {size: i for i, size in enumerate(sizes)}
        self.whole_column = self._column[WHOLE]
        self._sizes = len(sizes)

    def _prices(self, mix: Mix) -> Floats:
        """(slots,) what a GPU with so many free slots is worth, in slots, weighted."""
        sizes, counts = mix.share_counts()
        worth = best_fill(np.array(sizes, dtype=np.int64), share_prices(sizes, counts))[0]
        worth[WHOLE] = 1.0
        return _exact(self.policy.shares * WHOLE * worth)

    def _learn_popular(self, popular: Mix, tiers: tuple[str, ...]) -> None:
        """Popular asks, those alike but for their tiers as one, with their weight on each tier."""
        weights: dict[Ask, Floats] = {}
        rows = zip(popular.asks, popular.frequencies(), accepts(popular.asks, tiers), strict=True)
        for ask, frequency, allowed in rows:
            if ask.gpus:
                weights[ask.size] = weights.get(ask.size, np.zeros(len(tiers))) + frequency * allowed
        asks = sorted(weights, key=lambda ask: (ask.gpus > 1, ask))
        slots = np.array([ask.total_slots if self._counts_tasks else 1 for ask in asks], dtype=np.float64)
        table = np.array([weights[ask] for ask in asks]).reshape(len(asks), len(tiers))
        self._weight: Floats = _exact(self.policy.fragments * slots[:, None] * table)  # (asks, tiers)
        self._ask_column = np.array([self._column[ask.slots] for ask in asks], dtype=np.int64)  # (asks,)
        self._ask_cpu = np.array([max(ask.cpu_m, 1) for ask in asks], dtype=np.float64)  # (asks,)
        self._ask_gpus = np.array([ask.gpus for ask in asks if ask.gpus > 1], dtype=np.float64)  # (large,)

    @property
    def _counts_tasks(self) -> bool:
        return self.policy.measure is Fragments.PLACEABLE

    def _learn_stranding(self, mix: Mix) -> None:
        """S is piecewise linear in free GPU and CPU: sums of the asks below each GPU-to-CPU ratio."""
        demand = mix.gpu_demand()
        hungry = [i for i, ask in enumerate(mix.asks) if ask.gpus and ask.cpu_m]
        ratios = np.array([mix.asks[i].total_slots / mix.asks[i].cpu_m for i in hungry])
        order = np.argsort(ratios, kind="stable")
        part = self.policy.stranded * demand[hungry][order]
        self._ratios: Floats = ratios[order]  # (asks,) slots per millicore
        self._part_below = np.concatenate(([0.0], np.cumsum(_exact(part))))  # (asks + 1,)
        self._ratio_below = np.concatenate(([0.0], np.cumsum(_exact(part * self._ratios))))  # (asks + 1,)

    def traits(self, free_slots: Ints) -> Floats:
        """(rows, GPUs) free slots of each GPU -> (rows, traits)."""
        summed: Floats = self.traits_of[free_slots].sum(axis=1)
        return summed

    def parts(self, tier: Ints, cpu_free: Ints, traits: Floats) -> Parts:
        idle = traits[:, -1]  # (rows,)
        fragments = self.policy.fragments * idle - self._useful(tier, cpu_free, traits)
        shares = self.policy.shares * idle - traits[:, -2]
        below = np.searchsorted(self._ratios, idle / np.maximum(cpu_free, 1e-9))  # (rows,)
        stranded = idle * self._part_below[below] - cpu_free * self._ratio_below[below]
        return Parts(fragments, shares, stranded)

    def __call__(self, tier: Ints, cpu_free: Ints, traits: Floats) -> Floats:
        """(rows,) P of nodes by tier, free CPU and traits."""
        fragments, shares, stranded = self.parts(tier, cpu_free, traits)
        return fragments + shares + stranded

    def _useful(self, tier: Ints, cpu_free: Ints, traits: Floats) -> Floats:
        """(rows,) the weighted free GPU that the popular asks can use, each alone."""
        beside_cpu = cpu_free[:, None] / self._ask_cpu  # (rows, asks) tasks
        np.floor(beside_cpu, out=beside_cpu)
        tasks = traits.take(self._ask_column, axis=1)  # (rows, asks)
        if self._ask_gpus.size:
            tasks[:, -self._ask_gpus.size :] //= self._ask_gpus
        np.minimum(tasks, beside_cpu, out=tasks)
        if not self._counts_tasks:
            tasks = np.where(tasks >= 1, traits[:, self._ask_column + self._sizes], 0.0)
        by_tier = tasks @ self._weight  # (rows, tiers)
        useful: Floats = by_tier[np.arange(len(tier)), tier]
        return useful


def _exact(values: Floats) -> Floats:
    return np.round(values * 2.0**20) / 2.0**20
