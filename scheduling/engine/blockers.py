"""What keeps a request waiting, as data: a stable code and the numbers that say why.

Machine causes come from `causes`, each judged with all the others thought away, so each blocker stands alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scheduling.engine import decisions as codes
from scheduling.engine.backfill import Held
from scheduling.engine.causes import CAUSES, CORDON, CPU, FREE, MEMORY, POOL, READY, SELECTION, TOPOLOGY, Room
from scheduling.engine.decisions import Blocker
from scheduling.engine.fairshare import GUARANTEE, HEADROOM, LENDING, LimitHit, QuotaTree
from scheduling.engine.placement import Fleet, Ints, Shape, TierNodes, replicas_that_fit
from scheduling.engine.snapshot import ISLAND, UNITS_PER_GPU, WHOLE, Live, Request

_LISTED_NODES = 5
_LISTED_HOLDERS = 5


@dataclass(frozen=True, slots=True)
class TierAnswer:
    """The machine causes of one tier for one shape. `never`: no change of use or condition would help."""

    blockers: tuple[Blocker, ...]
    never: bool


def quota_blockers(request: Request, hits: Iterable[LimitHit]) -> tuple[Blocker, ...]:
    return tuple(
        Blocker(
            _quota_code(hit),
            {
                "team_id": hit.team_id or None,
                "tier_id": hit.tier_id,
                "used": hit.used,
                "limit": hit.limit,
                "asked": hit.asked,
                "own": hit.team_id == request.team_id,
            },
        )
        for hit in hits
    )


def _quota_code(hit: LimitHit) -> str:
    if hit.rule == GUARANTEE:
        return codes.NOT_PREEMPTIBLE
    if hit.rule == LENDING:
        return codes.LEND_LIMIT
    if hit.rule == HEADROOM:
        return codes.HEADROOM
    return codes.QUOTA_LIMIT_TOTAL if hit.tier_id is None else codes.QUOTA_LIMIT


def reservation_blocker(
    tier_id: str, company: str, ways: Iterable[Held], shares: QuotaTree
) -> tuple[Blocker, ...]:
    """For whom the free GPUs are held; work of another company stays unnamed."""
    holders = []
    for held in list(ways)[:_LISTED_HOLDERS]:
        request = held.ask.request
        known = shares.company(request.team_id) == company
        holders.append(
            {
                "team_id": request.team_id if known else None,
                "workload_id": request.workload_id if known else None,
                "name": request.name if known else None,
                "gpus": request.replicas_min * request.gpus_per_replica,
                "start_us": held.start_us,
            }
        )
    return (Blocker(codes.RESERVATION, {"tier_id": tier_id, "holders": holders}),) if holders else ()


def clip(fleet: Fleet, tier: TierNodes, shape: Shape) -> tuple[Shape, tuple[Blocker, ...]]:
    """The shape cut down to what the tier's nodes hold when empty, and a blocker for each thing cut.

    The other causes are judged by the cut shape: they are what would still stand once the request is mended.
    """
    if shape.required_level is None and _most_when_empty(fleet, tier, shape) >= shape.replicas:
        return shape, ()
    totals = {
        "gpus": tier.total,
        "cpu": fleet.cpu_total[tier.nodes],
        "memory": fleet.memory_total[tier.nodes],
    }
    asked = {"gpus": shape.gpus, "cpu": shape.cpu_m, "memory": shape.memory_mib}
    holds = {name: totals[name] >= asked[name] for name in asked}
    blockers = [
        _never_fits(fleet, tier, name, asked, totals[name]) for name in asked if not holds[name].any()
    ]
    if not (holds["gpus"] & holds["cpu"] & holds["memory"]).any():
        if not blockers:
            blockers = [_never_fits(fleet, tier, "together", asked, totals["gpus"])]
        row = int(
            np.lexsort([-np.minimum(totals[name], asked[name]) for name in ("memory", "cpu", "gpus")])[0]
        )
        cut = {name: min(asked[name], int(totals[name][row])) for name in asked}
        shape = replace(shape, gpus=max(1, cut["gpus"]), cpu_m=cut["cpu"], memory_mib=cut["memory"])
    if tier.slots_of(shape) > WHOLE:
        blockers.append(_never_fits_card(tier, shape))
        shape = replace(shape, share=0, gpu_memory_mib=0)
    by_gpu = tier.replicas_by_gpu(shape, all_ready=True, all_free=True)
    most = int(replicas_that_fit(shape, by_gpu, totals["cpu"], totals["memory"]).sum())
    if most < shape.replicas:
        blockers.append(_gang_never_fits(tier, shape, most))
        shape = shape.with_replicas(max(1, most))
    if shape.required_level is not None:
        on_islands = shape.required_level == ISLAND
        by_gpu = tier.replicas_on_islands(shape, all_ready=True, all_free=True) if on_islands else by_gpu
        fit = replicas_that_fit(shape, by_gpu, totals["cpu"], totals["memory"])
        if not fleet.topology.holds(tier, shape, fit):
            blockers.append(Blocker(codes.TOPOLOGY, _near(fleet, tier, shape, fit) | {"ever": False}))
            shape = replace(shape, required_level=None)
    return shape, tuple(blockers)


def _most_when_empty(fleet: Fleet, tier: TierNodes, shape: Shape) -> int:
    """Replicas that all nodes together would hold, each kind of node counted once."""
    (total, cpu_m, memory_mib), counts = fleet.kinds(tier)
    by_gpu = total * (WHOLE // tier.slots_of(shape)) if shape.is_share else total // shape.gpus
    return int((replicas_that_fit(shape, by_gpu, cpu_m, memory_mib) * counts).sum())


def _near(fleet: Fleet, tier: TierNodes, shape: Shape, fit: Ints) -> dict[str, Any]:
    """The largest domain's room against the need. `fit`: (tier nodes,) replicas by everything else."""
    domain, replicas = fleet.topology.largest(tier, shape, fit)
    return {
        "tier_id": tier.tier_id,
        "level": shape.required_level,
        "is_level": fleet.topology.knows(shape.required_level),
        "replicas_min": shape.replicas,
        "gpus_per_replica": shape.gpus,
        "largest_domain": domain,
        "replicas_fit": replicas,
        "replicas_in_all": int(fit.sum()),
    }


