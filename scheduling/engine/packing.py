"""Where one replica goes best among unlike nodes: a share, whole GPUs, or CPU alone.

    growth = P(node after) - P(node before) + scarcity of the tier * slots asked
    cost   = floor(growth / step) + balance * max(0, free GPU after / GPU - free CPU after / CPU)
             + fullness * free GPU before / GPU

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
from scheduling.engine.snapshot import WHOLE

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NO_GPU = -1
_FEW = 256  # nodes; below this, looking for equal states costs more than it saves
_BLOCK = 1024  # nodes at once: what is worked on stays in the cache


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
        counts = np.bincount(self.tier, self.gpu_count, minlength=len(self.tiers))
        return WHOLE * counts.astype(np.float64)


class Choice(NamedTuple):
    node: int
    gpus: tuple[int, ...]
    cost: float


class _Candidates(NamedTuple):
    """Ways to take an ask: the nodes that hold it, and for each way the GPU and the node's traits after it."""

    kept: Ints  # (kept,) indexes into the nodes looked at
    row: Ints  # (candidates,) indexes into `kept`
    gpu: Ints  # (candidates,)
    traits: Floats  # (candidates, traits)


@dataclass(slots=True)
class _Costs:
    """Costs of one size of ask on every node, after so many changes."""

    cost: Floats  # (nodes,) infinite where it does not fit
    gpu: Ints  # (nodes,) the best GPU for a share
    changes: int


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
        self._first_of_value = np.zeros(states.slots_free.shape, dtype=np.bool_)  # (nodes, gpus)
        self._state_id = np.zeros(len(states.tier), dtype=np.int64)  # (nodes,) equal for equal states
        self._changed_at = np.zeros(len(states.tier), dtype=np.int64)  # (nodes,) the change that was its last
        self._changes = 0
        self._accepted: dict[tuple[str, ...], Bools] = {}
        self.learn(mix)

    def learn(self, mix: Mix) -> None:
        """Take another mix of asks as a basis; all costs are worked out anew when they are next asked."""
        states = self.states
        self.potential = Potential(mix, states.tiers, states.supply(), self.policy)
        self._traits = self.potential.traits(states.slots_free)  # (nodes, traits)
        self._costs: dict[Ask, _Costs] = {}
        self._steps: dict[int, Floats] = {}
        self._state_ids: dict[tuple[int, ...], int] = {}
        for node in range(len(states.tier)):
            self._identify(node)

    def choose(self, ask: Ask, memory_mib: int = 0, allowed: Bools | None = None) -> Choice | None:
        """The best place for the ask, or None if no node (that is allowed) holds it."""
        costs = self.costs(ask, allowed)
        if not costs.size:
            return None
        node, memory_free = int(costs.argmin()), self.states.memory_free_mib
        if memory_mib and (self._ties is not None or memory_mib > memory_free[node]):
            costs = np.where(memory_free >= memory_mib, costs, np.inf)
            node = int(costs.argmin())
        cost = float(costs[node])
        if cost == np.inf:
            return None
        if self._ties is not None:
            node = int(self._ties.choice(np.flatnonzero(costs == cost)))
        return Choice(node, self._gpus(ask, node), cost)

    def costs(self, ask: Ask, allowed: Bools | None = None) -> Floats:
        """(nodes,) the cost on each node, infinite where the ask does not fit now or may not go; read only."""
        costs = self._refreshed(ask.size).cost
        if ask.tiers:
            costs = np.where(self._accepting(ask.tiers), costs, np.inf)
        return costs if allowed is None else np.where(allowed, costs, np.inf)

    def take(self, ask: Ask, choice: Choice, memory_mib: int = 0) -> None:
        free = self.states
        slots = min((int(free.slots_free[choice.node, gpu]) for gpu in choice.gpus), default=WHOLE)
        if (
            slots < ask.slots
            or free.cpu_free_m[choice.node] < ask.cpu_m
            or free.memory_free_mib[choice.node] < memory_mib
        ):
            raise ValueError("That place is taken: choose again before taking it.")
        self._move(choice.node, choice.gpus, ask.slots, ask.cpu_m, memory_mib)

    def give_back(self, ask: Ask, choice: Choice, memory_mib: int = 0) -> None:
        self._move(choice.node, choice.gpus, -ask.slots, -ask.cpu_m, -memory_mib)

    def explain(self, ask: Ask, choice: Choice) -> dict[str, float]:
        """The summands of the cost of a choice not taken yet: balance and fullness in steps, others in slots."""
        at = np.array([choice.node])
        after = self.states.slots_free[at].copy()
        after[0, list(choice.gpus)] -= ask.slots
        traits = self.potential.traits(after)
        tier, cpu_free = self.states.tier[at], self.states.cpu_free_m[at]
        was = self.potential.parts(tier, cpu_free, self._traits[at])
        will = self.potential.parts(tier, cpu_free - ask.cpu_m, traits)
        return {
            "fragments": float((will.fragments - was.fragments)[0]),
            "shares": float((will.shares - was.shares)[0]),
            "stranded": float((will.stranded - was.stranded)[0]),
            "scarcity": float(self.potential.scarcity[tier[0]]) * ask.total_slots,
            "balance": float(self._imbalance(ask, at, traits)[0]),
            "fullness": float(self._emptiness(at)[0]),
        }

    def _move(self, node: int, gpus: Sequence[int], slots: int, cpu_m: int, memory_mib: int) -> None:
        states = self.states
        states.cpu_free_m[node] -= cpu_m
        states.memory_free_mib[node] -= memory_mib
        for gpu in gpus:
            states.slots_free[node, gpu] -= slots
        self._traits[node] = self.potential.traits(states.slots_free[node : node + 1])[0]
        self._identify(node)
        self._changes += 1
        self._changed_at[node] = self._changes

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
            costs = _Costs(np.full(count, np.inf), np.full(count, NO_GPU), self._changes)
            self._costs[size] = costs
            self._renew(size, costs, np.arange(count))
        elif costs.changes < self._changes:
            self._renew(size, costs, (self._changed_at > costs.changes).nonzero()[0])
            costs.changes = self._changes
        return costs

    def _renew(self, size: Ask, costs: _Costs, nodes: Ints) -> None:
        if len(nodes) < _FEW:
            costs.cost[nodes], costs.gpu[nodes] = self._best(size, nodes)
            return
        _, first, alike = np.unique(self._state_id[nodes], return_index=True, return_inverse=True)
        unlike = nodes[first]
        for begin in range(0, len(unlike), _BLOCK):
            block = unlike[begin : begin + _BLOCK]
            costs.cost[block], costs.gpu[block] = self._best(size, block)
        costs.cost[nodes], costs.gpu[nodes] = costs.cost[unlike[alike]], costs.gpu[unlike[alike]]

    def _best(self, size: Ask, nodes: Ints) -> tuple[Floats, Ints]:
        """(nodes,) least cost on each node, and the GPU for it."""
        ways = self._candidates(size, nodes)
        best_cost = np.full(len(nodes), np.inf)
        best_gpu = np.full(len(nodes), NO_GPU)
        if not ways.row.size:
            return best_cost, best_gpu
        cost = self._cost(size, nodes[ways.kept], ways)
        if not size.is_share:
            best_cost[ways.kept] = cost
            return best_cost, best_gpu
        table = np.full((len(ways.kept), self.states.slots_free.shape[1]), np.inf)  # (kept, gpus)
        table[ways.row, ways.gpu] = cost
        best_gpu[ways.kept] = table.argmin(axis=1)  # the first GPU of equal ones
        best_cost[ways.kept] = table.min(axis=1)
        return best_cost, best_gpu

    def _candidates(self, size: Ask, nodes: Ints) -> _Candidates:
        enough_cpu = self.states.cpu_free_m[nodes] >= size.cpu_m  # (nodes,)
        if size.is_share:
            free = self.states.slots_free[nodes]  # (nodes, gpus)
            fits = (free >= size.slots) & self._first_of_value[nodes] & enough_cpu[:, None]
            kept = np.flatnonzero(fits.any(axis=1))
            row, gpu = fits[kept].nonzero()
            at = kept[row]
            traits = self._traits[nodes[at]] + self._step(size.slots)[free[at, gpu]]
            return _Candidates(kept, row, gpu, traits)
        whole = self._traits[nodes, self.potential.whole_column]  # (nodes,)
        kept = (enough_cpu & (whole >= size.gpus)).nonzero()[0]
        traits = self._traits[nodes[kept]] - size.gpus * self.potential.traits_of[WHOLE]
        return _Candidates(kept, np.arange(len(kept)), np.full(len(kept), NO_GPU), traits)

    def _cost(self, size: Ask, nodes: Ints, ways: _Candidates) -> Floats:
        """(candidates,) on the nodes that hold the ask."""
        states = self.states
        tier, cpu_free = states.tier[nodes], states.cpu_free_m[nodes]  # (kept,)
        at = ways.row
        level = self.potential(  # (kept + candidates,) before and after in one go
            np.concatenate((tier, tier[at])),
            np.concatenate((cpu_free, cpu_free[at] - size.cpu_m)),
            np.concatenate((self._traits[nodes], ways.traits)),
        )
        growth = level[len(nodes) :] - level[: len(nodes)][at]
        growth += self.potential.scarcity[tier[at]] * size.total_slots
        step = self.policy.step_slots
        cost = np.floor(growth / step) if step else growth
        return cost + self._imbalance(size, nodes[at], ways.traits) + self._emptiness(nodes)[at]

    def _imbalance(self, size: Ask, nodes: Ints, traits: Floats) -> Floats:
        """Only GPU left without CPU counts: CPU without GPU still serves what needs no GPU."""
        states = self.states
        gpu_left = traits[:, -1] / np.maximum(WHOLE * states.gpu_count[nodes], 1)
        cpu_left = (states.cpu_free_m[nodes] - size.cpu_m) / np.maximum(states.cpu_total_m[nodes], 1)
        return self.policy.balance * np.maximum(gpu_left - cpu_left, 0.0)

    def _emptiness(self, nodes: Ints) -> Floats:
        """Much the same places are common; to fill up begun nodes keeps others whole for large asks."""
        free_part: Floats = self._traits[nodes, -1] / np.maximum(WHOLE * self.states.gpu_count[nodes], 1)
        return self.policy.fullness * free_part

    def _step(self, slots: int) -> Floats:
        """(slots, traits) how a node's traits change when a GPU with so many free slots takes the share."""
        if slots not in self._steps:
            of = self.potential.traits_of
            step = np.zeros_like(of)
            step[slots:] = of[: len(of) - slots] - of[slots:]
            self._steps[slots] = step
        return self._steps[slots]

    def _gpus(self, ask: Ask, node: int) -> tuple[int, ...]:
        if not ask.is_share:
            idle = np.flatnonzero(self.states.slots_free[node] == WHOLE)
            return tuple(idle[: ask.gpus].tolist())
        if self._ties is None:
            return (int(self._refreshed(ask.size).gpu[node]),)
        return (self._any_best_gpu(ask.size, node, self._ties),)

    def _any_best_gpu(self, size: Ask, node: int, ties: np.random.Generator) -> int:
        at = np.array([node])
        ways = self._candidates(size, at)
        cost = self._cost(size, at, ways)
        free = self.states.slots_free[node]
        return int(ties.choice(np.flatnonzero(np.isin(free, free[ways.gpu[cost == cost.min()]]))))
