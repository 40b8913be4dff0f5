"""Gangs of more than one size or tier: several tiers where none holds all, more replicas where nobody waits."""

from collections.abc import Iterable
from dataclasses import dataclass

from scheduling.engine.decisions import Grow, ReplicaPlacement
from scheduling.engine.elastic import INFERENCE, is_elastic
from scheduling.engine.order import Ask
from scheduling.engine.placement import Ints, Placed, renumbered
from scheduling.engine.placings import Placing, units_of
from scheduling.engine.serving import Pass
from scheduling.engine.snapshot import Live, Request

# --- Several tiers -----------------------------------------------------------------------------------------


def start_mixed(current: Pass, asks: list[Ask]) -> list[Ask]:
    """Gangs that accept it and that no single tier holds start over several tiers; the rest comes back."""
    in_order = sorted(asks, key=lambda ask: ask.order)
    return [ask for ask in in_order if not (ask.request.mix_tiers and _try_mixed(current, ask))]


def _try_mixed(current: Pass, ask: Ask) -> bool:
    request, shares = ask.request, current.shares
    if current.gates.is_capped(ask):
        return False
    tiers = [
        (
            current.fleet.tiers[tier_id],
            _most_replicas(current, ask, tier_id),
            _unreserved_nodes(current, ask, tier_id),
        )
        for tier_id in ask.tiers
    ]
    total = shares.total_room(request.team_id)
    if total is not None and total < ask.most_units:
        return False
    placed = current.fleet.place_mixed(tiers, ask.shape)
    if placed is None:
        return False
    within = all(
        shares.within_guarantee(request.team_id, tier_id, units_of(_on(placed.replicas, tier_id)))
        for tier_id in {replica.tier_id for replica in placed.replicas}
    )
    current.start(ask, placed.replicas[0].tier_id, placed, borrowed=not within)
    return True


def _on(replicas: Iterable[ReplicaPlacement], tier_id: str) -> list[ReplicaPlacement]:
    return [replica for replica in replicas if replica.tier_id == tier_id]


