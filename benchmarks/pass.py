"""How long a pass takes, part by part: `python benchmarks/pass.py [CASE …] [--quick] [--check]`.

Each case runs in a process of its own, on one core (PostgreSQL's own processes may use another); what it peaks at
in memory is that process's. One JSON line comes last, with every figure beside its target; `--check` makes a
missed target the exit status.

    arrivals    openb's tasks on its empty cluster, against the published FGD policy measured in the same run
    full        1,000 × 8 full, 10,000 wait and none fits: 50 reservations, then one for each
    gang        what a gang of 80 GPUs that cannot run adds to a pass over 4,000 running workloads
    return      4,000 GPUs taken back for a guarantee in one plan
    large       12,500 × 8, 20,000 wait in 200 teams
    commit      a plan's allocations into PostgreSQL, events and audit included
    end_to_end  1,200 × 8, 5,000 queued: from the queue's release to the last COMMIT
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _database_cases, _engine_cases
from benchmarks._measure import Result, peak_mib

CASES: dict[str, Callable[[bool], Result]] = {
    "arrivals": _engine_cases.arrivals,
    "full": _engine_cases.full,
    "gang": _engine_cases.gang,
    "return": _engine_cases.give_back,
    "large": _engine_cases.large,
    "commit": _database_cases.commit,
    "end_to_end": _database_cases.end_to_end,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; none: all of them")
    parser.add_argument("--quick", action="store_true", help="smaller, to see that it works; no targets")
    parser.add_argument("--check", action="store_true", help="end with 1 if a target is missed")
    given = parser.parse_args()
    if unknown := set(given.case) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    results = _one(given) if len(given.case) == 1 else _each_alone(given)
    print(json.dumps(results))
    return 1 if given.check and not all(result.get("ok", True) for result in results.values()) else 0


def _one(given: argparse.Namespace) -> dict[str, Result]:
    (name,) = given.case
    result = CASES[name](given.quick)
    if given.quick:
        result.pop("ok", None)
    return {name: {"peak_mib": peak_mib()} | result}


def _each_alone(given: argparse.Namespace) -> dict[str, Result]:
    results: dict[str, Result] = {}
    for name in given.case or CASES:
        command = [sys.executable, __file__, name, *(["--quick"] if given.quick else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        line = done.stdout.splitlines()[-1]
        print(line, flush=True)
        results |= json.loads(line)
    return results


if __name__ == "__main__":
    # Before numpy starts its threads; children inherit it.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main())
