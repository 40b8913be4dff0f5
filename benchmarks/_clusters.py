"""Made-up snapshots for the engine's benchmarks: the same every time, with everything listed that holds a GPU."""

import random
from dataclasses import dataclass, field, replace

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
TIERS = (
    Tier("h100", "h100-80g", 81559, 30),
    Tier("a100", "a100-40g", 40960, 20),
    Tier("l4", "l4-24g", 24576, 10),
)
GPUS = 8  # in a node
CPU_M, MEMORY_MIB = 8_000, 65_536  # of each GPU's work
NODE_CPU_M, NODE_MEMORY_MIB = 2 * GPUS * CPU_M, 2 * GPUS * MEMORY_MIB
NODES_IN_RACK, RACKS_IN_BLOCK = 8, 16


@dataclass
class Cluster:
    """A snapshot in the making: all nodes are alike, each of one tier."""

    tiers: tuple[Tier, ...] = TIERS
    nodes: list[Node] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)
    teams: list[Team] = field(default_factory=lambda: [Team("co", None, "co", ("co",))])
    quotas: list[Quota] = field(default_factory=list)
    live: list[Live] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    placed: list[Request] = field(default_factory=list)

    def add_teams(self, count: int, *, guaranteed: int, limit: int | None = None, word: str = "t") -> None:
        """Teams below the company, each with so many GPUs of every tier."""
        for number in range(count):
            name = f"{word}{number:03}"
            self.teams.append(Team(name, "co", f"team {name}", ("co", name)))
            self.quotas += [
                Quota(
                    name,
                    tier.id,
                    guaranteed * UNITS_PER_GPU,
                    None if limit is None else limit * UNITS_PER_GPU,
                )
                for tier in self.tiers
            ]

    def add_node(self, *, schedulable: bool = True) -> str:
        number = len(self.nodes)
        name, tier = f"n{number:05}", self.tiers[number % len(self.tiers)].id
        rack = number // NODES_IN_RACK
        node = Node(
            name,
            name,
            f"p{number % 4}",
            schedulable,
            1,
            NODE_CPU_M,
            NODE_MEMORY_MIB,
            NODE_CPU_M,
            NODE_MEMORY_MIB,
            domains=(f"b{rack // RACKS_IN_BLOCK}", f"r{rack}"),
        )
        self.nodes.append(node)
        self.gpus += [Gpu(f"{name}.{i}", name, tier, i, i // 4, True, True) for i in range(GPUS)]
        return name

    def hold(
        self,
        team: str,
        gpus: int,
        *,
        borrowed: bool = False,
        ends_us: int | None = None,
        kind: str = "training",
    ) -> None:
        """A running one-replica workload on the last node; its GPUs are the next free ones there."""
        node, number = self.nodes[-1], len(self.running)
        first = len(self.gpus) - GPUS
        mine = [at for at in range(first, first + GPUS) if self.gpus[at].free][:gpus]
        for at in mine:
            self.gpus[at] = replace(self.gpus[at], free=False)
        cpu_m, memory_mib = CPU_M * len(mine), MEMORY_MIB * len(mine)
        self.nodes[-1] = replace(
            node, cpu_free_m=node.cpu_free_m - cpu_m, memory_free_mib=node.memory_free_mib - memory_mib
        )
        name, tier, began_us = f"l{number:06}", self.gpus[first].tier_id, NOW_US - 6 * HOUR_US - number
        self.live.append(
            Live(
                name,
                team,
                tier,
                len(mine) * UNITS_PER_GPU,
                "held",
                node.id,
                borrowed,
                began_us,
                ends_us,
                cpu_m,
                memory_mib,
                kind,
                gpu_ids=tuple(self.gpus[at].id for at in mine),
            )
        )
        self.running.append(Running(name, "running", began_us, borrowed))
        self.placed.append(request(name, team, gpus=len(mine), tiers=(tier,), queued_us=began_us, kind=kind))

    def snapshot(self, requests: list[Request]) -> Snapshot:
        return Snapshot(
            self.tiers,
            tuple(self.nodes),
            tuple(self.gpus),
            tuple(self.teams),
            tuple(self.quotas),
            tuple(self.live),
            tuple(requests),
            running=tuple(self.running),
            placed=tuple(self.placed),
            levels=("block", "rack"),
        )


def request(
    name: str,
    team: str,
    *,
    gpus: int = 1,
    replicas: int = 1,
    tiers: tuple[str, ...] = ("h100",),
    queued_us: int = NOW_US - HOUR_US,
    kind: str = "training",
    priority: int = 0,
    time_limit_s: int | None = None,
) -> Request:
    return Request(
        name,
        name,
        team,
        kind,
        priority,
        queued_us,
        replicas,
        replicas,
        gpus,
        tiers,
        CPU_M * gpus,
        MEMORY_MIB * gpus,
        time_limit_s=time_limit_s,
    )


def mixed_cluster(node_count: int, team_count: int, busy: float, seed: int = 1, lent: float = 0.3) -> Cluster:
    """Three tiers, about `busy` of the GPUs held, by work of 1 to 8 GPUs that ends within two days.

    Of that work about `lent` is borrowed: a guarantee may take it back.
    """
    rng = random.Random(seed)
    made = Cluster()
    share = max(1, node_count * GPUS // (team_count * len(TIERS)))
    made.add_teams(team_count, guaranteed=share, limit=4 * share)
    for _ in range(node_count):
        made.add_node(schedulable=rng.random() > 0.02)
        left = GPUS if busy >= 1 else sum(rng.random() < busy for _ in range(GPUS))
        while left:
            gpus = min(left, rng.choice((1, 1, 2, 4, 8)))
            team, ends_us = f"t{rng.randrange(team_count):03}", NOW_US + rng.randrange(48) * HOUR_US
            made.hold(team, gpus, borrowed=rng.random() < lent, ends_us=ends_us)
            left -= gpus
    return made


def mixed_requests(count: int, team_count: int, *, distinct: bool = False, seed: int = 2) -> list[Request]:
    """One in ten a gang; `distinct`: no two have the same CPU and memory, so that none shares an answer."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        gpus = rng.choice((1, 1, 1, 2, 2, 4, 8, 8))
        replicas = rng.choice((1, 1, 2, 4, 8)) if gpus >= 4 else 1
        first = rng.choice(TIERS).id
        tiers = (first,) if rng.random() < 0.6 else tuple(dict.fromkeys((first, rng.choice(TIERS).id)))
        extra = number if distinct else 0
        made.append(
            replace(
                request(
                    f"q{number:06}",
                    f"t{rng.randrange(team_count):03}",
                    gpus=gpus,
                    replicas=replicas,
                    tiers=tiers,
                    queued_us=NOW_US - rng.randrange(10**9),
                    priority=rng.randrange(3),
                    time_limit_s=rng.choice((None, 3_600, 86_400)),
                ),
                cpu_m=gpus * rng.choice((4_000, 8_000)) + extra,
                memory_mib=gpus * 32_768 + extra,
            )
        )
    return made
