"""Random but consistent worlds: what is not free is held by somebody who is listed."""

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from scheduling.engine.snapshot import (
    UNITS_PER_GPU,
    WHOLE,
    BandGrant,
    Gpu,
    Live,
    Node,
    Quota,
    Request,
    Snapshot,
    Team,
    Tier,
    Usage,
)
from tests.engine.build import HOUR_US, NOW_US

TIERS = (Tier("a", "a-80g", 80_000, 2), Tier("b", "b-40g", 40_000, 1))
TEAMS = (
    Team("root", None, "root", ("root",)),
    Team("dept", "root", "dept", ("root", "dept")),
    Team("proj", "dept", "proj", ("root", "dept", "proj")),
    Team("peer", "root", "peer", ("root", "peer")),
    Team("alien", None, "alien", ("alien",)),
)
TEAM_IDS = tuple(team.id for team in TEAMS)
POOLS = ("p", "q")


@dataclass
class _Draft:
    nodes: list[Node]
    gpus: list[Gpu]
    live: list[Live]


@st.composite
def _machines(draw: st.DrawFn, busy: int) -> _Draft:
    made = _Draft([], [], [])
    for number in range(draw(st.integers(0, 4))):
        _add_node(draw, made, f"n{number}", busy)
    return made


def _add_node(draw: st.DrawFn, made: _Draft, name: str, busy: int) -> None:
    gpu_count = draw(st.sampled_from((1, 2, 4, 8)))
    cpu_free = cpu_total = draw(st.sampled_from((4_000, 16_000)))
    memory_free = memory_total = draw(st.sampled_from((8_192, 32_768)))
    for index in range(gpu_count):
        tier = draw(st.sampled_from(TIERS)).id
        free, ready = draw(st.integers(0, busy)) == 0, draw(st.integers(0, 5)) > 0
        made.gpus.append(Gpu(f"{name}.{index}", name, tier, index, index // 4, ready, free))
        if not free:
            cpu_m = draw(st.integers(0, min(4_000, cpu_free)))
            memory_mib = draw(st.integers(0, min(4_096, memory_free)))
            cpu_free, memory_free = cpu_free - cpu_m, memory_free - memory_mib
            made.live.append(_holder(draw, f"l-{name}.{index}", tier, name, cpu_m, memory_mib))
    schedulable = draw(st.integers(0, 5)) > 0
    pool = draw(st.sampled_from(POOLS))
    made.nodes.append(Node(name, name, pool, schedulable, 1, cpu_free, memory_free, cpu_total, memory_total))


def _holder(draw: st.DrawFn, workload: str, tier: str, node: str, cpu_m: int, memory_mib: int) -> Live:
    team = draw(st.sampled_from(TEAM_IDS))
    ends_us = draw(st.one_of(st.none(), st.integers(0, 5).map(lambda hours: NOW_US + hours * HOUR_US)))
    return Live(workload, team, tier, UNITS_PER_GPU, "held", node, False, 0, ends_us, cpu_m, memory_mib)


@st.composite
def requests(draw: st.DrawFn, workload_id: str = "w0") -> Request:
    replicas_min = draw(st.integers(1, 3))
    return Request(
        workload_id,
        workload_id,
        draw(st.sampled_from(TEAM_IDS)),
        "training",
        draw(st.integers(0, 2)),
        NOW_US - draw(st.integers(0, 3)) * HOUR_US,
        replicas_min,
        replicas_min + draw(st.integers(0, 2)),
        draw(st.sampled_from((1, 1, 2, 3, 4, 8, 9))),
        draw(st.sampled_from((("a",), ("b",), ("a", "b"), ("b", "a"), ("gone", "a"), ("gone",)))),
        draw(st.sampled_from((0, 1_000, 4_000, 20_000))),
        draw(st.sampled_from((0, 1_024, 8_192))),
        time_limit_s=draw(st.sampled_from((None, 3_600))),
        budget_blocker=draw(st.sampled_from((None, None, None, "no budget left"))),
        pool_ids=draw(st.sampled_from((None, None, ("p",), ()))),
        mix_tiers=draw(st.booleans()),
        preemptible=draw(st.integers(0, 3)) > 0,
        band=draw(st.sampled_from((0, 0, 0, 1, 2))),
        promised_us=draw(st.sampled_from((None, None, None, NOW_US + HOUR_US))),
    )


@st.composite
def quotas(draw: st.DrawFn) -> tuple[Quota, ...]:
    keys = draw(st.sets(st.tuples(st.sampled_from(TEAM_IDS), st.sampled_from(("a", "b", None))), max_size=6))
    units = st.integers(0, 12).map(lambda gpus: gpus * UNITS_PER_GPU)
    limits = st.one_of(st.none(), units)
    return tuple(
        Quota(team, tier, draw(units), draw(limits), draw(limits) if tier else None, draw(st.integers(0, 3)))
        for team, tier in sorted(keys, key=str)
    )


@st.composite
def usage(draw: st.DrawFn) -> tuple[Usage, ...]:
    keys = draw(st.sets(st.tuples(st.sampled_from(TEAM_IDS), st.sampled_from(("a", "b"))), max_size=3))
    unit_s = st.integers(0, 10**10)
    return tuple(Usage(team, tier, draw(unit_s)) for team, tier in sorted(keys))


@st.composite
def band_grants(draw: st.DrawFn) -> tuple[BandGrant, ...]:
    teams = sorted(draw(st.sets(st.sampled_from(TEAM_IDS), max_size=2)))
    caps = st.integers(0, 8).map(lambda gpus: gpus * UNITS_PER_GPU)
    return tuple(BandGrant(team, draw(st.integers(1, 2)), draw(caps)) for team in teams)


@st.composite
def snapshots(draw: st.DrawFn, max_requests: int = 6, busy: int = 1) -> Snapshot:
    """About one of `busy` + 1 GPUs is free."""
    made = draw(_machines(busy))
    asked = [draw(requests(f"w{number}")) for number in range(draw(st.integers(1, max_requests)))]
    return Snapshot(
        TIERS,
        tuple(made.nodes),
        tuple(made.gpus),
        TEAMS,
        draw(quotas()),
        tuple(made.live),
        tuple(asked),
        draw(usage()),
        draw(band_grants()),
    )


@st.composite
def shared_worlds(draw: st.DrawFn, max_requests: int = 8, busy: int = 2) -> Snapshot:
    """The same with parts of cards held and asked for, on nodes with labels."""
    world = draw(snapshots(max_requests, busy))
    live, gpus = list(world.live), {gpu.id: gpu for gpu in world.gpus}
    for row, held in enumerate(live):
        gpu_id = held.workload_id.removeprefix("l-")
        slots = draw(st.sampled_from((WHOLE, WHOLE, 100, 250, 500, 700)))
        live[row] = replace(held, gpu_ids=(gpu_id,), slots=slots, units=held.units * slots // WHOLE)
        if slots < WHOLE:
            gpus[gpu_id] = replace(gpus[gpu_id], slots_free=WHOLE - slots, shared_by=held.team_id)
    labels = (("zone=a",), ("zone=b",), ())
    return replace(
        world,
        live=tuple(live),
        gpus=tuple(gpus.values()),
        nodes=tuple(replace(node, labels=draw(st.sampled_from(labels))) for node in world.nodes),
        requests=tuple(draw(_maybe_a_share(request)) for request in world.requests),
    )


@st.composite
def _maybe_a_share(draw: st.DrawFn, request: Request) -> Request:
    request = replace(
        request,
        node_labels=draw(st.sampled_from(((), (), (), ("zone=a",)))),
        not_labels=draw(st.sampled_from(((), (), (), ("zone=b",)))),
        by_value=draw(st.booleans()),
    )
    share = draw(st.sampled_from((None, 100, 250, 500)))
    memory_mib = draw(st.sampled_from((None, None, 10_000, 30_000, 60_000)))
    if share is None and memory_mib is None:
        return request
    return replace(request, gpus_per_replica=1, share=share, gpu_memory_mib=memory_mib)
