"""How long one pass plans: `python benchmarks/pass.py [--nodes N] [--waiting N] [--busy SHARE] [--distinct]`.

Prints one JSON line last. `--distinct` gives every request its own CPU and memory, so that no two share an answer.
`full` in it is a case of its own: the cluster is full, 10,000 wait, none fits, the first 50 get reservations
(`--reservations N`: the first N; as many as wait: every one that ever fits).
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scheduling.engine.plan import Policy, plan
from scheduling.engine.snapshot import UNITS_PER_GPU, Gpu, Live, Node, Quota, Request, Snapshot, Team, Tier

NOW_US = 1_800_000_000_000_000
HOUR_US = 3_600_000_000
TIERS = (
    Tier("h100", "h100-80g", 81559, 30),
    Tier("a100", "a100-40g", 40960, 20),
    Tier("l4", "l4-24g", 24576, 10),
)
TEAM_COUNT = 20
NODE_CPU_M, NODE_MEMORY_MIB = 128_000, 1_048_576


def world(node_count: int, waiting: int, busy: float, distinct: bool, seed: int = 1) -> Snapshot:
    rng = random.Random(seed)
    teams = [Team("co", None, "co", ("co",))]
    teams += [Team(f"t{i:02}", "co", f"team {i}", ("co", f"t{i:02}")) for i in range(TEAM_COUNT)]
    share = node_count * 8 // (TEAM_COUNT * len(TIERS))
    quotas = [
        Quota(team.id, tier.id, share * UNITS_PER_GPU, 4 * share * UNITS_PER_GPU)
        for team in teams[1:]
        for tier in TIERS
    ]
    nodes, gpus, live = [], [], []
    for number in range(node_count):
        name, tier = f"n{number:04}", TIERS[number % len(TIERS)].id
        held = sum(rng.random() < busy for _ in range(8))
        nodes.append(
            Node(
                name,
                name,
                f"p{number % 4}",
                rng.random() > 0.02,
                1,
                NODE_CPU_M - 8_000 * held,
                NODE_MEMORY_MIB - 65_536 * held,
                NODE_CPU_M,
                NODE_MEMORY_MIB,
            )
        )
        gpus += [Gpu(f"{name}.{i}", name, tier, i, i // 4, True, i >= held) for i in range(8)]
        if held:
            live.append(_holder(rng, f"w{number}", name, tier, held))
    requests = [_request(rng, number, distinct) for number in range(waiting)]
    return Snapshot(
        TIERS, tuple(nodes), tuple(gpus), tuple(teams), tuple(quotas), tuple(live), tuple(requests)
    )


def _holder(rng: random.Random, workload: str, node: str, tier: str, gpus: int) -> Live:
    team, ends_us = f"t{rng.randrange(TEAM_COUNT):02}", NOW_US + rng.randrange(48) * HOUR_US
    return Live(
        workload,
        team,
        tier,
        gpus * UNITS_PER_GPU,
        "held",
        node,
        False,
        0,
        ends_us,
        8_000 * gpus,
        65_536 * gpus,
    )


def _request(rng: random.Random, number: int, distinct: bool) -> Request:
    gpus = rng.choice((1, 1, 1, 2, 2, 4, 8, 8, 16))
    replicas = rng.choice((1, 1, 1, 1, 2, 4, 8)) if gpus >= 4 else 1
    first = rng.choice(TIERS).id
    tiers = (first,) if rng.random() < 0.6 else tuple(dict.fromkeys((first, rng.choice(TIERS).id)))
    extra = number if distinct else 0
    return Request(
        f"q{number:05}",
        "job",
        f"t{rng.randrange(TEAM_COUNT):02}",
        "training",
        rng.randrange(3),
        NOW_US - rng.randrange(10**9),
        replicas,
        replicas,
        gpus,
        tiers,
        gpus * rng.choice((4_000, 8_000)) + extra,
        gpus * 32_768 + extra,
        time_limit_s=rng.choice((None, 3_600, 86_400)),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--waiting", type=int, default=2000)
    parser.add_argument("--busy", type=float, default=0.7, help="share of the GPUs that are held")
    parser.add_argument("--distinct", action="store_true", help="no two requests are alike")
    parser.add_argument("--reservations", type=int, default=50)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    result = {
        "nodes": options.nodes,
        "gpus": options.nodes * 8,
        "waiting": options.waiting,
        "busy": options.busy,
        "distinct": options.distinct,
    } | measured(world(options.nodes, options.waiting, options.busy, options.distinct), options)
    result["full"] = {"nodes": 1000, "waiting": 10_000, "busy": 1.0} | measured(
        world(1000, 10_000, 1.0, distinct=False), options
    )
    print(json.dumps(result))
    return 0


def measured(snapshot: Snapshot, options: argparse.Namespace) -> dict[str, object]:
    seconds, cpu_seconds = [], []
    policy = Policy(reservations=options.reservations)
    for _ in range(options.repeat):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        decided = plan(snapshot, policy, NOW_US)
        seconds.append(time.perf_counter() - begin)
        cpu_seconds.append(time.process_time() - cpu_begin)
    return {
        "starts": len(decided.starts),
        "verdicts": len(decided.verdicts),
        "reservations": len(decided.reservations),
        "plan_s_median": round(sorted(seconds)[len(seconds) // 2], 3),
        "plan_s_worst": round(max(seconds), 3),
        "plan_cpu_s_median": round(sorted(cpu_seconds)[len(seconds) // 2], 3),
        "plan_cpu_s_best": round(min(cpu_seconds), 3),
    }


if __name__ == "__main__":
    sys.exit(main())
