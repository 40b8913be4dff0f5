"""The cases of `pass.py` that need PostgreSQL: load and commit real rows."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import _database
from benchmarks._database import Shape
from benchmarks._engine_cases import one_core
from benchmarks._measure import Result, judged, timed

TEAMS = 20
# Of ten workloads: 18 GPUs.
SHAPES = (*[Shape(1)] * 6, *[Shape(2)] * 2, Shape(4), Shape(2, 2))
# Started by a pass that is not measured: a worker's first pass also loads code and the server's catalogue.
WARM_UP = 100


def commit(quick: bool) -> Result:
    """One pass, step by step. The rate counts allocations by the time of the commit alone, COMMIT included."""
    with _database.database():
        node_count, waiting = (60, 250) if quick else (1_200, 5_000)
        one_core()
        _fill(node_count, waiting)
        from scheduling import passes

        _warm_up()
        allocations_before, events_before = _allocations(), _events()
        _database.release()
        with _metered(passes, "snapshot_load", "plan", "plan_commit") as steps:
            done = passes.pass_once()
        load, plan, stored = steps
        allocations = _allocations() - allocations_before
        result = {
            "nodes": node_count,
            "starts": len(done.started),
            "refused": len(done.refused),
            "allocations": allocations,
            "events": _events() - events_before,
            "load": load,
            "plan": plan,
            "commit": stored,
            "allocations_per_s": round(allocations / stored["seconds"]),
            # What a machine with nothing else to do comes close to: the two processes wait for one another.
            "allocations_per_cpu_s": round(allocations / (stored["cpu_s"] + stored["database_cpu_s"])),
        }
    return judged(result, least={"allocations_per_s": 5_000})


@contextmanager
def _metered(module: ModuleType, *names: str) -> Iterator[list[dict[str, float]]]:
    """Times the module's calls of these functions; what is yielded has one entry for each name afterwards."""
    spent = [{"seconds": 0.0, "cpu_s": 0.0, "database_cpu_s": 0.0} for _ in names]
    original = [getattr(module, name) for name in names]
    for name, call, sums in zip(names, original, spent, strict=True):
        setattr(module, name, partial(_timed_call, call, sums))
    try:
        yield spent
    finally:
        for name, call, sums in zip(names, original, spent, strict=True):
            setattr(module, name, call)
            sums.update({key: round(value, 3) for key, value in sums.items()})


def _timed_call(call: Callable[..., Any], sums: dict[str, float], *args: Any, **kwargs: Any) -> Any:
    before = _database_cpu_s()
    made, seconds, cpu_s = timed(partial(call, *args, **kwargs))
    sums["seconds"] += seconds
    sums["cpu_s"] += cpu_s
    sums["database_cpu_s"] += _database_cpu_s() - before
    return made


def _database_cpu_s() -> float:
    """CPU seconds of the server process behind our connection, where the system tells (Linux, same machine)."""
    from django.db import connection

    connection.ensure_connection()
    try:
        fields = (
            Path(f"/proc/{connection.connection.info.backend_pid}/stat")
            .read_text()
            .rpartition(")")[2]
            .split()
        )
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def end_to_end(quick: bool) -> Result:
    """The queue is let go, and passes run as the worker runs them until all of it has started."""
    with _database.database():
        node_count, waiting = (60, 250) if quick else (1_200, 5_000)
        one_core()
        _fill(node_count, waiting)
        from scheduling.passes import pass_turns

        _warm_up()
        allocations_before = _allocations()
        begin, cpu_begin, database_begin = time.perf_counter(), time.process_time(), _database_cpu_s()
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
        cpu_s, database_cpu_s = time.process_time() - cpu_begin, _database_cpu_s() - database_begin
        result = {
            "nodes": node_count,
            "starts": started,
            "allocations": _allocations() - allocations_before,
            "passes": passes,
            "seconds": round(seconds, 3),
            "cpu_s": round(cpu_s, 3),
            "database_cpu_s": round(database_cpu_s, 3),
            "starts_per_s": round(started / seconds),
            "starts_per_cpu_s": round(started / (cpu_s + database_cpu_s)),
            "last_pass_ms": _last_pass(),
        }
    return judged(result, least={"starts_per_s": 1_000})


def _fill(node_count: int, waiting: int) -> None:
    """So much work that waits for approval, and what the warm-up takes."""
    teams = _database.yard(node_count, TEAMS)
    _database.queue(teams, [SHAPES[number % len(SHAPES)] for number in range(WARM_UP + waiting)])


def _warm_up() -> None:
    from scheduling.passes import pass_once

    _database.release(at_most=WARM_UP)
    started = pass_once().started
    assert len(started) == WARM_UP, f"{len(started)} of {WARM_UP} started"


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
