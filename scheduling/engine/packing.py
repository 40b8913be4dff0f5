"""Where one replica goes best among unlike nodes: a share, whole GPUs, or CPU alone.

    growth = P(node after) - P(node before) + scarcity of the tier * slots asked
    cost   = floor(growth / step) + balance * max(0, free GPU after / GPU - free CPU after / CPU)

The node with the least cost wins, and for a share the GPU with the least cost on it; ties go to the first GPU,
then to the first node, or anywhere if a generator is given. `fragmentation.py` has P.

Costs are kept for each size of ask and renewed only for the nodes that changed since that size was last asked;
nodes in the same state are looked at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scheduling.engine.fragmentation import PackingPolicy, Potential
from scheduling.engine.mix import Ask, Mix
from scheduling.engine.shareprices import WHOLE

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NO_GPU = -1
_FEW = 48  # nodes; below this, looking for equal states costs more than it saves


@dataclass(slots=True)
class NodeStates:
    """What is free, in a fixed order of nodes. A GPU that a node does not have is one without free slots."""

    tiers: tuple[str, ...]
    tier: Ints  # (nodes,) index into `tiers`
    cpu_total_m: Ints  # (nodes,)
    cpu_free_m: Ints  # (nodes,)
    memory_free_mib: Ints  # (nodes,)
    gpu_count: Ints  # (nodes,)
    slots_free: Ints  # (nodes, gpus)

    def supply(self) -> Floats:
        """(tiers,) slots of all GPUs, free or not."""
        return WHOLE * np.bincount(self.tier, self.gpu_count, minlength=len(self.tiers))


class Choice(NamedTuple):
    node: int
    gpus: tuple[int, ...]
    cost: float


class _Candidates(NamedTuple):
    """Ways to take an ask: the node, the GPU for a share, and what the node would be like after."""

    row: Ints  # (candidates,) index into the nodes looked at
    gpu: Ints  # (candidates,)
    traits: Floats  # (candidates, traits)


@dataclass(slots=True)
class _Costs:
    """Costs of one size of ask on every node, as of a position in the log of changes."""

    cost: Floats  # (nodes,) infinite where it does not fit
    gpu: Ints  # (nodes,) the best GPU for a share
    seen: int


class Packer:
    """The states of nodes with their costs. `states` belongs to the packer from then on."""

    def __init__(
        self,
        states: NodeStates,
        mix: Mix,
        policy: PackingPolicy | None = None,
        ties: np.random.Generator | None = None,
    ) -> None:
        self.states = states
        self.policy = policy or PackingPolicy()
        self._ties = ties
        self._state_ids: dict[tuple[int, ...], int] = {}
        self._first_of_value = np.zeros(states.slots_free.shape, dtype=np.bool_)  # (nodes, gpus)
        self._state_id = np.zeros(len(states.tier), dtype=np.int64)  # (nodes,) equal for equal states
        for node in range(len(states.tier)):
            self._identify(node)
        self._accepted: dict[tuple[str, ...], Bools] = {}
        self.learn(mix)

    def learn(self, mix: Mix) -> None:
        """Take another mix of asks as a basis; all costs are worked out anew when they are next asked."""
        states = self.states
        self.potential = Potential(mix, states.tiers, states.supply(), self.policy)
        self._traits = self.potential.traits(states.slots_free)  # (nodes, traits)
        self._level = self.potential(states.tier, states.cpu_free_m, self._traits)  # (nodes,) P now
        self._changed: list[int] = []
        self._costs: dict[Ask, _Costs] = {}
        self._steps: dict[Ask, Floats] = {}

    def choose(self, ask: Ask, memory_mib: int = 0, allowed: Bools | None = None) -> Choice | None:
        """The best place for the ask, or None if no node (that is allowed) holds it."""
        costs = self.costs(ask, allowed)
        node = int(costs.argmin())
        if memory_mib > self.states.memory_free_mib[node]:
            costs = np.where(self.states.memory_free_mib >= memory_mib, costs, np.inf)
            node = int(costs.argmin())
        cost = float(costs[node])
        if cost == np.inf:
            return None
        if self._ties is not None:
            if memory_mib:
                costs = np.where(self.states.memory_free_mib >= memory_mib, costs, np.inf)
            node = int(self._ties.choice(np.flatnonzero(costs == cost)))
        return Choice(node, self._gpus(ask, node), cost)

    def costs(self, ask: Ask, allowed: Bools | None = None) -> Floats:
        """(nodes,) the cost on each node, infinite where the ask does not fit now or may not go."""
        costs = self._refreshed(ask.size).cost
        if ask.tiers and ask.gpus:
            costs = np.where(self._accepting(ask.tiers), costs, np.inf)
        return costs if allowed is None else np.where(allowed, costs, np.inf)

    def take(self, ask: Ask, choice: Choice, memory_mib: int = 0) -> None:
        self._move(choice.node, choice.gpus, ask.slots, ask.cpu_m, memory_mib)

    def give_back(self, ask: Ask, choice: Choice, memory_mib: int = 0) -> None:
        self._move(choice.node, choice.gpus, -ask.slots, -ask.cpu_m, -memory_mib)

    def explain(self, ask: Ask, node: int) -> dict[str, float]:
        """The summands of the cost on one node where the ask fits, in slots but for the balance."""
        at = np.array([node])
        size, gpus = ask.size, self._gpus(ask, node)
        after = self.states.slots_free[at].copy()
        after[0, list(gpus)] -= ask.slots
        tier, cpu_free = self.states.tier[at], self.states.cpu_free_m[at]
        was = self.potential.parts(tier, cpu_free, self._traits[at])
        traits = self.potential.traits(after)
        will = self.potential.parts(tier, cpu_free - ask.cpu_m, traits)
        return {
            "fragments": float((will.fragments - was.fragments)[0]),
            "shares": float((will.shares - was.shares)[0]),
            "stranded": float((will.stranded - was.stranded)[0]),
            "scarcity": float(self.potential.scarcity[tier[0]]) * ask.total_slots,
            "balance": float(self._imbalance(size, at, traits)[0]),
        }

    def _move(self, node: int, gpus: Sequence[int], slots: int, cpu_m: int, memory_mib: int) -> None:
        states = self.states
        states.cpu_free_m[node] -= cpu_m
        states.memory_free_mib[node] -= memory_mib
        for gpu in gpus:
            states.slots_free[node, gpu] -= slots
        self._identify(node)
        at = slice(node, node + 1)
        self._traits[at] = self.potential.traits(states.slots_free[at])
        self._level[at] = self.potential(states.tier[at], states.cpu_free_m[at], self._traits[at])
        self._changed.append(node)

    def _identify(self, node: int) -> None:
        """Number the state of the node, and mark one GPU for each different amount of free slots."""
        states = self.states
        slots = states.slots_free[node].tolist()
        self._first_of_value[node] = [slots.index(value) == gpu for gpu, value in enumerate(slots)]
        key = (
            int(states.tier[node]),
            int(states.cpu_total_m[node]),
            int(states.gpu_count[node]),
            int(states.cpu_free_m[node]),
            *slots,
        )
        self._state_id[node] = self._state_ids.setdefault(key, len(self._state_ids))

    def _accepting(self, tiers: tuple[str, ...]) -> Bools:
        if tiers not in self._accepted:
            wanted = np.array([tier in tiers for tier in self.states.tiers], dtype=np.bool_)  # (tiers,)
            self._accepted[tiers] = wanted[self.states.tier]
        return self._accepted[tiers]

    def _refreshed(self, size: Ask) -> _Costs:
        costs = self._costs.get(size)
        if costs is None:
            count = len(self.states.tier)
            costs = _Costs(np.full(count, np.inf), np.full(count, NO_GPU), len(self._changed))
            self._costs[size] = costs
            self._renew(size, costs, np.arange(count))
        elif costs.seen < len(self._changed):
            changed = sorted(set(self._changed[costs.seen :]))
            costs.seen = len(self._changed)
            self._renew(size, costs, np.array(changed))
        return costs

    def _renew(self, size: Ask, costs: _Costs, nodes: Ints) -> None:
        if len(nodes) < _FEW:
            costs.cost[nodes], costs.gpu[nodes] = self._best(size, nodes)
            return
        _, first, alike = np.unique(self._state_id[nodes], return_index=True, return_inverse=True)
        cost, gpu = self._best(size, nodes[first])
        costs.cost[nodes], costs.gpu[nodes] = cost[alike], gpu[alike]

    def _best(self, size: Ask, nodes: Ints) -> tuple[Floats, Ints]:
        """(nodes,) least cost on each node, and the GPU for it."""
        row, gpu, cost = self._priced(size, nodes)
        best_cost = np.full(len(nodes), np.inf)
        best_gpu = np.full(len(nodes), NO_GPU)
        if not size.is_share:
            best_cost[row] = cost
            return best_cost, best_gpu
        table = np.full((len(nodes), self.states.slots_free.shape[1]), np.inf)  # (nodes, gpus)
        table[row, gpu] = cost
        best_gpu = table.argmin(axis=1)  # the first GPU of equal ones
        return table[np.arange(len(nodes)), best_gpu], best_gpu

    def _priced(self, size: Ask, nodes: Ints) -> tuple[Ints, Ints, Floats]:
        row, gpu, traits = self._candidates(size, nodes)
        if not row.size:
            return row, gpu, np.zeros(0)
        at = nodes[row]
        tier = self.states.tier[at]
        after = self.potential(tier, self.states.cpu_free_m[at] - size.cpu_m, traits)
        growth = after - self._level[at] + self.potential.scarcity[tier] * size.total_slots
        step = self.policy.step_slots
        cost = np.floor(growth / step) if step else growth
        return row, gpu, cost + self._imbalance(size, at, traits)

    def _imbalance(self, size: Ask, nodes: Ints, traits: Floats) -> Floats:
        """Only GPU left without CPU counts: CPU without GPU still serves what needs no GPU."""
        states = self.states
        gpu_left = traits[:, -1] / np.maximum(WHOLE * states.gpu_count[nodes], 1)
        cpu_left = (states.cpu_free_m[nodes] - size.cpu_m) / np.maximum(states.cpu_total_m[nodes], 1)
        return np.round(self.policy.balance * np.maximum(gpu_left - cpu_left, 0.0), 12)

    def _candidates(self, size: Ask, nodes: Ints) -> _Candidates:
        enough_cpu = self.states.cpu_free_m[nodes] >= size.cpu_m  # (rows,)
        if size.is_share:
            free = self.states.slots_free[nodes]  # (rows, gpus)
            fits = (free >= size.slots) & self._first_of_value[nodes] & enough_cpu[:, None]
            row, gpu = fits.nonzero()
            traits = self._traits[nodes[row]] + self._step(size)[free[row, gpu]]
            return _Candidates(row, gpu, traits)
        whole = self._traits[nodes, self.potential.whole_column]  # (rows,)
        row = np.flatnonzero(enough_cpu & (whole >= size.gpus))
        traits = self._traits[nodes[row]] - size.gpus * self.potential.traits_of[WHOLE]
        return _Candidates(row, np.full(len(row), NO_GPU), traits)

    def _step(self, size: Ask) -> Floats:
        """(slots, traits) how the traits of a node change when a GPU with so many free slots takes the share."""
        if size not in self._steps:
            of = self.potential.traits_of
            step = np.zeros_like(of)
            step[size.slots :] = of[: len(of) - size.slots] - of[size.slots :]
            self._steps[size] = step
        return self._steps[size]

    def _gpus(self, ask: Ask, node: int) -> tuple[int, ...]:
        if not ask.is_share:
            idle = np.flatnonzero(self.states.slots_free[node] == WHOLE)
            return tuple(idle[: ask.gpus].tolist())
        if self._ties is None:
            return (int(self._refreshed(ask.size).gpu[node]),)
        return (self._any_best_gpu(ask, node, self._ties),)

    def _any_best_gpu(self, ask: Ask, node: int, ties: np.random.Generator) -> int:
        _, gpu, cost = self._priced(ask.size, np.array([node]))
        values = self.states.slots_free[node, gpu[cost == cost.min()]]
        return int(ties.choice(np.flatnonzero(np.isin(self.states.slots_free[node], values))))
