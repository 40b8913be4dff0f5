"""How well the placement score packs, and how fast: tasks arrive one by one, are placed or dropped, never moved.

    python benchmarks/packing.py [--nodes N.csv --tasks T.csv] [--seed S] [--ties random] [--mix 300]

The experiment and the formats are those of the FGD paper (ATC'23) on the public openb traces: the tasks in random
order, then tasks drawn again, until 130 % of the cluster's GPUs have been asked for. Prints one JSON line last:
the share of all GPUs that is allocated when 100 % and 130 % have been asked for, and arrivals per second, with
reading the files and learning the mix included.

Without files it takes openb's from `../shared/traces` (or $GPUYARD_TRACES) and says so if they are not there.
`--mix N` lets the score know nothing but what has arrived so far, and nothing after the first N arrivals.
"""

import argparse
import csv
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scheduling.engine.fragmentation import Fragments, PackingPolicy
from scheduling.engine.mix import Ask, Mix
from scheduling.engine.packing import NodeStates, Packer
from scheduling.engine.snapshot import WHOLE

Ints = npt.NDArray[np.int64]

ROOT = Path(__file__).resolve().parents[1]
TRACES = Path(os.environ.get("GPUYARD_TRACES", ROOT.parent / "shared" / "traces"))
OPENB_NODES = TRACES / "openb" / "openb_node_list_gpu_node.csv"
OPENB_TASKS = TRACES / "openb" / "openb_pod_list_default.csv"
RATIO = 1.3
POLICIES = {
    "ours": PackingPolicy(),
    "fgd": PackingPolicy(
        fragments=1.0,
        shares=0.0,
        stranded=0.0,
        scarcity=0.0,
        balance=0.0,
        fullness=0.0,
        step_slots=0.0,
        popular_part=0.95,
        measure=Fragments.SLIVERS,
    ),
}


@dataclass(frozen=True, slots=True)
class Task:
    ask: Ask
    memory_mib: int


def read_nodes(path: Path, rng: np.random.Generator) -> NodeStates:
    """The nodes in an order that is random, but the same for the whole run."""
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    lines = [lines[i] for i in rng.permutation(len(lines))]
    tiers = tuple(sorted({line["model"] for line in lines}))
    cpu, memory, gpus = (
        np.array([int(line[key]) for line in lines]) for key in ("cpu_milli", "memory_mib", "gpu")
    )
    tier = np.array([tiers.index(line["model"]) for line in lines])
    slots = np.where(np.arange(int(gpus.max())) < gpus[:, None], WHOLE, 0)  # (nodes, gpus)
    return NodeStates(tiers, tier, cpu.copy(), cpu, memory, gpus, slots)


def read_tasks(path: Path) -> list[Task]:
    with path.open(newline="") as file:
        return [_task(line) for line in csv.DictReader(file)]


def _task(line: dict[str, str]) -> Task:
    gpus = int(line["num_gpu"])
    tiers = tuple(sorted(filter(None, (line.get("gpu_spec") or "").split("|")))) if gpus else ()
    ask = Ask(int(line["cpu_milli"]), gpus, int(line["gpu_milli"]) if gpus else 0, tiers)
    return Task(ask, int(line["memory_mib"]))


def arrivals(asked: list[int], until: float, rng: np.random.Generator) -> list[int]:
    """All tasks once, shuffled, then tasks drawn again, as long as no more than `until` slots are asked for."""
    order: list[int] = rng.permutation(len(asked)).tolist()
    total = sum(asked)
    while total > until:
        total -= asked[order.pop()]
    while True:
        task = int(rng.integers(len(asked)))
        total += asked[task]
        if total > until:
            return order
        order.append(task)


def replay(packer: Packer, tasks: list[Task], order: list[int], learn: int) -> tuple[Ints, Ints]:
    """(arrivals,) slots asked for and slots allocated after each arrival."""
    arrived, allocated = np.zeros(len(order), dtype=np.int64), np.zeros(len(order), dtype=np.int64)
    asked = used = 0
    # Looked at again each time that twice as much has been seen, up to `learn`.
    looks = {learn >> shift for shift in range(learn.bit_length())} - {0}
    for turn, number in enumerate(order):
        if turn in looks:
            packer.learn(Mix.of(tasks[seen].ask for seen in order[:turn]))
        task = tasks[number]
        asked += task.ask.total_slots
        choice = packer.choose(task.ask, task.memory_mib)
        if choice is not None:
            packer.take(task.ask, choice, task.memory_mib)
            used += task.ask.total_slots
        arrived[turn], allocated[turn] = asked, used
    return arrived, allocated


def percent_at(column: int, arrived: Ints, allocated: Ints, supply: int) -> float:
    """Mean allocation over the arrivals at which the GPUs asked for round to `column` percent."""
    rounded = np.rint(100 * arrived / supply).astype(int)
    # On a small cluster one task may step over the column: then what was allocated before it.
    here = rounded == rounded[rounded <= column].max()
    return round(float(np.round(100 * allocated[here] / supply, 2).mean()), 2)


def run(nodes: Path, task_list: Path, seed: int, policy: str, ties: str, learn: int) -> dict[str, Any]:
    begin = time.perf_counter()
    rng = np.random.default_rng(seed)
    states = read_nodes(nodes, rng)
    tasks = read_tasks(task_list)
    supply = int(states.supply().sum())
    order = arrivals([task.ask.total_slots for task in tasks], RATIO * supply, rng)
    mix = Mix.of(()) if learn else Mix.of(task.ask for task in tasks)
    tie_rng = np.random.default_rng((seed, 1)) if ties == "random" else None
    packer = Packer(states, mix, POLICIES[policy], tie_rng)
    arrived, allocated = replay(packer, tasks, order, learn)
    seconds = time.perf_counter() - begin
    check(packer.states, supply, int(allocated[-1]))
    return {
        "tasks": task_list.name,
        "seed": seed,
        "policy": policy,
        "ties": ties,
        "mix": learn or "all",
        "arrivals": len(order),
        "alloc_pct_at_100": percent_at(100, arrived, allocated, supply),
        "alloc_pct_at_130": percent_at(130, arrived, allocated, supply),
        "arrivals_per_s": round(len(order) / seconds),
        "seconds": round(seconds, 2),
    }


def check(states: NodeStates, supply: int, used: int) -> None:
    """A figure from a run that gave away more than there is would be worth nothing."""
    assert min(states.cpu_free_m.min(), states.memory_free_mib.min(), states.slots_free.min()) >= 0
    assert supply - int(states.slots_free.sum()) == used


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=Path, default=OPENB_NODES, help="openb node list")
    parser.add_argument("--tasks", type=Path, default=OPENB_TASKS, help="openb pod list")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--policy", choices=sorted(POLICIES), default="ours")
    parser.add_argument("--ties", choices=("first", "random"), default="first")
    parser.add_argument(
        "--mix", type=int, default=0, metavar="N", help="learn only from the first N arrivals"
    )
    given = parser.parse_args()
    missing = [str(path) for path in (given.nodes, given.tasks) if not path.is_file()]
    if missing:
        print(json.dumps({"skipped": f"no such file: {', '.join(missing)}"}))
        # Traces are not ours to ship: without files named, their absence is no failure.
        return 0 if given.nodes == OPENB_NODES and given.tasks == OPENB_TASKS else 2
    result = run(given.nodes, given.tasks, given.seed, given.policy, given.ties, max(given.mix, 0))
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
