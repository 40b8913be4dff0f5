"""Small worlds for the engine's tests: everything has a default, a test names only what it is about."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from scheduling.engine.plan import Plan, Policy, plan
from scheduling.engine.snapshot import (
    UNITS_PER_GPU,
    Gpu,
    Live,
    Node,
    Quota,
    Request,
    Running,
    Snapshot,
    Team,
    Tier,
)

NOW_US = 1_800_000_000_000_000
HOUR_US = 3_600_000_000

H100 = Tier("h100", "h100-80g", 81559, cost_rank=30)
A100 = Tier("a100", "a100-40g", 40960, cost_rank=20)
L4 = Tier("l4", "l4-24g", 24576, cost_rank=10)

LAB = Team("lab", None, "lab", ("lab",))
VISION = Team("vision", "lab", "vision", ("lab", "vision"))
SPEECH = Team("speech", "lab", "speech", ("lab", "speech"))
TEAMS = (LAB, VISION, SPEECH)


@dataclass(frozen=True)
class Work:
    """What runs: its request, its state and what it holds."""

    request: Request
    running: Running
    live: tuple[Live, ...]


def a_node(name: str, **changes: Any) -> Node:
    node = Node(name, name, "pool", True, 1, 64_000, 262_144, 64_000, 262_144)
    return replace(node, **changes)


def some_gpus(
    node: str, count: int = 8, *, tier: Tier = H100, free: int | None = None, **changes: Any
) -> list[Gpu]:
    """`free` of the node's GPUs are free, the first ones; two islands of half the GPUs each."""
    free = count if free is None else free
    half = max(1, count // 2)
    gpus = [Gpu(f"{node}.{i}", node, tier.id, i, i // half, True, i < free) for i in range(count)]
    return [replace(gpu, **changes) for gpu in gpus]


def a_request(workload_id: str = "w", **changes: Any) -> Request:
    request = Request(
        workload_id, workload_id, "vision", "training", 0, NOW_US - HOUR_US, 1, 1, 1, ("h100",), 1000, 1024
    )
    if "replicas" in changes:
        count = changes.pop("replicas")
        changes |= {"replicas_min": count, "replicas_max": count}
    if "gpus" in changes:
        changes["gpus_per_replica"] = changes.pop("gpus")
    return replace(request, **changes)


def held(workload_id: str, gpus: int, **changes: Any) -> Live:
    live = Live(
        workload_id, "vision", "h100", gpus * UNITS_PER_GPU, "held", "n1", False, NOW_US - HOUR_US, None
    )
    return replace(live, **changes)


def quota(team: str, tier: str | None = "h100", *, guaranteed: int = 0, limit: int | None = None) -> Quota:
    """In whole GPUs."""
    return Quota(team, tier, guaranteed * UNITS_PER_GPU, None if limit is None else limit * UNITS_PER_GPU)


def a_world(
    nodes: Iterable[Node] = (),
    gpus: Iterable[Gpu] = (),
    requests: Iterable[Request] = (),
    quotas: Iterable[Quota] = (),
    live: Iterable[Live] = (),
    teams: Iterable[Team] = TEAMS,
    tiers: Iterable[Tier] = (H100, A100, L4),
) -> Snapshot:
    return Snapshot(
        tuple(tiers), tuple(nodes), tuple(gpus), tuple(teams), tuple(quotas), tuple(live), tuple(requests)
    )


def decide(snapshot: Snapshot, policy: Policy | None = None) -> Plan:
    return plan(snapshot, policy or Policy(), NOW_US)


def codes_of(decided: Plan, workload_id: str = "w") -> list[str]:
    (verdict,) = [v for v in decided.verdicts if v.workload_id == workload_id]
    return [blocker.code for blocker in verdict.blockers]


def started(decided: Plan) -> list[str]:
    return [start.workload_id for start in decided.starts]


def nodes_of(decided: Plan, workload_id: str = "w") -> list[str]:
    (start,) = [s for s in decided.starts if s.workload_id == workload_id]
    return [replica.node_id for replica in start.replicas]


def running(
    workload_id: str,
    node: str,
    columns: Iterable[int],
    *,
    team: str = "speech",
    borrowed: bool = True,
    checkpoint_us: int | None = None,
    evictions: int = 0,
    started_us: int = NOW_US - HOUR_US,
    band: int = 0,
    **changes: Any,
) -> Work:
    """One replica that runs on these GPUs of a node since an hour ago; `changes` of its request."""
    cards = tuple(f"{node}.{column}" for column in columns)
    request = a_request(workload_id, team_id=team, gpus=len(cards), **changes)
    row = Live(
        workload_id,
        team,
        request.tiers[0],
        len(cards) * UNITS_PER_GPU,
        "held",
        node,
        borrowed,
        started_us,
        None,
        request.cpu_m,
        request.memory_mib,
        request.kind,
        request.preemptible,
        band,
        0,
        cards,
    )
    state = Running(workload_id, "running", started_us, borrowed, checkpoint_us, evictions)
    return Work(request, state, (row,))


def with_work(world: Snapshot, *works: Work) -> Snapshot:
    """The world with these running in it: their GPUs, CPU and memory are taken."""
    rows = [row for work in works for row in work.live]
    taken = {gpu_id for row in rows for gpu_id in row.gpu_ids}
    nodes = [
        replace(
            node,
            cpu_free_m=node.cpu_free_m - sum(row.cpu_m for row in rows if row.node_id == node.id),
            memory_free_mib=node.memory_free_mib
            - sum(row.memory_mib for row in rows if row.node_id == node.id),
        )
        for node in world.nodes
    ]
    return replace(
        world,
        nodes=tuple(nodes),
        gpus=tuple(replace(gpu, free=gpu.free and gpu.id not in taken) for gpu in world.gpus),
        live=(*world.live, *rows),
        running=(*world.running, *(work.running for work in works)),
        placed=(*world.placed, *(work.request for work in works)),
    )


def stopped(decided: Plan) -> list[str]:
    return sorted(stop.workload_id for stop in decided.stops)


def claimed(decided: Plan) -> list[str]:
    return [claim.workload_id for claim in decided.claims]
