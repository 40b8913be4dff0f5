"""Where one replica goes best among unlike nodes: a share, whole GPUs, or CPU alone.

    growth = P(node after) - P(node before) + scarcity of the tier * slots asked
    cost   = floor(growth / step) + balance * max(0, free GPU after / GPU - free CPU after / CPU)
             + fullness * free GPU before / GPU + islands * (islands that its GPUs come from - 1)

The node with the least cost wins; ties go to the first node, or to any if a generator is given. Of its GPUs a
share gets the fullest that holds it and that it may join. `fragmentation.py` has P.

Costs are kept for each size of ask and renewed only for the nodes that changed since that size was last asked;
nodes in a state that the size has met before are not looked at again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scheduling.engine.fragmentation import PackingPolicy, Potential
from scheduling.engine.mix import Ask, Mix
from scheduling.engine.snapshot import WHOLE

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Span = tuple[int, int]

ANYBODY, NOBODY = -2, 0  # who asks for a share: may join every card; joins none, takes only free ones
_FEW = 256  # nodes; below this, looking for equal states costs more than it saves
_BLOCK = 1024  # nodes at once: what is worked on stays in the cache
_KEPT = 512  # sizes (and sharers) whose costs are kept
_DIGITS = 5


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
    sharer: Ints | None = None  # (nodes, gpus) code of whose shares are on it; None: all may join all
    islands: Ints | None = None  # (nodes, islands) wholly free GPUs of each; None: all are on one

    def supply(self) -> Floats:
        """(tiers,) slots of all GPUs, free or not."""
        counts = np.bincount(self.tier, self.gpu_count, minlength=len(self.tiers))
        return WHOLE * counts.astype(np.float64)


class Choice(NamedTuple):
    node: int
    gpus: tuple[int, ...]
    cost: float


class _Note(NamedTuple):
    """A place to explain later: what it was like before the ask was taken."""

    parts: dict[str, float]
    ask: Ask
    node: int
    free_slots: int  # of the GPU that a share goes to
    cpu_free_m: int
    traits: Floats  # (traits,)
    further: float


@dataclass(slots=True)
class _Costs:
    """Costs of one size of ask on a span of nodes, after so many changes."""

    cost: Floats  # (nodes of the span,) infinite where it does not fit
    changes: int
    of_state: dict[int, float] = field(default_factory=dict)  # by number of the state


class Packer:
    """The states of nodes with their costs. Who changes `states` from outside says so with `changed`."""

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
        self._state_id = np.zeros(len(states.tier), dtype=np.int64)  # (nodes,) equal for equal states
        self._changed_at = np.zeros(len(states.tier), dtype=np.int64)  # (nodes,) the change that was its last
        self._changes = 0
        self._accepted: dict[tuple[str, ...], Bools] = {}
        self._noted: list[_Note] = []
        self._parts: dict[tuple[Ask, int, int], dict[str, float]] = {}  # by ask, sharer and state
        self._stale: set[int] = set()  # nodes whose traits are to be worked out anew
        self._sharers_of: list[set[int]] = [set() for _ in states.tier]
        self._nodes_of: dict[int, set[int]] = {}  # by sharer, the nodes that have cards of theirs
        self.learn(mix)

    def learn(self, mix: Mix) -> None:
        """Take another mix of asks as a basis; all costs are worked out anew when they are next asked."""
        states = self.states
        self.potential = Potential(mix, states.tiers, states.supply(), self.policy)
        self._traits = self.potential.traits(states.slots_free)  # (nodes, traits); read by `_traits_at`
        self._stale.clear()
        self._parts.clear()
        self._gpu_slots: Ints = np.maximum(WHOLE * states.gpu_count, 1)  # (nodes,)
        self._cpu_all_m: Ints = np.maximum(states.cpu_total_m, 1)  # (nodes,)
        self._costs: dict[tuple[Ask, int, Span], _Costs] = {}
        self._own_costs: dict[tuple[Ask, int], dict[int, float]] = {}  # of sharers on few nodes, by state
        self._steps: dict[int, Floats] = {}
        self._state_ids: dict[tuple[object, ...], int] = {}
        for node in range(len(states.tier)):
            self._identify(node)

    def choose(self, ask: Ask, memory_mib: int = 0, allowed: Bools | None = None) -> Choice | None:
        """The best place for the ask, or None if no node (that is allowed) holds it."""
        costs = self.costs(ask)
        if ask.tiers:
            costs = np.where(self._accepting(ask.tiers), costs, np.inf)
        if allowed is not None:
            costs = np.where(allowed, costs, np.inf)
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

    def costs(self, ask: Ask, sharer: int = ANYBODY, span: Span | None = None) -> Floats:
        """(nodes,) the cost on each node of any tier, infinite where the ask does not fit now; read only.

        `span`: only the nodes from the one to before the other. Ask for the same spans, or it costs the more.
        """
        size = ask.size
        span = span or (0, len(self.states.tier))
        if self.states.sharer is None or not size.is_share or sharer == ANYBODY:
            return self._refreshed(size, ANYBODY, span).cost
        theirs = self._nodes_of.get(sharer, ())
        if len(theirs) >= _FEW:
            return self._refreshed(size, sharer, span).cost
        # On the cards that nobody is on all sharers see the same; few nodes are soon looked at once more.
        costs = self._refreshed(size, NOBODY, span).cost
        own = np.array([node for node in theirs if span[0] <= node < span[1]], dtype=int)
        if own.size:
            if len(self._own_costs) >= _KEPT:
                self._own_costs.clear()
            known = self._own_costs.setdefault((size, sharer), {})
            costs = costs.copy()
            costs[own - span[0]] = self._by_state(known, size, own, sharer)
        return costs

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

    def explain(self, ask: Ask, nodes: Sequence[int], sharer: int = ANYBODY) -> list[dict[str, float]]:
        """For each node, the summands of the cost before the ask is taken: the first four in slots, then steps."""
        found = [self.note(ask, node, sharer) for node in nodes]
        self.explain_noted()
        return found

    def note(self, ask: Ask, node: int, sharer: int = ANYBODY) -> dict[str, float]:
        """The same for a node that holds the ask, but empty until `explain_noted`; equal states share it: read only."""
        key = (ask, sharer, int(self._state_id[node]))
        known = self._parts.get(key)
        if known is None:
            at = np.array([node])
            free = int(self._slots_left(ask, at, sharer).min()) if ask.is_share else WHOLE
            further = float(self._scattered(ask, at)[0]) if ask.gpus > 1 else 0.0
            known = self._parts[key] = {}
            traits, cpu_free_m = self._traits_at(at)[0], self.states.cpu_free_m[node]
            self._noted.append(_Note(known, ask, node, free, cpu_free_m, traits, further))
        return known

    def explain_noted(self) -> None:
        """Rounded, for people."""
        if not self._noted:
            return
        notes, self._noted = self._noted, []
        at = np.array([note.node for note in notes])
        cpu_free, cpu = np.array([(note.cpu_free_m, note.ask.cpu_m) for note in notes]).T
        before = np.array([note.traits for note in notes])
        after = before + np.array([self._change(note.ask, note.free_slots) for note in notes])
        tier = self.states.tier[at]
        was = self.potential.parts(tier, cpu_free, before)
        will = self.potential.parts(tier, cpu_free - cpu, after)
        columns = {
            "fragments": will.fragments - was.fragments,
            "shares": will.shares - was.shares,
            "stranded": will.stranded - was.stranded,
            "scarcity": self.potential.scarcity[tier] * np.array([note.ask.total_slots for note in notes]),
            "balance": self._imbalance(at, cpu_free - cpu, after),
            "fullness": self._emptiness(at, before),
            "islands": np.array([note.further for note in notes]),
        }
        rows = zip(*(values.round(_DIGITS).tolist() for values in columns.values()), strict=True)
        for note, row in zip(notes, rows, strict=True):
            note.parts.update(zip(columns, row, strict=True))

    def _change(self, ask: Ask, free_slots: int) -> Floats:
        """(traits,) what the ask changes; for a share, on a GPU with so many free slots."""
        if ask.is_share:
            change: Floats = self._step(ask.slots)[free_slots]
            return change
        return self._freed(ask)

    def _freed(self, ask: Ask) -> Floats:
        """(traits,) what the whole GPUs of the ask change."""
        freed: Floats = -ask.gpus * self.potential.traits_of[WHOLE]
        return freed

    def changed(self, nodes: Ints) -> None:
        """The states of these nodes are others now."""
        if not nodes.size:
            return
        for node in nodes.tolist():
            self._stale.add(node)
            self._identify(node)
        self._changes += 1
        self._changed_at[nodes] = self._changes

    def _move(self, node: int, gpus: Sequence[int], slots: int, cpu_m: int, memory_mib: int) -> None:
        states = self.states
        states.cpu_free_m[node] -= cpu_m
        states.memory_free_mib[node] -= memory_mib
        for gpu in gpus:
            states.slots_free[node, gpu] -= slots
        self.changed(np.array([node]))

    def _traits_at(self, nodes: Ints) -> Floats:
        """(nodes, traits) as they are now: most changes lead to states that nobody asks the traits of."""
        if self._stale:
            stale = np.array(sorted(self._stale))
            self._traits[stale] = self.potential.traits(self.states.slots_free[stale])
            self._stale.clear()
        found: Floats = self._traits[nodes]
        return found

    def _identify(self, node: int) -> None:
        """Number the state of the node. Where on it the free slots are makes no difference to costs."""
        states = self.states
        slots = states.slots_free[node].tolist()
        if states.sharer is None:
            cards: Sequence[object] = sorted(slots)
        else:
            sharers = states.sharer[node].tolist()
            self._own(node, set(sharers))
            cards = sorted(
                (free, by if 0 < free < WHOLE else 0) for free, by in zip(slots, sharers, strict=True)
            )
        key = (
            int(states.tier[node]),
            int(states.cpu_total_m[node]),
            int(states.gpu_count[node]),
            int(states.cpu_free_m[node]),
            *cards,
            *(() if states.islands is None else sorted(states.islands[node].tolist())),
        )
        self._state_id[node] = self._state_ids.setdefault(key, len(self._state_ids))

    def _own(self, node: int, sharers: set[int]) -> None:
        for gone in self._sharers_of[node] - sharers:
            self._nodes_of[gone].discard(node)
        for come in sharers - self._sharers_of[node]:
            self._nodes_of.setdefault(come, set()).add(node)
        self._sharers_of[node] = sharers

    def _accepting(self, tiers: tuple[str, ...]) -> Bools:
        if tiers not in self._accepted:
            wanted = np.array([tier in tiers for tier in self.states.tiers], dtype=np.bool_)  # (tiers,)
            self._accepted[tiers] = wanted[self.states.tier]
        return self._accepted[tiers]

    def _refreshed(self, size: Ask, sharer: int, span: Span) -> _Costs:
        costs, (begin, end) = self._costs.get((size, sharer, span)), span
        if costs is None:
            if len(self._costs) >= _KEPT:
                del self._costs[next(iter(self._costs))]
            costs = self._costs[size, sharer, span] = _Costs(np.full(end - begin, np.inf), self._changes)
            self._renew(size, sharer, costs, begin, np.arange(begin, end))
        elif costs.changes < self._changes:
            stale = (self._changed_at[begin:end] > costs.changes).nonzero()[0] + begin
            self._renew(size, sharer, costs, begin, stale)
            costs.changes = self._changes
        return costs

    def _renew(self, size: Ask, sharer: int, costs: _Costs, begin: int, nodes: Ints) -> None:
        """`begin`: the first node of the span."""
        known = costs.of_state
        if len(nodes) < _FEW:
            costs.cost[nodes - begin] = self._by_state(known, size, nodes, sharer)
            return
        ids, first, alike = np.unique(self._state_id[nodes], return_index=True, return_inverse=True)
        firsts = nodes[first]
        blocks = [self._best(size, firsts[at : at + _BLOCK], sharer) for at in range(0, len(firsts), _BLOCK)]
        found = np.concatenate(blocks)
        known.update(zip(ids.tolist(), found.tolist(), strict=True))
        costs.cost[nodes - begin] = found[alike]

    def _by_state(self, known: dict[int, float], size: Ask, nodes: Ints, sharer: int) -> list[float]:
        """(nodes,) the cost on each node; `known` learns the states that it has not met."""
        ids = self._state_id[nodes].tolist()
        unlike = {i: node for i, node in zip(ids, nodes.tolist(), strict=True) if i not in known}
        if unlike:
            found = self._best(size, np.array(list(unlike.values())), sharer)
            known.update(zip(unlike, found.tolist(), strict=True))
        return [known[i] for i in ids]

    def _best(self, size: Ask, nodes: Ints, sharer: int) -> Floats:
        """(nodes,) the cost on each node."""
        cpu_free, traits = self.states.cpu_free_m[nodes], self._traits_at(nodes)  # (nodes,), (nodes, traits)
        able = cpu_free >= size.cpu_m  # (nodes,)
        if size.is_share:
            free = self._slots_left(size, nodes, sharer).min(axis=1, initial=WHOLE + 1)  # (nodes,)
            able &= free <= WHOLE
        else:
            able &= traits[:, self.potential.whole_column] >= size.gpus
        kept = able.nonzero()[0]
        found = np.full(len(nodes), np.inf)
        if kept.size:
            before = traits[kept]
            change = self._step(size.slots)[free[kept]] if size.is_share else self._freed(size)
            found[kept] = self._cost(size, nodes[kept], cpu_free[kept], before, before + change)
        return found

    def _slots_left(self, size: Ask, nodes: Ints, sharer: int) -> Ints:
        """(nodes, gpus) free slots of the GPUs that may hold the share, of all others more than WHOLE."""
        free = self.states.slots_free[nodes]  # (nodes, gpus)
        fits = free >= size.slots
        if self.states.sharer is not None and sharer != ANYBODY:
            fits &= (free == WHOLE) | (self.states.sharer[nodes] == sharer)
        return np.where(fits, free, WHOLE + 1)

    def _cost(self, size: Ask, nodes: Ints, cpu_free: Ints, before: Floats, after: Floats) -> Floats:
        """(nodes,) that hold the ask. `cpu_free`: before it; `before`, `after`: their traits."""
        states, count = self.states, len(nodes)
        tier, cpu_left = states.tier[nodes], cpu_free - size.cpu_m  # (nodes,)
        level = self.potential(  # (2 * nodes,) before and after in one go
            np.concatenate((tier, tier)),
            np.concatenate((cpu_free, cpu_left)),
            np.concatenate((before, after)),
        )
        growth = level[count:] - level[:count]
        growth += self.potential.scarcity[tier] * size.total_slots
        step = self.policy.step_slots
        cost = np.floor(growth / step) if step else growth
        cost = cost + self._imbalance(nodes, cpu_left, after)
        cost += self._emptiness(nodes, before)
        if states.islands is not None and size.gpus > 1:
            cost += self._scattered(size, nodes)
        return cost

    def _imbalance(self, nodes: Ints, cpu_free: Ints, traits: Floats) -> Floats:
        """After the ask. Only GPU left without CPU counts: CPU without GPU still serves what needs no GPU."""
        gpu_left = traits[:, -1] / self._gpu_slots[nodes]
        cpu_left = cpu_free / self._cpu_all_m[nodes]
        return self.policy.balance * np.maximum(gpu_left - cpu_left, 0.0)

    def _emptiness(self, nodes: Ints, traits: Floats) -> Floats:
        """Before it. Much the same places are common; to fill up begun nodes keeps others whole for large asks."""
        free_part: Floats = traits[:, -1] / self._gpu_slots[nodes]
        return self.policy.fullness * free_part

    def _scattered(self, size: Ask, nodes: Ints) -> Floats:
        """Steps for each island more than one that the GPUs come from."""
        if self.states.islands is None or size.gpus <= 1:
            return np.zeros(len(nodes))
        fullest_first = -np.sort(-self.states.islands[nodes], axis=1)  # (nodes, islands)
        # Enough with so many islands: those before it hold less than what is asked for.
        short = fullest_first.cumsum(axis=1) < size.gpus
        further: Floats = self.policy.islands * short.sum(axis=1)
        return further

    def _step(self, slots: int) -> Floats:
        """(slots, traits) how a node's traits change when a GPU with so many free slots takes the share."""
        if slots not in self._steps:
            of = self.potential.traits_of
            step = np.zeros_like(of)
            step[slots:] = of[: len(of) - slots] - of[slots:]
            self._steps[slots] = step
        return self._steps[slots]

    def _gpus(self, ask: Ask, node: int) -> tuple[int, ...]:
        if ask.is_share:
            return (int(self._slots_left(ask, np.array([node]), ANYBODY).argmin()),)
        idle = np.flatnonzero(self.states.slots_free[node] == WHOLE)
        return tuple(idle[: ask.gpus].tolist())
