"""The cases of `pass.py` that need no database: how long `plan` takes.

Targets are for CPU seconds, which `plan` alone uses in its one process: what else runs on the machine does not count.
"""

import csv
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import _clusters, packing
from benchmarks._clusters import GPUS, NOW_US, Cluster, request
from benchmarks._measure import Result, judged, median, peak_mib, timed
from scheduling.engine.decisions import Plan
from scheduling.engine.plan import Policy, plan
from scheduling.engine.snapshot import WHOLE, Gpu, Node, Request, Snapshot, Team, Tier

FGD_REPLAY = packing.TRACES.parent / "tools" / "fgd_replay.py"
SEED = 42


def one_core() -> None:
    """From now on, this process and its children run on one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def planned(snapshot: Snapshot, policy: Policy, repeat: int) -> tuple[Plan, Result]:
    seconds, cpu_seconds = [], []
    for _ in range(repeat):
        decided, wall_s, cpu_s = timed(lambda: plan(snapshot, policy, NOW_US))
        seconds.append(wall_s)
        cpu_seconds.append(cpu_s)
    return decided, {
        "starts": len(decided.starts),
        "claims": len(decided.claims),
        "stops": len(decided.stops),
        "verdicts": len(decided.verdicts),
        "reservations": len(decided.reservations),
        "plan_s": round(median(seconds), 3),
        "plan_cpu_s": round(median(cpu_seconds), 3),
        "plan_cpu_s_best": round(min(cpu_seconds), 3),
        "repeats": repeat,
    }


# --- Arrivals ------------------------------------------------------------------------------------------------


def arrivals(quick: bool) -> Result:
    """One by one through the packing score, and all at once through a pass; FGD between them, for the ratio."""
    if not packing.OPENB_NODES.is_file() or not FGD_REPLAY.is_file():
        return {"skipped": f"needs {packing.OPENB_NODES} and {FGD_REPLAY}"}
    one_core()
    ours, fgd = [], []
    one_by_one = partial(packing.run, packing.OPENB_NODES, packing.OPENB_TASKS, SEED, "ours", "first", 0)
    for _ in range(1 if quick else 3):
        found, _, cpu_s = timed(one_by_one)
        ours.append(round(found["arrivals"] / cpu_s))
        fgd.append(_fgd_rate())
    snapshot, dropped = _openb_pass()
    _, figures = planned(snapshot, Policy(), 1)
    in_pass = round(len(snapshot.requests) / figures["plan_cpu_s"])
    result = {
        "seed": SEED,
        "arrivals_per_s": median(ours),
        "fgd_arrivals_per_s": median(fgd),
        "ratio": round(median(ours) / median(fgd), 2),
        "pass": {
            **figures,
            "arrivals": len(snapshot.requests),
            "cpu_only_left_out": dropped,
            "arrivals_per_s": in_pass,
        },
        "pass_ratio": round(in_pass / median(fgd), 2),
    }
    return judged(result, least={"ratio": 2.0})


def _fgd_rate() -> float:
    """By the CPU seconds of its process, as all rates here."""
    before = _children_cpu_s()
    command = [sys.executable, str(FGD_REPLAY), "--policy", "fgd", "--seed", str(SEED)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    return round(float(said["tasks"]) / (_children_cpu_s() - before))


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _openb_pass() -> tuple[Snapshot, int]:
    """openb's nodes empty, and its arrivals as a queue; the engine knows no work without a GPU."""
    rng = np.random.default_rng(SEED)
    nodes, gpus, tiers = _openb_nodes(packing.OPENB_NODES)
    tasks = packing.read_tasks(packing.OPENB_TASKS)
    supply = len(gpus) * WHOLE
    order = packing.arrivals([task.ask.total_slots for task in tasks], packing.RATIO * supply, rng)
    names = tuple(tier.id for tier in tiers)
    requests = []
    for turn, number in enumerate(order):
        task = tasks[number]
        if not task.ask.gpus:
            continue
        asked = request(f"q{turn:06}", "co", gpus=task.ask.gpus, queued_us=NOW_US - len(order) + turn)
        requests.append(
            replace(
                asked,
                tiers=tuple(tier for tier in task.ask.tiers if tier in names) or names,
                cpu_m=task.ask.cpu_m,
                memory_mib=task.memory_mib,
                share=task.ask.slots if task.ask.slots < WHOLE else None,
            )
        )
    team = Team("co", None, "co", ("co",))
    snapshot = Snapshot(tiers, nodes, gpus, (team,), requests=tuple(requests))
    return snapshot, len(order) - len(requests)


