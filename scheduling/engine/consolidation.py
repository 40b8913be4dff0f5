"""Moving work together: GPUs are free, but not where a larger start needs them.

The last phase of a pass. One start of those that wait gets room, if what runs there is worth moving and every moved
workload has a place of its own in the same plan, on what is free now or left by the others that move.
"""

from collections.abc import Sequence

from scheduling.engine.order import Ask
from scheduling.engine.placement import Bools, Placed, TierNodes
from scheduling.engine.preemption import Search
from scheduling.engine.serving import Pass
from scheduling.engine.snapshot import UNITS_PER_GPU
from scheduling.engine.takeback import Decided, Owed, Phase, TakeBack
from scheduling.engine.victims import CONSOLIDATE, Victim, Victims

_MOST_TRIED = 8  # starts in a pass for which a move is worked out
_MOST_CHOICES = 8  # sets of movers for each of them

_Mover = tuple[Victim, Ask]


def consolidate(current: Pass, back: TakeBack) -> None:
    """Nothing moves in a pass that takes work back: what that leaves over is looked at first, by the next pass."""
    if not current.policy.consolidation_movers or back.stops:
        return
    scattered = _Scattered(current)
    asks = scattered.asks()
    movable = _movable(current, back.victims) if asks else {}
    if movable:
        back.run(_Consolidation(current, back.victims, movable, scattered), asks)


class _Scattered:
    """Where enough GPUs of a tier are free, but not so that the start fits; equal shapes share the answer."""

    def __init__(self, current: Pass) -> None:
        self._pass = current
        self._free = {tier.tier_id: int(tier.usable.sum()) for tier in current.fleet.tiers.values()}
        self._known: dict[tuple[str, int], bool] = {}

    def asks(self) -> list[Ask]:
        if max(self._free.values(), default=0) < 2:
            return []
        decided = {placing.ask.id for placing in self._pass.starts}
        return [
            ask
            for ask in self._pass.ready
            if ask.id not in decided and any(self.holds(ask, tier_id) for tier_id in ask.tiers)
        ]

    def holds(self, ask: Ask, tier_id: str) -> bool:
        key = (tier_id, ask.shape_no)
        if key not in self._known:
            self._known[key] = self._look(ask, tier_id)
        return self._known[key]

    def _look(self, ask: Ask, tier_id: str) -> bool:
        fleet, shape = self._pass.fleet, ask.shape
        tier, need = fleet.tiers[tier_id], shape.gpus * shape.replicas
        if shape.is_share or not 1 < need <= self._free[tier_id] or self._pass.is_never(ask, tier_id):
            return False
        is_enough = int(tier.usable[fleet.open_nodes(tier, shape)].sum()) >= need
        return is_enough and not fleet.fits_now(tier, shape)


def _movable(current: Pass, victims: Victims) -> dict[Victim, Ask]:
    """Whole workloads on one tier with just their least replicas, and how each asks for its new place."""
    placed = {request.workload_id: request for request in current.snapshot.placed}
    (movable,) = victims.circles(CONSOLIDATE)
    found = {}
    for victim in movable:
        request = placed[victim.workload_id]
        tiers = {row.tier_id for row in victim.live}
        is_least = len(victim.live) == request.replicas_min and victim.units == sum(
            row.units for row in victim.live
        )
        if is_least and len(tiers) == 1 and tiers.issubset(request.tiers):
            found[victim] = current.asks_of.ask(request)
    return found


