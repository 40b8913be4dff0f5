"""Reserved starts as people ask for them: which GPUs of which nodes, who must leave these, and when, for one reader.

Work that the reader may not see is another team's: without name, team or owner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Exists, OuterRef

from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.core.money import SLOTS_PER_GPU
from gpuyard.fleet.models import Condition, Gpu, GpuCondition, Tier
from scheduling.ends import ends_at
from scheduling.engine.decisions import Policy
from scheduling.engine.endings import expected_end
from scheduling.engine.snapshot import Live
from scheduling.models import Allocation, Workload
from scheduling.moments import from_us, to_us
from scheduling.policies import policy_current
from scheduling.specs import request_of
from scheduling.states import AllocationState, WorkloadState
from scheduling.supply import live_allocations
from scheduling.visibility import workloads_visible_q

MOST_RESERVED = 500  # reserved starts that are looked at, the first in time first
_SOON = timedelta(minutes=2)  # what runs over its limit is expected to be gone within a minute or two


@dataclass(frozen=True)
class Stay:
    """Work on some GPUs from then (None: it is there) until then (None: nobody knows).

    `workload` is None where the reader may not see it, or where several share the card.
    """

    key: UUID | None  # of the workload, also where that is hidden; None where several share
    workload: Workload | None
    count: int  # of workloads
    since: datetime | None
    until: datetime | None
    is_estimate: bool = False
    is_reserved: bool = False
    is_leaving: bool = False


@dataclass(frozen=True)
class Lane:
    """GPUs of one node that fare alike. `of`: these are so many of the GPUs; which ones is not decided yet."""

    node_name: str
    tier: Tier
    gpus: tuple[int, ...]  # indexes
    count: int
    stays: tuple[Stay, ...] = ()

    def is_free_by(self, moment: datetime) -> bool:
        return not self.stays or (self.until is not None and self.until <= moment)

    @property
    def until(self) -> datetime | None:
        """When its last stay ends; None: nobody knows, or there is none."""
        return self.stays[-1].until if self.stays else None


@dataclass(frozen=True)
class ReservedStarts:
    """The GPUs of the asked starts, node by node. `more_nodes`: reserved for them too, but left out."""

    lanes: tuple[Lane, ...] = ()
    more_nodes: int = 0


def reserved_starts(actor: User, waiting: Iterable[Workload], *, most_nodes: int) -> ReservedStarts:
    """For these waiting workloads, with their verdicts; those without a reserved start are passed over.

    In at most seven queries, whatever their number.
    """
    asked = sorted((one for one in waiting if _is_reserved(one)), key=_order)
    if not asked:
        return ReservedStarts()
    places = list(dict.fromkeys(place for one in asked for place in _takes(one)))
    shown = places[:most_nodes]
    lanes = _lanes(actor, shown)
    for one in _all_reserved(actor, asked):
        for place, count in _cards(one, lanes).items():
            lanes[place] = _with_start(lanes[place], one, count)
    own = {one.pk for one in asked}
    drawn = (lane for place in shown for lane in lanes[place])
    return ReservedStarts(
        tuple(lane for lane in drawn if any(stay.is_reserved and stay.key in own for stay in lane.stays)),
        len(places) - len(shown),
    )


_Place = tuple[UUID, UUID]  # tier and node


def _is_reserved(workload: Workload) -> bool:
    verdict = getattr(workload, "verdict", None)
    return verdict is not None and verdict.reserved is not None and verdict.eta is not None


def _order(workload: Workload) -> tuple[datetime, str]:
    return workload.verdict.eta or workload.created_at, workload.public_id


def _takes(workload: Workload) -> dict[_Place, int]:
    """Where how many replicas would start."""
    reserved = workload.verdict.reserved
    assert reserved is not None, "only those with a reserved start are asked"
    return {(UUID(reserved["tier"]), UUID(node)): replicas for node, replicas in reserved["nodes"]}


def _all_reserved(actor: User, asked: Sequence[Workload]) -> list[tuple[Workload, bool]]:
    """Also those of others, which may stand on the same nodes; whether the reader may see each."""
    found = (
        Workload.objects.filter(state=WorkloadState.WAITING, verdict__reserved__isnull=False)
        .exclude(pk__in=[one.pk for one in asked])
        .select_related("verdict", "spec", "team")
        .order_by("verdict__eta")[:MOST_RESERVED]
    )
    every = sorted([*asked, *(one for one in found if _is_reserved(one))], key=_order)
    seen = _seen(actor, {one.pk for one in every})
    return [(one, one.pk in seen) for one in every]


def _seen(actor: User, keys: set[UUID]) -> set[UUID]:
    visible = Workload.objects.filter(workloads_visible_q(actor), pk__in=keys).order_by()
    return set(visible.values_list("pk", flat=True))


def _cards(known: tuple[Workload, bool], lanes: Mapping[_Place, list[Lane]]) -> dict[_Place, int]:
    """Place → cards that it takes there, of the places that are drawn."""
    workload = known[0]
    assert workload.spec is not None
    request, found = request_of(workload.spec.document), {}
    for place, replicas in _takes(workload).items():
        if not lanes.get(place):
            continue
        if request.is_part:
            slots = min(request.slots_on(lanes[place][0].tier.memory_mib), SLOTS_PER_GPU)
            found[place] = -(-replicas // (SLOTS_PER_GPU // slots))
        else:
            found[place] = replicas * request.gpus_per_replica
    return found


def _with_start(lanes: list[Lane], known: tuple[Workload, bool], count: int) -> list[Lane]:
    """Puts it on lanes that are free by then, those that become so last first: they are what it waits for."""
    workload, is_seen = known
    begins = workload.verdict.eta
    assert begins is not None
    assert workload.spec is not None
    limit_s = workload.spec.document.get("time_limit_s")
    ends = begins + timedelta(seconds=limit_s) if limit_s else None
    stay = Stay(workload.pk, workload if is_seen else None, 1, begins, ends, is_reserved=True)
    could = [lane for lane in lanes if lane.is_free_by(begins + _SOON)]
    could.sort(key=lambda lane: (lane.until is None, -(lane.until or begins).timestamp(), lane.gpus))
    taken: dict[int, int] = {}  # by lane, how many of its GPUs
    for lane in could:
        if count > 0:
            taken[id(lane)] = min(count, lane.count)
            count -= taken[id(lane)]
    found: list[Lane] = []
    for lane in lanes:
        mine = taken.get(id(lane), 0)
        if mine:
            found.append(replace(lane, count=mine, stays=(*lane.stays, stay)))
        if mine < lane.count:
            found.append(replace(lane, count=lane.count - mine))
    return found


# --- Who is there now ----------------------------------------------------------------------------------------


def _lanes(actor: User, places: Sequence[_Place]) -> dict[_Place, list[Lane]]:
    """The ready GPUs of each place, grouped by who holds them."""
    ready = GpuCondition.objects.filter(gpu=OuterRef("pk"), span__upper_inf=True, condition=Condition.READY)
    gpus = (
        Gpu.objects.filter(Exists(ready), retired_at=None, node__in={node for _tier, node in places})
        .select_related("tier", "node")
        .order_by("node_id", "index")
    )
    wanted = [gpu for gpu in gpus if (gpu.tier_id, gpu.node_id) in set(places)]
    held: dict[UUID, list[Allocation]] = defaultdict(list)
    for row in live_allocations().filter(gpu__in=wanted).order_by("workload_id", "pk"):
        held[row.gpu_id].append(row)
    seen = _seen(actor, {row.workload_id for rows in held.values() for row in rows})
    policy, now = policy_current(), clock.now()
    groups: dict[tuple[_Place, tuple[tuple[str, str], ...]], list[Gpu]] = defaultdict(list)
    for gpu in wanted:
        alike = tuple(sorted((str(row.workload_id), row.state) for row in held[gpu.pk]))
        groups[(gpu.tier_id, gpu.node_id), alike].append(gpu)
    found: dict[_Place, list[Lane]] = defaultdict(list)
    for (place, _alike), alike_gpus in groups.items():
        first = alike_gpus[0]
        found[place].append(
            Lane(
                first.node.name,
                first.tier,
                tuple(gpu.index for gpu in alike_gpus),
                len(alike_gpus),
                _stays(held[first.pk], first.tier, seen, policy, now),
            )
        )
    return found


def _stays(
    rows: Sequence[Allocation], tier: Tier, seen: set[UUID], policy: Policy, now: datetime
) -> tuple[Stay, ...]:
    """Who holds the card, and after them who has claimed it."""
    there = [row for row in rows if row.state != AllocationState.CLAIMED]
    coming = [row for row in rows if row.state == AllocationState.CLAIMED]
    found: list[Stay] = []
    for group in (there, coming):
        if group:
            since = found[-1].until if found else None
            found.append(_stay(group, tier, seen, policy, now, since))
    return tuple(found)


def _stay(
    rows: Sequence[Allocation],
    tier: Tier,
    seen: set[UUID],
    policy: Policy,
    now: datetime,
    since: datetime | None,
) -> Stay:
    ends = [_end(row, tier, policy, now) for row in rows]
    known = [end for end, _is_estimate in ends if end is not None]
    workloads = {row.workload_id: row.workload for row in rows}
    only = next(iter(workloads.values())) if len(workloads) == 1 else None
    return Stay(
        key=only.pk if only is not None else None,
        workload=only if only is not None and only.pk in seen else None,
        count=len(workloads),
        since=since,
        until=max(known) if len(known) == len(ends) else None,
        is_estimate=any(is_estimate for _end, is_estimate in ends),
        is_leaving=all(row.state == AllocationState.STOPPING for row in rows),
    )


def _end(row: Allocation, tier: Tier, policy: Policy, now: datetime) -> tuple[datetime | None, bool]:
    """As passes expect it: its time limit, or what is usual for its kind on that tier."""
    limit = ends_at(row)
    kind = row.workload.kind
    live = Live(
        workload_id=str(row.workload_id),
        team_id=str(row.team_id),
        tier_id=str(row.tier_id),
        units=row.units,
        state=row.state,
        node_id="",
        borrowed=False,
        started_us=to_us(row.span.lower),
        ends_us=to_us(limit) if limit else None,
        kind=kind,
    )
    ending = expected_end(live, policy, to_us(now), round(1000 * tier.relative_speed.get(kind, 0)))
    return (from_us(ending.ends_us) if ending.ends_us is not None else None), ending.is_estimate
