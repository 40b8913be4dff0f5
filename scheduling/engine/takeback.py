"""Taking capacity back for those who are owed it: for a guarantee, a service's floor, a band, or a larger start.

The phase looks at the machines as they will be once all that leaves has left. Each who is owed something, in the
order of the line, gets the victims that lose least, if it really fits then; what they leave over serves the next. At
the end the machines are again as they are now, and whatever has to wait for others to leave has become a claim.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from scheduling.engine.choices import Choices
from scheduling.engine.claims import CLAIMED, STOPPING, settled
from scheduling.engine.decisions import STOP_CONSOLIDATE, STOP_PREEMPT, STOP_RETURN, Stop
from scheduling.engine.elastic import INFERENCE
from scheduling.engine.fairshare import GUARANTEE, LIMIT, LimitHit
from scheduling.engine.ground import Ground
from scheduling.engine.order import Ask, Lanes
from scheduling.engine.placement import Bools, Placed, Shape, TierNodes
from scheduling.engine.placings import Placing, units_of
from scheduling.engine.preemption import Search
from scheduling.engine.serving import Pass
from scheduling.engine.snapshot import Live
from scheduling.engine.topology import NO_SUCH_LEVEL
from scheduling.engine.victims import BAND, CONSOLIDATE, FLOOR, RETURN, SLACK, Victim, Victims

_REASONS = {
    RETURN: STOP_RETURN,
    SLACK: STOP_RETURN,
    FLOOR: STOP_PREEMPT,
    BAND: STOP_PREEMPT,
    CONSOLIDATE: STOP_CONSOLIDATE,
}
_KEPT_SEARCHES = 256  # by shape; the oldest go when there are more
_COMPARED = 3  # for so many victims of one start the next best choice is worked out


@dataclass(slots=True)
class Decided:
    """What the phase has decided for one ask. `why`: what its stops have in common.

    A move (work that is to start again elsewhere) is always a claim, and needs no stops but those of its gainer.
    """

    placing: Placing
    victims: list[Victim]
    why: dict[str, Any]
    next_best: dict[str, int | None]  # by workload: what the best choice without it would have lost
    is_move: bool = False


@dataclass(slots=True)
class Owed:
    """What one ask may have on one tier, and which limits have to be freed for it too."""

    ask: Ask
    tier: TierNodes
    rule: str
    over: tuple[LimitHit, ...] = ()


class TakeBack:
    """All phases of one pass. `stops` grows with each."""

    def __init__(self, current: Pass) -> None:
        self._pass = current
        self.victims = Victims(current.snapshot, current.policy, current.now_us)
        self.stops: list[Stop] = []

    def take(self, asks: Sequence[Ask], rule: str, band: int = 0) -> list[Ask]:
        """Serve those who are owed it; the rest comes back."""
        phase = Phase(self._pass, self.victims, rule, band)
        if not phase.is_anybody_owed(asks) or not (phase.pools[-1] or (rule != SLACK and self._leaving())):
            return list(asks)
        return self.run(phase, asks)

    def run(self, phase: "Phase", asks: Sequence[Ask]) -> list[Ask]:
        """Serve and write it down; the rest comes back."""
        unserved = phase.serve(asks, self._leaving())
        self._write(phase.decided)
        for ask in phase.moved:
            self._pass.reserve(ask)
        return unserved

    def _leaving(self) -> list[Live]:
        return [
            row
            for row in settled(self._rows())
            if row.state == STOPPING and (row.gpu_ids or not row.units)  # else it is not known what it leaves
        ]

    def _rows(self) -> list[Live]:
        """What runs, leaves and claims, this pass's claims included."""
        current = self._pass
        claims = [
            row for one in current.starts if one.victims is not None for row in one.live(current.now_us)
        ]
        return [*current.live, *claims]

    def _write(self, decided: Sequence[Decided]) -> None:
        if not decided:
            return
        current = self._pass
        gone = {
            (row.workload_id, row.replica) for one in decided for victim in one.victims for row in victim.live
        }
        kept: list[Live] = []
        for row in current.live:
            if (row.workload_id, row.replica) not in gone:
                kept.append(row)
            elif row.state != CLAIMED:  # a claim that has to go is gone at once
                kept.append(replace(row, state=STOPPING))
        current.live = kept
        for one in decided:
            self.stops += _stops(one)
        started = [one.placing for one in decided if one.placing.victims is None]
        current.renew_timeline(settled(self._rows()), started)
        current.clear_answers()