def _most_replicas(current: Pass, ask: Ask, tier_id: str) -> int:
    """How many of its replicas the quotas allow on this tier."""
    shares, team_id = current.shares, ask.request.team_id
    each = current.fleet.tiers[tier_id].units_each(ask.shape)
    rooms = [shares.limit_room(team_id, tier_id)]
    inside = shares.share(team_id, tier_id) - shares.share_used(team_id, tier_id)
    lent = shares.lend_room(tier_id, ask.request.kind)
    if ask.bound:
        rooms.append(inside)
    elif lent is not None:
        rooms.append(max(lent, inside) if inside >= ask.units_on(tier_id) else lent)
    return min((max(0, room) // each for room in rooms if room is not None), default=ask.shape.replicas)


def _unreserved_nodes(current: Pass, ask: Ask, tier_id: str) -> Ints | None:
    """Nodes on which nothing is reserved: on one of several tiers, a count for each tier would not be safe."""
    room = current.timeline.room(tier_id, ask.shape, ask.hold_us)
    return None if room is None else room * current.timeline.tier(tier_id).unreserved_nodes()


# --- More replicas -----------------------------------------------------------------------------------------


def grow_starts(current: Pass, waited_for: set[str]) -> None:
    """More than `replicas_min`, but only of tiers that nobody waits for."""
    for start in current.starts:
        request = start.ask.request
        extra = request.replicas_max - request.replicas_min
        if extra <= 0 or start.victims is not None or start.tier_id in waited_for:
            continue
        may_leave = is_elastic(request) and _may_shrink(request)
        nodes = sorted({current.fleet.node_index[r.node_id] for r in start.placed.replicas})
        added = _more(current, start.ask, start.tier_id, extra, nodes, is_surplus=may_leave, by=start)
        if added:
            renewed = renumbered(added, len(start.placed.replicas))
            start.placed = Placed((*start.placed.replicas, *renewed), start.placed.why)
            start.why_now["asked"] += units_of(added)


def grow_running(current: Pass, waited_for: set[str]) -> tuple[Grow, ...]:
    """Elastic work and services take what nobody waits for: services first, then by priority and age.

    They take turns, each time an equal part of what is free.
    """
    growing = _growing(current, waited_for)
    grown: dict[str, list[ReplicaPlacement]] = {}
    while growing:
        count, again = len(growing), []
        for one in growing:
            request, tier = one.ask.request, current.fleet.tiers[one.tier_id]
            part = max(1, int(tier.usable.sum()) // (one.ask.shape.gpus * count))
            extra = min(part, request.replicas_max - len(one.indexes))
            added = _more(current, one.ask, one.tier_id, extra, one.nodes, is_surplus=True)
            unused = [index for index in range(request.replicas_max) if index not in one.indexes]
            for index, replica in zip(unused, added, strict=False):
                grown.setdefault(one.ask.id, []).extend(renumbered([replica], index))
                one.indexes.add(index)
            if added and len(one.indexes) < request.replicas_max:
                again.append(one)
        growing = again
    return tuple(
        Grow(workload_id, tuple(replicas), {"rule": "slack", "units": units_of(replicas)})
        for workload_id, replicas in grown.items()
    )


def _may_shrink(request: Request) -> bool:
    return request.preemptible or request.kind == INFERENCE


@dataclass(slots=True)
class _Growing:
    """Elastic work on one tier, with the indexes of its replicas and the nodes (rows of the fleet) they are on."""

    ask: Ask
    tier_id: str
    indexes: set[int]
    nodes: list[int]


def _growing(current: Pass, waited_for: set[str]) -> list[_Growing]:
    """All that runs and may grow, in order of their turns."""
    states = {row.workload_id: row.state for row in current.snapshot.running}
    could = {
        request.workload_id: request
        for request in current.snapshot.placed
        if is_elastic(request)
        and _may_shrink(request)
        and states.get(request.workload_id) in ("starting", "running")
    }
    rows: dict[str, list[Live]] = {}
    for row in current.live:
        if row.workload_id in could:
            rows.setdefault(row.workload_id, []).append(row)
    found = []
    for workload_id, held in rows.items():
        tiers, indexes = {row.tier_id for row in held}, {row.replica for row in held}
        is_settled = all(row.state == "held" for row in held) and len(tiers) == 1
        if is_settled and not tiers & waited_for and len(indexes) < could[workload_id].replicas_max:
            nodes = sorted({current.fleet.node_index[row.node_id] for row in held})
            found.append(_Growing(current.asks_of.ask(could[workload_id]), tiers.pop(), indexes, nodes))
    return sorted(found, key=lambda one: (one.ask.request.kind != INFERENCE, *one.ask.order))


def _more(
    current: Pass,
    ask: Ask,
    tier_id: str,
    extra: int,
    nodes: list[int],
    *,
    is_surplus: bool,
    by: Placing | None = None,
) -> tuple[ReplicaPlacement, ...]:
    """Up to `extra` replicas more, within limits, what is lent and the domain of `nodes`, beside all reservations."""
    tier, fleet = current.fleet.tiers[tier_id], current.fleet
    each = tier.units_each(ask.shape)
    rooms = _rooms(current, ask, tier_id, is_surplus=is_surplus, by=by)
    by_quota = min((max(0, room) // each for room in rooms if room is not None), default=extra)
    fit = fleet.fit_per_node(tier, ask.shape)
    room = current.timeline.room(tier_id, ask.shape, ask.hold_us)
    fit = fit if room is None else fit.clip(max=room)
    near = fleet.topology.beside(tier, ask.shape, nodes)
    fit = fit if near is None else fit * near
    count = min(extra, by_quota, int(fit.sum()))
    more = fleet.place(tier, ask.shape.with_replicas(count), fit) if count > 0 else None
    if more is None:
        return ()
    current.book(ask, more.replicas, is_surplus=is_surplus)
    current.timeline.start(ask, more.replicas)
    return more.replicas


def _rooms(
    current: Pass, ask: Ask, tier_id: str, *, is_surplus: bool, by: Placing | None
) -> list[int | None]:
    """Units that each rule leaves. What could not leave again must not turn a guaranteed start into a borrowed one."""
    shares, team_id = current.shares, ask.request.team_id
    rooms = [shares.limit_room(team_id, tier_id), current.gates.room(ask.request)]
    if is_surplus or (by is not None and by.borrowed):
        rooms.append(shares.lend_room(tier_id, ask.request.kind))
    else:
        rooms.append(shares.share(team_id, tier_id) - shares.share_used(team_id, tier_id))
    if by is not None and by.band:
        rooms.append(current.bands.room(team_id, by.band))
    return rooms