class _Consolidation(Phase):
    """At most one start gains; the plan is stored or dropped with all its moves."""

    def __init__(
        self, current: Pass, victims: Victims, movable: dict[Victim, Ask], scattered: _Scattered
    ) -> None:
        super().__init__(current, victims, CONSOLIDATE, 0)
        self.pools = [list(movable)]
        self._movable, self._scattered = movable, scattered
        self._tried = 0
        self._refused: set[tuple[str, int, int]] = set()

    def _is_dead(self, ask: Ask, tier_id: str) -> bool:
        if self.decided or self._tried >= _MOST_TRIED:
            return True
        is_refused = (tier_id, ask.shape_no, ask.run_us) in self._refused
        if is_refused or not self._scattered.holds(ask, tier_id):
            self._pass_over(ask)
            return True
        return super()._is_dead(ask, tier_id)

    def _owed(self, ask: Ask, tier_id: str) -> Owed | None:
        is_barred = self._pass.is_barred(ask, tier_id)
        return None if is_barred else Owed(ask, self._pass.fleet.tiers[tier_id], CONSOLIDATE)

    def _claim_with(
        self, owed: Owed, search: Search, allowed: Bools, given: frozenset[Victim], level: int
    ) -> bool:
        """The cheapest set of movers of which each finds a place; who finds none stays, and the next set is tried."""
        self._tried += 1
        staying: frozenset[Victim] = given
        for _ in range(_MOST_CHOICES):
            found = self._best_domain(owed, search, allowed, frozenset(), staying)
            if found is None or not self._is_worth_it(owed, found[1]):
                break
            mask, chosen = found
            homeless = self._move(owed, mask, chosen)
            if homeless is None:
                return True
            staying |= homeless
        self._refused.add((owed.tier.tier_id, owed.ask.shape_no, owed.ask.run_us))
        return False

    def _is_worth_it(self, owed: Owed, movers: Sequence[Victim]) -> bool:
        """GPUs unlocked × expected run, at most the cap, against what moving loses. No movers: it waits for others."""
        policy = self._pass.policy
        run_s = min(owed.ask.run_us // 1_000_000, policy.consolidation_cap_s)
        unlocked = owed.ask.units_on(owed.tier.tier_id) * run_s
        return (
            0 < len(movers) <= policy.consolidation_movers
            and unlocked > UNITS_PER_GPU * sum(mover.lost for mover in movers)
            and self._victims.all_in_budget(movers)
        )

    def _move(self, owed: Owed, mask: Bools, chosen: Sequence[Victim]) -> frozenset[Victim] | None:
        """None: it is decided. Else nothing has changed, and these find no place."""
        fleet, ask = self._pass.fleet, owed.ask
        before = fleet.savepoint()
        for victim in chosen:
            fleet.release(victim.live)
        placed = fleet.place(owed.tier, ask.shape, mask * ask.shape.replicas)
        if placed is None:
            fleet.rollback(before)
            return frozenset(chosen)
        homes: list[tuple[_Mover, Placed]] = []
        for victim in sorted(chosen, key=lambda victim: (-victim.units, victim.workload_id)):
            home = self._place_mover(victim)
            if home is None:
                fleet.rollback(before)
                return frozenset((victim,))
            homes.append(((victim, self._movable[victim]), home))
        self._decide_moves(owed, placed, homes, mask)
        return None

    def _place_mover(self, victim: Victim) -> Placed | None:
        """On its own tier, where quotas and prices stay as they are, and off what is reserved."""
        mover, tier = self._movable[victim], self._tier_of(victim)
        return self._pass.fleet.place(
            tier, mover.shape, self._unreserved(mover, tier.tier_id) * mover.shape.replicas
        )

    def _tier_of(self, victim: Victim) -> TierNodes:
        return self._pass.fleet.tiers[victim.live[0].tier_id]

    def _decide_moves(
        self, owed: Owed, placed: Placed, homes: Sequence[tuple[_Mover, Placed]], mask: Bools
    ) -> None:
        """The movers first, so that the gainer is judged with all that they use."""
        current, movers = self._pass, [victim for (victim, _), _ in homes]
        for (victim, mover), home in homes:
            self._victims.take(victim)
            for row in victim.live:
                current.shares.book_live(row, gone=True)
                current.bands.book(row.team_id, row.band, -row.units)
            current.gates.leave(mover.request, victim.units)
            placing = current.decide(
                mover, self._tier_of(victim).tier_id, home, borrowed=victim.is_borrowed, band=victim.band
            )
            placing.victims = ()
            self.decided.append(Decided(placing, [], {}, {}, is_move=True))
        self._gain(owed, placed, movers, len(self._movable), {})
        for one in (placed, *(home for _, home in homes)):
            self._clear_the_way(one)