def _never_fits(fleet: Fleet, tier: TierNodes, resource: str, asked: dict[str, int], totals: Ints) -> Blocker:
    row = int(totals.argmax())
    node = fleet.nodes[int(tier.nodes[row])]
    data: dict[str, Any] = {
        "tier_id": tier.tier_id,
        "resource": resource,
        "asked": asked["gpus" if resource == "together" else resource],
        "largest": int(totals[row]),
        "node_id": node.id,
        "node_name": node.name,
    }
    if resource == "together":
        data |= {"asked_cpu_m": asked["cpu"], "asked_memory_mib": asked["memory"]}
    return Blocker(codes.NEVER_FITS_NODE, data)


def _never_fits_card(tier: TierNodes, shape: Shape) -> Blocker:
    data = {
        "tier_id": tier.tier_id,
        "resource": "share",
        "asked": shape.share,
        "asked_memory_mib": shape.gpu_memory_mib,
        "largest": WHOLE,
        "node_id": None,
        "node_name": None,
    }
    return Blocker(codes.NEVER_FITS_NODE, data)


def _gang_never_fits(tier: TierNodes, shape: Shape, most: int) -> Blocker:
    data = {
        "tier_id": tier.tier_id,
        "replicas_min": shape.replicas,
        "gpus_per_replica": shape.gpus,
        "replicas_fit": most,
        "total_free": int(tier.usable.sum()),
        "ever": False,
    }
    return Blocker(codes.GANG_SPLIT, data)