def _openb_nodes(path: Path) -> tuple[tuple[Node, ...], tuple[Gpu, ...], tuple[Tier, ...]]:
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    models = sorted({line["model"] for line in lines if int(line["gpu"])})
    tiers = tuple(Tier(model, model, 81_920, rank) for rank, model in enumerate(models))
    nodes, gpus = [], []
    for number, line in enumerate(lines):
        name, cpu_m, memory_mib = f"n{number:05}", int(line["cpu_milli"]), int(line["memory_mib"])
        nodes.append(Node(name, name, "p", True, 1, cpu_m, memory_mib, cpu_m, memory_mib))
        gpus += [
            Gpu(f"{name}.{i}", name, line["model"], i, i // 4, True, True) for i in range(int(line["gpu"]))
        ]
    return tuple(nodes), tuple(gpus), tiers


# --- A full cluster ------------------------------------------------------------------------------------------


def full(quick: bool) -> Result:
    """Nothing is free."""
    one_core()
    node_count, waiting = (100, 1_000) if quick else (1_000, 10_000)
    cluster = _clusters.mixed_cluster(node_count, 20, busy=1.0, lent=0)
    # No limits: they would keep most requests from a reservation.
    cluster.quotas = [replace(quota, limit=None) for quota in cluster.quotas]
    snapshot = cluster.snapshot(_clusters.mixed_requests(waiting, 20))
    _, few = planned(snapshot, Policy(reservations=50), 5)
    _, all_reserved = planned(snapshot, Policy(reservations=waiting), 1)
    result = {
        "nodes": node_count,
        "waiting": waiting,
        "running": len(cluster.running),
        "reservations_50": few,
        "reservations_all": all_reserved,
        "plan_cpu_s_50": few["plan_cpu_s"],
        "plan_cpu_s_all": all_reserved["plan_cpu_s"],
    }
    return judged(result, most={"plan_cpu_s_50": 0.5, "plan_cpu_s_all": 10.0})


# --- A gang that cannot run, and a return ----------------------------------------------------------------------


def gang(quick: bool) -> Result:
    """What the gang adds: plans with and without it in turn, and the difference of the two best CPU times.

    Three reasons for which it cannot run: nobody has borrowed; many have, but on every node somebody else stays;
    its team has had its share.
    """
    one_core()
    node_count = 50 if quick else 500
    cases = {
        "nobody_borrowed": _tenants(node_count, borrowed_on_node=0, owner_gpus=800),
        "never_a_whole_node": _tenants(node_count, borrowed_on_node=4, owner_gpus=800),
        "no_guarantee": _tenants(node_count, borrowed_on_node=GPUS, owner_gpus=0),
    }
    asked = request("gang", "own000", gpus=GPUS, replicas=10)
    result: Result = {"running": len(cases["no_guarantee"].running), "repeats": 15}
    worst = 0.0
    for name, cluster in cases.items():
        without, with_it, decided = _best_of_two(cluster, [asked], 15)
        answer_ms = round(1000 * max(0.0, with_it - without), 1)
        assert not decided.starts
        assert not decided.stops
        assert [verdict.workload_id for verdict in decided.verdicts] == ["gang"]
        result[name] = {
            "answer_ms": answer_ms,
            "pass_ms": round(1000 * with_it, 1),
            "blockers": [blocker.code for blocker in decided.verdicts[0].blockers],
        }
        worst = max(worst, answer_ms)
    return judged(result | {"answer_ms": worst}, most={"answer_ms": 50.0})


def _best_of_two(cluster: Cluster, asked: list[Request], repeat: int) -> tuple[float, float, Plan]:
    without, with_it = cluster.snapshot([]), cluster.snapshot(asked)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeat):
        for snapshot, seconds in zip((without, with_it), times, strict=True):
            decided, _, cpu_s = timed(partial(plan, snapshot, Policy(), NOW_US))
            seconds.append(cpu_s)
    return min(times[0]), min(times[1]), decided


def _tenants(node_count: int, *, borrowed_on_node: int, owner_gpus: int) -> Cluster:
    """A full cluster of one tier, of one-GPU work of twenty teams; `own000` is the team that comes late."""
    made = Cluster(tiers=_clusters.TIERS[:1])
    guaranteed = max(0, node_count * (GPUS - borrowed_on_node) // 20)
    made.add_teams(20, guaranteed=guaranteed)
    made.add_teams(1, guaranteed=owner_gpus, word="own")
    for _ in range(node_count):
        made.add_node()
        for place in range(GPUS):
            number = len(made.running)
            made.hold(f"t{number % 20:03}", 1, borrowed=place < borrowed_on_node)
    return made


def give_back(quick: bool) -> Result:
    """All GPUs are lent; their owner asks for all of them: as single nodes, and as one gang."""
    one_core()
    node_count = 50 if quick else 500
    total = node_count * GPUS
    cluster = _tenants(node_count, borrowed_on_node=GPUS, owner_gpus=total)
    singles = [request(f"q{number:04}", "own000", gpus=GPUS) for number in range(node_count)]
    result: Result = {"gpus": total, "running": len(cluster.running)}
    asks: dict[str, Sequence[Request]] = {
        "single_nodes": singles,
        "one_gang": [request("q", "own000", gpus=GPUS, replicas=node_count)],
    }
    worst = 0.0
    for name, requests in asks.items():
        decided, figures = planned(cluster.snapshot(list(requests)), Policy(), 1 if quick else 3)
        returned = sum(len(replica.gpu_ids) for claim in decided.claims for replica in claim.replicas)
        result[name] = figures | {"returned_gpus": returned}
        worst = max(worst, figures["plan_cpu_s"])
    everything = min(result[name]["returned_gpus"] for name in asks)
    return judged(
        result | {"plan_cpu_s": worst, "returned_gpus": everything},
        most={"plan_cpu_s": 2.0},
        least={"returned_gpus": total},
    )


# --- A large yard --------------------------------------------------------------------------------------------


def large(quick: bool) -> Result:
    one_core()
    node_count, waiting, teams = (500, 1_000, 20) if quick else (12_500, 20_000, 200)
    cluster = _clusters.mixed_cluster(node_count, teams, busy=0.7)
    snapshot = cluster.snapshot(_clusters.mixed_requests(waiting, teams))
    before = peak_mib()
    _, figures = planned(snapshot, Policy(), 1 if quick else 3)
    result = {
        "nodes": node_count,
        "waiting": waiting,
        "teams": teams,
        "running": len(cluster.running),
        **figures,
        "peak_mib_before_plan": before,
        "peak_mib": peak_mib(),
    }
    distinct = cluster.snapshot(_clusters.mixed_requests(waiting, teams, distinct=True))
    result["no_two_alike"] = planned(distinct, Policy(), 1)[1]
    return judged(result, most={"plan_cpu_s": 10.0, "peak_mib": 1536})
