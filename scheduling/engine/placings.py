"""A start or a claim under way, until the plan is written down."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from scheduling.engine.decisions import Claim, ReplicaPlacement, Start
from scheduling.engine.order import Ask
from scheduling.engine.placement import Placed
from scheduling.engine.snapshot import Live


@dataclass(slots=True)
class Placing:
    """Growing may still add replicas. `victims` None: nobody has to leave first, so it is a start."""

    ask: Ask
    tier_id: str
    borrowed: bool
    placed: Placed
    why_now: dict[str, Any]
    why_here: dict[str, Any]
    band: int = 0
    victims: tuple[str, ...] | None = None

    def decided(self) -> Start | Claim:
        nodes = dict.fromkeys(replica.node_id for replica in self.placed.replicas)
        why_here = self.why_here | {"nodes": list(nodes)} | self.placed.why
        what = (self.ask.id, self.tier_id, self.borrowed, self.placed.replicas)
        if self.victims is not None:
            return Claim(*what, self.victims, self.why_now, why_here)
        return Start(*what, self.why_now, why_here)

    def live(self, now_us: int) -> list[Live]:
        """What others see of it: somebody who holds GPUs, or is to have them."""
        request = self.ask.request
        ends_us = None if request.time_limit_s is None else now_us + request.time_limit_s * 1_000_000
        return [
            Live(
                request.workload_id,
                request.team_id,
                replica.tier_id,
                len(replica.gpu_ids) * replica.units_per_gpu,
                "held" if self.victims is None else "claimed",
                replica.node_id,
                self.borrowed,
                now_us,
                ends_us,
                replica.cpu_m,
                replica.memory_mib,
                request.kind,
                request.preemptible,
                self.band,
                replica=replica.index,
                gpu_ids=replica.gpu_ids,
                slots=replica.slots,
            )
            for replica in self.placed.replicas
        ]


def units_of(replicas: Iterable[ReplicaPlacement]) -> int:
    return sum(len(replica.gpu_ids) * replica.units_per_gpu for replica in replicas)