class Diagnosis:
    """Answers for the end of one pass; equal shapes share one."""

    def __init__(self, fleet: Fleet, shares: QuotaTree, live: Iterable[Live]) -> None:
        self._fleet, self._shares = fleet, shares
        self._live: dict[str, list[Live]] = {}
        for held in live:
            self._live.setdefault(held.tier_id, []).append(held)
        self._answers: dict[tuple[str, Shape, str], TierAnswer] = {}
        self._holders: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._leaving = {
            tier_id: sum(live.units for live in rows if live.state == "stopping")
            for tier_id, rows in self._live.items()
        }

    def tier_answer(self, tier_id: str, shape: Shape, team_id: str) -> TierAnswer:
        company = self._shares.company(team_id)
        key = (tier_id, shape, company)
        if key not in self._answers:
            self._answers[key] = self._work_out(self._fleet.tiers[tier_id], shape, company)
        return self._answers[key]

    def _work_out(self, tier: TierNodes, shape: Shape, company: str) -> TierAnswer:
        if not tier.nodes.size:
            data = {"tier_id": tier.tier_id, "total": 0, "ready": 0, "needed": shape.gpus * shape.replicas}
            return TierAnswer((Blocker(codes.NO_READY_GPU, data),), never=False)
        shape, never = clip(self._fleet, tier, shape)
        room = Room(self._fleet, tier, shape)
        alone, enough = room.causes()
        found = [
            self._blocker(cause, room, company, alternative=cause in enough)
            for cause in room.possible
            if cause in alone or cause in enough
        ]
        return TierAnswer(never + tuple(found), never=bool(never))

    def _blocker(self, cause: str, room: Room, company: str, *, alternative: bool) -> Blocker:
        tier, shape = room.tier, room.shape
        data: dict[str, Any] = {
            "tier_id": tier.tier_id,
            "gpus_per_replica": shape.gpus,
            "replicas_min": shape.replicas,
        }
        if alternative:
            data["alternative"] = True
        if cause == FREE:
            told = self._share_not_free if shape.is_share else self._not_free
            return told(room, company, data)
        if cause in (CPU, MEMORY):
            return Blocker(codes.CPU if cause == CPU else codes.MEMORY, data | self._short_of(cause, room))
        if cause == READY:
            counts = {"total": int(tier.total.sum()), "ready": int(tier.ready.sum())}
            return Blocker(codes.NO_READY_GPU, data | counts | {"needed": shape.gpus * shape.replicas})
        if cause == TOPOLOGY:
            near = _near(self._fleet, tier, shape, room.replicas(frozenset()))
            return Blocker(codes.TOPOLOGY, near | ({"alternative": True} if alternative else {}))
        closed = ~room.masks[cause]
        data |= {
            "node_count": int(closed.sum()),
            "gpus": int(tier.total[closed].sum()),
            "nodes": self._listed_nodes(tier, closed),
        }
        if cause == SELECTION:
            data |= {
                "node_labels": list(shape.node_labels),
                "not_labels": list(shape.not_labels),
                "not_node_count": len(shape.not_nodes),
                "left_count": int((~closed).sum()),
                "left_gpus": int(tier.total[~closed].sum()),
            }
        return Blocker(_CLOSED[cause], data)

    def _share_not_free(self, room: Room, company: str, data: dict[str, Any]) -> Blocker:
        """The largest part of a card that is free to it against the need, and whose cards the others are."""
        tier, shape = room.tier, room.shape
        open_here = self._fleet.open_nodes(tier, shape)[:, None]  # (tier nodes, 1)
        joins = tier.may_join(shape.sharer) & open_here  # (tier nodes, cards)
        has_room = (tier.slots >= tier.slots_of(shape)) & open_here & ~joins
        return Blocker(
            codes.SHARE,
            data
            | {
                "slots": tier.slots_of(shape),
                "share": shape.share or None,
                "gpu_memory_mib": shape.gpu_memory_mib or None,
                "largest_free": int(np.where(joins, tier.slots, 0).max(initial=0)),
                "replicas_fit": int(room.replicas(frozenset()).sum()),
                "shared_by_others": int(has_room.sum()),
                "holders": self.holders(tier.tier_id, company),
                "leaving": self.leaving(tier.tier_id),
            },
        )

    def _not_free(self, room: Room, company: str, data: dict[str, Any]) -> Blocker:
        tier, shape = room.tier, room.shape
        usable = tier.usable * self._fleet.open_nodes(tier, shape)  # (tier nodes,)
        row = int(usable.argmax())
        data |= {
            "total_free": int(usable.sum()),
            "largest_free": int(usable[row]),
            "largest_free_node": self._fleet.nodes[int(tier.nodes[row])].name if usable[row] else None,
            "needed": shape.gpus * shape.replicas,
            "holders": self.holders(tier.tier_id, company),
            "leaving": self.leaving(tier.tier_id),
        }
        # Judged without the other causes, like the cause itself: ending a cordon must not rename this one.
        free = usable if "alternative" in data else tier.free
        enough_in_all = int(free.max()) >= shape.gpus and int(free.sum()) >= shape.gpus * shape.replicas
        if shape.replicas == 1 or not enough_in_all:
            return Blocker(codes.NOT_ENOUGH_FREE_GPUS, data)
        return Blocker(
            codes.GANG_SPLIT, data | {"replicas_fit": int(room.replicas(_NOT_FREE).sum()), "ever": True}
        )

    def _short_of(self, cause: str, room: Room) -> dict[str, Any]:
        """What is asked, and the most that is free of it on a node that has the GPUs."""
        fleet, tier, shape = self._fleet, room.tier, room.shape
        free = (fleet.cpu_free if cause == CPU else fleet.memory_free)[tier.nodes]  # (tier nodes,)
        with_gpus = fleet.open_nodes(tier, shape) & (tier.usable >= shape.gpus)
        among = np.where(with_gpus, free, -1) if with_gpus.any() else free
        row = int(among.argmax())
        return {
            "asked": shape.cpu_m if cause == CPU else shape.memory_mib,
            "largest_free": max(0, int(free[row])),
            "node_id": fleet.nodes[int(tier.nodes[row])].id,
            "node_name": fleet.nodes[int(tier.nodes[row])].name,
            "beside_free_gpus": bool(with_gpus.any()),
            "replicas_fit": int(room.replicas(frozenset(CAUSES) - {cause}).sum()),
        }

    def _listed_nodes(
        self, tier: TierNodes, closed: "np.ndarray[Any, np.dtype[np.bool_]]"
    ) -> list[dict[str, Any]]:
        nodes = [
            (self._fleet.nodes[int(tier.nodes[row])], int(tier.total[row])) for row in np.flatnonzero(closed)
        ]
        return [
            {"node_id": node.id, "node_name": node.name, "reason": node.reason_unschedulable, "gpus": gpus}
            for node, gpus in nodes[:_LISTED_NODES]
        ]

    def leaving(self, tier_id: str) -> float:
        """GPUs of the tier whose work is stopping: they are free soon."""
        return self._leaving.get(tier_id, 0) / UNITS_PER_GPU

    def holders(self, tier_id: str, company: str) -> list[dict[str, Any]]:
        """Who holds the tier, most first. Teams of another company stay unnamed: `team_id` None."""
        key = (tier_id, company)
        if key not in self._holders:
            self._holders[key] = self._sum_holders(tier_id, company)
        return self._holders[key]

    def _sum_holders(self, tier_id: str, company: str) -> list[dict[str, Any]]:
        units: dict[str, int] = {}
        next_end: dict[str, int] = {}
        for live in self._live.get(tier_id, ()):
            team = live.team_id if self._shares.company(live.team_id) == company else ""
            units[team] = units.get(team, 0) + live.units
            if live.ends_us is not None:
                next_end[team] = min(live.ends_us, next_end.get(team, live.ends_us))
        most_first = sorted(units, key=lambda team: (-units[team], team))
        return [
            {"team_id": team or None, "gpus": units[team] / UNITS_PER_GPU, "next_end_us": next_end.get(team)}
            for team in most_first[:_LISTED_HOLDERS]
        ]


_NOT_FREE = frozenset(CAUSES) - {FREE}
_CLOSED = {CORDON: codes.NODES_CORDONED, POOL: codes.POOL_NOT_ALLOWED, SELECTION: codes.NODE_SELECTION}


def leaving_blocker(tier_id: str, gpus: int, leaving: float, workloads: int) -> Blocker:
    """Its GPUs are claimed; it starts once those who still hold `leaving` of them have gone."""
    data = {"tier_id": tier_id, "gpus": gpus, "leaving": leaving, "workloads": workloads}
    return Blocker(codes.LEAVING, data)
