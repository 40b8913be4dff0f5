"""Plans written by hand, for tests of what a commit makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuyard.core import clock
from gpuyard.fleet.models import Gpu
from scheduling.commit import Committed, plan_commit
from scheduling.engine.decisions import Claim, Grow, Plan, Policy, ReplicaPlacement, Start, Stop
from scheduling.loader import Loaded, snapshot_load
from scheduling.models import Workload
from scheduling.records import Timings


def on(*gpus: Gpu, index: int = 0, slots: int = 1000, cpu_m: int = 1000) -> ReplicaPlacement:
    """A replica on these GPUs of one node, or on `slots` of one."""
    node = gpus[0].node
    node.refresh_from_db()
    return ReplicaPlacement(
        index=index,
        node_id=str(node.id),
        node_epoch=node.epoch,
        gpu_ids=tuple(str(gpu.id) for gpu in gpus),
        slots=slots,
        cpu_m=cpu_m,
        memory_mib=1024,
        tier_id=str(gpus[0].tier_id),
    )


def start(of: Workload, *replicas: ReplicaPlacement, borrowed: bool = False) -> Start:
    return Start(str(of.id), replicas[0].tier_id, borrowed, replicas)


def claim(of: Workload, *replicas: ReplicaPlacement, victims: Sequence[Workload] = ()) -> Claim:
    names = tuple(str(victim.id) for victim in victims)
    return Claim(str(of.id), replicas[0].tier_id, False, replicas, names)


def stop(
    of: Workload,
    gaining: Workload | None = None,
    *,
    reason: str = "return",
    replicas: tuple[int, ...] | None = None,
    **why: Any,
) -> Stop:
    return Stop(str(of.id), reason, str(gaining.id) if gaining else None, replicas, {"lost_gpu_s": 60, **why})


def grow(of: Workload, *replicas: ReplicaPlacement) -> Grow:
    return Grow(str(of.id), replicas)


def commit(*decided: Start | Claim | Stop | Grow, loaded: Loaded | None = None, **policy: Any) -> Committed:
    """Commits them as the plan of a pass."""
    plan = Plan(
        starts=tuple(one for one in decided if isinstance(one, Start)),
        claims=tuple(one for one in decided if isinstance(one, Claim)),
        stops=tuple(one for one in decided if isinstance(one, Stop)),
        grows=tuple(one for one in decided if isinstance(one, Grow)),
    )
    known = loaded or snapshot_load(Policy(**policy))
    return plan_commit(known, plan, Timings(clock.now(), 0.0, 0.0))
