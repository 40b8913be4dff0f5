"""The cases of `pass.py` that need PostgreSQL: load and commit real rows."""

import time
from typing import Any

from benchmarks import _database
from benchmarks._database import Shape
from benchmarks._engine_cases import one_core
from benchmarks._measure import Result, judged, timed

TEAMS = 20
# Of ten workloads: 18 GPUs.
SHAPES = (*[Shape(1)] * 6, *[Shape(2)] * 2, Shape(4), Shape(2, 2))


def commit(quick: bool) -> Result:
    """One pass. The rate counts allocations by all its time but loading and planning: up to the end of COMMIT."""
    with _database.database():
        node_count, waiting = (60, 250) if quick else (1_200, 5_000)
        one_core()
        _fill(node_count, waiting)
        _database.release()
        from scheduling.passes import pass_once

        done, seconds, cpu_s = timed(pass_once)
        record, allocations = _last_pass(), _allocations()
        commit_s = seconds - record["load_ms"] / 1000 - record["plan_ms"] / 1000
        result = {
            "nodes": node_count,
            "starts": len(done.started),
            "refused": len(done.refused),
            "allocations": allocations,
            "events": _events(),
            "load_s": record["load_ms"] / 1000,
            "plan_s": record["plan_ms"] / 1000,
            "commit_s": round(commit_s, 3),
            "cpu_s": round(cpu_s, 3),
            "allocations_per_s": round(allocations / commit_s),
        }
    return judged(result, least={"allocations_per_s": 5_000})


def end_to_end(quick: bool) -> Result:
    """The queue is let go, and passes run as the worker runs them until all of it has started."""
    with _database.database():
        node_count, waiting = (60, 250) if quick else (1_200, 5_000)
        one_core()
        _fill(node_count, waiting)
        from scheduling.passes import pass_turns

        begin = time.perf_counter()
        released = _database.release()
        started = passes = 0
        while started < released:
            turns = pass_turns()
            assert turns, "another process runs passes on this database"
            passes += len(turns)
            new = sum(len(done.started) for done in turns)
            assert new, f"a pass started nothing; {released - started} still wait"
            started += new
        seconds = time.perf_counter() - begin
        result = {
            "nodes": node_count,
            "starts": started,
            "allocations": _allocations(),
            "passes": passes,
            "seconds": round(seconds, 3),
            "starts_per_s": round(started / seconds),
            "last_pass_ms": _last_pass(),
        }
    return judged(result, least={"starts_per_s": 1_000})


def _fill(node_count: int, waiting: int) -> None:
    teams = _database.yard(node_count, TEAMS)
    _database.queue(teams, [SHAPES[number % len(SHAPES)] for number in range(waiting)])


def _allocations() -> int:
    from scheduling.models import Allocation

    return Allocation.objects.count()


def _events() -> int:
    from gpuyard.audit.models import Event

    return Event.objects.count()


def _last_pass() -> dict[str, Any]:
    from scheduling.models import PassRecord

    row = PassRecord.objects.order_by("-number")[0]
    return {name: round(getattr(row, name)) for name in ("load_ms", "plan_ms", "commit_ms")}