class Phase:
    """One rule's turn: whoever is owed something by it, in the order of the line."""

    def __init__(self, current: Pass, victims: Victims, rule: str, band: int) -> None:
        self._pass, self._victims = current, victims
        self._rule, self._band = rule, band
        self.decided: list[Decided] = []
        self.moved: list[Ask] = []  # whose reservations were in the way: to be reserved anew
        self._grounds: dict[tuple[int, str], tuple[Ground, dict[str, Choices]]] = {}
        self._searches: dict[tuple[int, str, Shape], Search] = {}
        self._hopeless: set[tuple[str, int]] = set()
        self._barred: set[tuple[str, str, int, str, bool]] = set()
        self._ahead: set[str] = set()  # reservations that are not touched
        # (nodes,) how many of those take something there
        self._kept_for = np.zeros(len(current.fleet.nodes), dtype=np.int64)
        self._domains: dict[tuple[str, int | None], list[Bools]] = {}

    @cached_property
    def pools(self) -> Sequence[Sequence[Victim]]:
        return self._victims.circles(self._rule, self._band)

    def is_anybody_owed(self, asks: Iterable[Ask]) -> bool:
        """Before any victim is looked for; equals share the answer."""
        kinds = {self._bar(ask, tier_id): (ask, tier_id) for ask in asks for tier_id in ask.tiers}
        return any(self._owed(ask, tier_id) is not None for ask, tier_id in kinds.values())

    def serve(self, asks: Sequence[Ask], leaving: Sequence[Live]) -> list[Ask]:
        current = self._pass
        ids = {ask.id for ask in asks}
        for workload_id in current.timeline.held:
            if workload_id not in ids:
                self._keep_off(workload_id)
        now = current.fleet.savepoint()
        current.fleet.release(leaving)
        self._settle_debts()
        lanes = Lanes(current.shares, current.standing, asks, self._is_dead)
        while (turn := lanes.pop()) is not None:
            ask, choice = turn
            if self._band and not current.may_use_band(ask):
                lanes.push(ask, len(ask.tiers))
            elif not self._claim(ask, ask.tiers[choice]):
                self._pass_over(ask)
                lanes.push(ask, choice + 1)
        later = self._free_later()
        current.fleet.rollback(now)
        self._take_what_is_free(later)
        return sorted(lanes.unserved, key=lambda ask: ask.id)

    def _settle_debts(self) -> None:
        """Claims may need more CPU and memory than is free now: what leaves has to pay for that first."""
        fleet = self._pass.fleet
        held: dict[int, list[int]] = {}
        claimed: dict[int, list[int]] = {}
        for row in self._pass.snapshot.live:
            node = fleet.node_index.get(row.node_id)
            if node is not None:
                sums = (claimed if row.state == CLAIMED else held).setdefault(node, [0, 0])
                sums[0] += row.cpu_m
                sums[1] += row.memory_mib
        for node, (cpu_m, memory_mib) in claimed.items():
            used = held.get(node, [0, 0])
            cpu_short = max(0, cpu_m - (int(fleet.cpu_total[node]) - used[0]))
            memory_short = max(0, memory_mib - (int(fleet.memory_total[node]) - used[1]))
            fleet.leave_free(
                node, int(fleet.cpu_free[node]) - cpu_short, int(fleet.memory_free[node]) - memory_short
            )

    def _free_later(self) -> dict[int, tuple[int, int]]:
        """(CPU, memory) of the nodes of all decided, once everything has happened."""
        fleet = self._pass.fleet
        nodes = {fleet.node_index[r.node_id] for one in self.decided for r in one.placing.placed.replicas}
        return {node: (int(fleet.cpu_free[node]), int(fleet.memory_free[node])) for node in sorted(nodes)}

    def _take_what_is_free(self, later: dict[int, tuple[int, int]]) -> None:
        """Start whom nobody has to leave for; of what the others claim, take what is free now."""
        fleet = self._pass.fleet
        left_by: dict[str, str] = {}  # GPU → who leaves it
        for one in self.decided:
            left_by |= {
                gpu_id: v.workload_id for v in one.victims for row in v.live for gpu_id in row.gpu_ids
            }
        for one in self.decided:
            if one.is_move:
                continue
            placing, replicas = one.placing, one.placing.placed.replicas
            others = [left_by[gpu_id] for r in replicas for gpu_id in r.gpu_ids if gpu_id in left_by]
            # What another's victims leave over: their stop is needed by this claim too.
            placing.victims = tuple(dict.fromkeys((*(placing.victims or ()), *others)))
            if not placing.victims and fleet.is_free(replicas):
                placing.victims = None
        for one in self.decided:
            is_start = one.placing.victims is None
            sharer = one.placing.ask.shape.sharer
            for replica in one.placing.placed.replicas:
                fleet.hold(replica, sharer, beside=is_start)
        for node, (cpu_m, memory_mib) in later.items():
            fleet.leave_free(
                node, min(int(fleet.cpu_free[node]), cpu_m), min(int(fleet.memory_free[node]), memory_mib)
            )

    # --- Who is owed what -----------------------------------------------------------------------------

    def _is_dead(self, ask: Ask, tier_id: str) -> bool:
        is_dead = (
            (tier_id, ask.shape_no) in self._hopeless
            or self._bar(ask, tier_id) in self._barred
            or self._pass.gates.is_capped(ask, tier_id)
        )
        if is_dead:
            self._pass_over(ask)
        return is_dead

    def _pass_over(self, ask: Ask) -> None:
        """It keeps its reservation, and those behind keep off it."""
        if ask.id in self._pass.timeline.held and ask.id not in self._ahead:
            self._keep_off(ask.id)

    def _keep_off(self, workload_id: str) -> None:
        self._ahead.add(workload_id)
        self._kept_for[self._pass.timeline.held[workload_id].nodes] += 1

    def _bar(self, ask: Ask, tier_id: str) -> tuple[str, str, int, str, bool]:
        return (ask.request.team_id, tier_id, ask.units_on(tier_id), ask.request.kind, ask.bound)

    def _owed(self, ask: Ask, tier_id: str) -> Owed | None:
        """What the rule gives it. A floor may also push out what its own team has borrowed."""
        shares, team_id, units = self._pass.shares, ask.request.team_id, ask.units_on(tier_id)
        tier = self._pass.fleet.tiers[tier_id]
        is_within = shares.within_guarantee(team_id, tier_id, units)
        if self._rule == SLACK:
            return None if self._pass.is_barred(ask, tier_id) else Owed(ask, tier, SLACK)
        is_floor = ask.request.kind == INFERENCE
        over = [hit for hit in shares.limit_hits(team_id, tier_id, units) if hit.rule == LIMIT]
        if self._rule == BAND:
            others = shares.hits(team_id, tier_id, units, bound=ask.bound)
            return None if len(others) > len(over) else Owed(ask, tier, BAND, tuple(over))
        if is_within:
            if any(hit.rule == GUARANTEE for hit in shares.hits(team_id, tier_id, units, bound=ask.bound)):
                return None
            return Owed(ask, tier, FLOOR if is_floor else RETURN, tuple(over))
        share, used = shares.share(team_id, tier_id), shares.share_used(team_id, tier_id)
        if not is_floor or units > share:
            return None
        giver = shares.guarantor(team_id, tier_id)
        over.append(LimitHit(giver, tier_id, used, share, units, GUARANTEE))
        return Owed(ask, tier, FLOOR, tuple(over))

    # --- One claim ------------------------------------------------------------------------------------

    def _claim(self, ask: Ask, tier_id: str) -> bool:
        if self._is_dead(ask, tier_id):
            return False
        owed = self._owed(ask, tier_id)
        if owed is None:
            self._barred.add(self._bar(ask, tier_id))
            return False
        allowed = self._unreserved(ask, tier_id)
        for level in range(len(self.pools)):
            search = self._search(level, owed.tier, ask.shape)
            if int(search.most().sum()) < ask.shape.replicas:
                if level + 1 == len(self.pools):
                    self._hopeless.add((tier_id, ask.shape_no))
                continue
            given = self._cover(owed, level)
            if given is not None and self._claim_with(owed, search, allowed, given, level):
                return True
        return False

    def _search(self, level: int, tier: TierNodes, shape: Shape) -> Search:
        key = (level, tier.tier_id, shape if shape.required_level else replace(shape, replicas=1))
        if key not in self._searches:
            if len(self._searches) >= _KEPT_SEARCHES:
                del self._searches[next(iter(self._searches))]
            self._searches[key] = Search(*self._ground(level, tier), shape)
        return self._searches[key]

    def _ground(self, level: int, tier: TierNodes) -> tuple[Ground, dict[str, Choices]]:
        key = (level, tier.tier_id)
        if key not in self._grounds:
            pool = [victim for victim in self.pools[level] if not self._victims.is_gone(victim)]
            self._grounds[key] = (Ground(self._pass.fleet, tier, pool), {})
        return self._grounds[key]

    def _unreserved(self, ask: Ask, tier_id: str) -> Bools:
        """(tier nodes,) where nothing is reserved for those ahead in the line."""
        fleet, tier = self._pass.fleet, self._pass.fleet.tiers[tier_id]
        kept_for, own = self._kept_for, self._pass.timeline.held.get(ask.id)
        if own is not None and ask.id in self._ahead:
            kept_for = kept_for.copy()
            kept_for[own.nodes] -= 1
        allowed: Bools = (kept_for[tier.nodes] == 0) & fleet.open_nodes(tier, ask.shape)
        return allowed

    def _cover(self, owed: Owed, level: int) -> frozenset[Victim] | None:
        """Who has to leave so that the limits hold, by loss for each unit; None if nobody could."""
        given: list[Victim] = []
        for hit in owed.over:
            need = hit.used + hit.asked - hit.limit - sum(self._counted(v, hit) for v in given)
            able = [
                v
                for v in self.pools[level]
                if v not in given and not self._victims.is_gone(v) and self._counted(v, hit)
            ]
            able.sort(key=lambda v: (v.weight / self._counted(v, hit), v.workload_id, v.replica or 0))
            for victim in able:
                if need <= 0:
                    break
                given.append(victim)
                need -= self._counted(victim, hit)
            if need > 0:
                return None
        for victim in sorted(given, key=lambda v: -v.weight):
            without = [other for other in given if other is not victim]
            if all(
                sum(self._counted(v, h) for v in without) >= h.used + h.asked - h.limit for h in owed.over
            ):
                given = without
        return frozenset(given)

    def _counted(self, victim: Victim, hit: LimitHit) -> int:
        if hit.rule == GUARANTEE and victim.is_surplus:
            return 0  # it never counted against the guarantee
        shares = self._pass.shares
        return sum(row.units for row in victim.live if shares.counts_against(row, hit))

    def _claim_with(
        self, owed: Owed, search: Search, allowed: Bools, given: frozenset[Victim], level: int
    ) -> bool:
        ask = owed.ask
        found = self._best_domain(owed, search, allowed, given)
        if found is None:
            return False
        mask, chosen = found
        victims = self._victims.with_their_surplus([*chosen, *_sorted(given)])
        next_best = self._next_best(owed, search, mask, given, victims)
        fleet = self._pass.fleet
        before = fleet.savepoint()
        for victim in victims:
            fleet.release(victim.live)
        placed = fleet.place(owed.tier, ask.shape, mask * ask.shape.replicas)
        if placed is None:
            fleet.rollback(before)
            return False
        self._decide(owed, placed, victims, len(self.pools[level]), next_best)
        return True

    def _next_best(
        self, owed: Owed, search: Search, mask: Bools, given: frozenset[Victim], victims: Sequence[Victim]
    ) -> dict[str, int | None]:
        """What the best choice without each whole victim would lose; only for few of them, it takes time."""
        whole = [victim for victim in victims if not victim.is_surplus and victim not in given]
        if len(whole) > _COMPARED:
            return {}
        found: dict[str, int | None] = {}
        for victim in whole:
            others = search.cheapest(owed.ask.shape.replicas, mask, given, frozenset((victim,)))
            total = None if others is None else sum(other.lost for other in (*others, *given))
            found[victim.workload_id] = total
        return found

    def _best_domain(
        self,
        owed: Owed,
        search: Search,
        allowed: Bools,
        given: frozenset[Victim],
        banned: frozenset[Victim] = frozenset(),
    ) -> tuple[Bools, tuple[Victim, ...]] | None:
        """In the domain of the level that it insists on where least is lost; else anywhere."""
        best: tuple[int, Bools, tuple[Victim, ...]] | None = None
        for domain in self._domains_of(owed.tier, owed.ask.shape):
            mask = allowed & domain
            chosen = search.cheapest(owed.ask.shape.replicas, mask, given, banned)
            if chosen is None:
                continue
            weight = sum(victim.weight for victim in chosen)
            if best is None or weight < best[0]:
                best = (weight, mask, chosen)
        return None if best is None else best[1:]

    def _domains_of(self, tier: TierNodes, shape: Shape) -> list[Bools]:
        """(tier nodes,) for each domain that could hold all of it, in order of name; all nodes if none need be one."""
        topology = self._pass.fleet.topology
        within = topology.wish(tier, shape).within
        key = (tier.tier_id, within)
        if key not in self._domains:
            if within is None:
                self._domains[key] = [np.ones(tier.nodes.size, dtype=np.bool_)]
            elif within == NO_SUCH_LEVEL:
                self._domains[key] = []
            else:
                ids = topology.domains(tier)[within]
                self._domains[key] = [ids == domain for domain in np.unique(ids)]
        return self._domains[key]

    # --- Writing it down ------------------------------------------------------------------------------

    def _decide(
        self,
        owed: Owed,
        placed: Placed,
        victims: list[Victim],
        candidates: int,
        next_best: dict[str, int | None],
    ) -> None:
        current = self._pass
        for victim in victims:
            self._victims.take(victim)
            for row in victim.live:
                current.shares.book_live(row, is_surplus=victim.is_surplus, gone=True)
                current.bands.book(row.team_id, row.band, -row.units)
        self._gain(owed, placed, victims, candidates, next_best)
        self._clear_the_way(placed)
        self._forget(placed, victims)

    def _gain(
        self,
        owed: Owed,
        placed: Placed,
        victims: list[Victim],
        candidates: int,
        next_best: dict[str, int | None],
    ) -> None:
        current, ask, tier_id = self._pass, owed.ask, owed.tier.tier_id
        within = current.shares.within_guarantee(ask.request.team_id, tier_id, ask.units_on(tier_id))
        band = self._band if self._rule == BAND else 0
        if ask.id in self._ahead:
            self._ahead.remove(ask.id)
            self._kept_for[current.timeline.held[ask.id].nodes] -= 1
        placing = current.decide(ask, tier_id, placed, borrowed=not within, band=band)
        placing.victims = tuple(dict.fromkeys(victim.workload_id for victim in victims))
        why = {
            "rule": owed.rule,
            "gained_by_team": ask.request.team_id,
            "gained_by_workload": ask.id,
            "evicted_units": sum(row.units for victim in victims for row in victim.live),
            "requested_units": units_of(placed.replicas),
            "candidates": candidates,
        }
        if victims:
            lost = sum(victim.lost for victim in victims)
            kept = ("rule", "evicted_units", "candidates")
            placing.why_now["taken_back"] = {key: why[key] for key in kept} | {"lost_gpu_s": lost}
        self.decided.append(Decided(placing, victims, why, next_best))

    def _forget(self, placed: Placed, victims: Sequence[Victim]) -> None:
        """These nodes look different now."""
        fleet = self._pass.fleet
        names = [row.node_id for victim in victims for row in victim.live]
        names += [replica.node_id for replica in placed.replicas]
        nodes = [fleet.node_index[name] for name in dict.fromkeys(names) if name in fleet.node_index]
        for (_, tier_id), (ground, _) in self._grounds.items():
            row_of = fleet.tiers[tier_id].row_of
            ground.forget([row_of[node] for node in nodes if node in row_of], victims)

    def _clear_the_way(self, placed: Placed) -> None:
        """Reservations of those behind in the line, on nodes that are taken now, are to be made anew."""
        current = self._pass
        taken = {current.fleet.node_index[replica.node_id] for replica in placed.replicas}
        for workload_id, held in list(current.timeline.held.items()):
            if workload_id not in self._ahead and not taken.isdisjoint(held.nodes.tolist()):
                current.cancel_reservation(held.ask)
                self.moved.append(held.ask)


def _sorted(victims: Iterable[Victim]) -> list[Victim]:
    return sorted(victims, key=lambda victim: (victim.workload_id, victim.replica or 0))


def _stops(one: Decided) -> list[Stop]:
    """One for each workload, with all that explains it."""
    by_workload: dict[str, list[Victim]] = {}
    for victim in one.victims:
        by_workload.setdefault(victim.workload_id, []).append(victim)
    found = []
    for workload_id, parts in by_workload.items():
        is_whole = any(not part.is_surplus for part in parts)
        indexes = sorted((part.replica for part in parts if part.replica is not None), reverse=True)
        why = one.why | {
            "lost_gpu_s": sum(part.lost_gpu_s for part in parts),
            "restart_gpu_s": sum(part.restart_gpu_s for part in parts),
            "checkpoint_age_s": next((part.checkpoint_age_s for part in parts if not part.is_surplus), None),
            "why_this": {"next_best_lost_gpu_s": one.next_best.get(workload_id)},
        }
        reason, gains = _REASONS[one.why["rule"]], one.placing.ask.id
        found.append(Stop(workload_id, reason, gains, None if is_whole else tuple(indexes), why))
    return found
