"""What the log costs: `python benchmarks/audit.py [--events N] [--seconds S] [--check]`.

    write    events a second, by one process: each in a transaction of its own, and a hundred in one
    writers  8 writers at a fixed pace of 1,000 events a second together, beside a transaction that stays open: how
             long one write takes while the sealer runs, against the same without it, in turns of the same run
    verify   a chain of a million events, sealed by our own sealer: how long it takes to verify it

One JSON line comes last. Times of writes are medians; the least of all turns counts, on either side.
"""

import argparse
import json
import multiprocessing
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._database import database
from benchmarks._measure import Result, judged, median, peak_mib, timed

COMPANY = uuid.UUID("01900000-0000-7000-8000-000000000001")
WRITERS, PACE_S = 8, 8 / 1000
TURNS = 4


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=1_000_000, help="in the chain that is verified")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn of the writers")
    parser.add_argument("--check", action="store_true", help="end with 1 if a target is missed")
    given = parser.parse_args()
    with database():
        results = {"write": _write(), "writers": _writers(given.seconds), "verify": _verify(given.events)}
    print(json.dumps(results))
    return 1 if given.check and not all(result["ok"] for result in results.values()) else 0


def _draft(number: int) -> Any:
    from gpuyard.audit.services import Subject, event_draft

    return event_draft(
        company_id=COMPANY,
        actor=None,
        action="workload.start",
        subject=Subject("workload", uuid.uuid4(), f"train-{number} w-{number:08}"),
        old={"state": "waiting"},
        new={"state": "starting", "attempt": 1, "gpus": 8, "borrowed": False},
    )


# --- Writing -----------------------------------------------------------------------------------------------


def _write() -> Result:
    from django.db import transaction

    from gpuyard.audit.services import events_record

    def one_by_one() -> None:
        for number in range(1_000):
            with transaction.atomic():
                events_record([_draft(number)])

    def in_hundreds() -> None:
        for start in range(0, 10_000, 100):
            with transaction.atomic():
                events_record([_draft(start + number) for number in range(100)])

    one_by_one()  # once to warm up
    singly = min(timed(one_by_one)[1] for _ in range(3))
    together = min(timed(in_hundreds)[1] for _ in range(3))
    result = {"one_by_one_per_s": round(1_000 / singly), "in_hundreds_per_s": round(10_000 / together)}
    return judged(result, least={"in_hundreds_per_s": 1_000})


def _writer(number: int, begin: Any, end: Any, answers: Any) -> None:
    """A process of its own: writes at its pace while `begin` is set; answers each turn with its times in ms."""
    import django

    django.setup()
    from django.db import connection, transaction

    from gpuyard.audit.services import events_record

    connection.ensure_connection()
    while not end.is_set():
        if not begin.wait(0.2):
            continue
        times, due = [], time.perf_counter() + number * PACE_S / WRITERS
        while begin.is_set():
            time.sleep(max(0.0, due - time.perf_counter()))
            due = max(due + PACE_S, time.perf_counter() - PACE_S)
            start = time.perf_counter()
            with transaction.atomic():
                events_record([_draft(number)])
            times.append((time.perf_counter() - start) * 1_000)
        answers.put(times)


def _writers(seconds: float) -> Result:
    from django.db import connections

    connections.close_all()
    context = multiprocessing.get_context("spawn")
    begin, end, answers = context.Event(), context.Event(), context.Queue()
    people = [
        context.Process(target=_writer, args=(number, begin, end, answers), daemon=True)
        for number in range(WRITERS)
    ]
    for one in people:
        one.start()
    time.sleep(5)  # they connect
    turns: dict[bool, list[list[float]]] = {False: [], True: []}
    with _open_transaction():
        for turn in range(2 * TURNS):
            has_sealer = turn % 2 == 1
            with _sealer(has_sealer):
                begin.set()
                time.sleep(seconds)
                begin.clear()
                turns[has_sealer].append([ms for _ in people for ms in answers.get(timeout=60)])
    end.set()
    for one in people:
        one.join(timeout=10)
    without, beside = (min(median(one) for one in turns[key]) for key in (False, True))
    per_s = min(len(one) / seconds for one in turns[True])
    result = {
        "without_sealer_ms": round(without, 3),
        "beside_sealer_ms": round(beside, 3),
        "ratio": round(beside / without, 3),
        "events_per_s": round(per_s),
    }
    return judged(result, most={"ratio": 1.1}, least={"events_per_s": 900})


class _open_transaction:
    """Somebody's transaction that has written an event and does not end: what is sealed later must go past it."""

    def __enter__(self) -> None:
        import psycopg
        from django.db import connection

        self.connection = psycopg.connect(**connection.get_connection_params())
        self.connection.execute("SELECT count(*) FROM audit_event")

    def __exit__(self, *args: object) -> None:
        self.connection.rollback()
        self.connection.close()


class _sealer:
    """Seals without a pause in a thread, as the worker's beat does every five seconds."""

    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on
        self.ended = threading.Event()

    def __enter__(self) -> None:
        from gpuyard.audit.sealing import seal_all

        seal_all()  # what the turn before has left
        self.thread = threading.Thread(target=self._turns)
        if self.is_on:
            self.thread.start()

    def _turns(self) -> None:
        from django.db import connection

        from gpuyard.audit.sealing import seal_all

        while not self.ended.wait(0.5):
            seal_all()
        connection.close()

    def __exit__(self, *args: object) -> None:
        self.ended.set()
        if self.is_on:
            self.thread.join()


# --- Verifying ---------------------------------------------------------------------------------------------


def _verify(count: int) -> Result:
    from django.db import transaction

    from gpuyard.audit.models import Event
    from gpuyard.audit.sealing import seal_all
    from gpuyard.audit.services import events_record
    from gpuyard.audit.verification import chain_verify

    seal_all()
    missing = max(0, count - Event.objects.filter(company_id=COMPANY).count())
    for start in range(0, missing, 20_000):
        with transaction.atomic():
            events_record(_draft(start + number) for number in range(min(20_000, missing - start)))
    _sealed, seal_s, _cpu_s = timed(seal_all)
    report, clock_s, cpu_s = timed(lambda: chain_verify(COMPANY))
    assert report.findings == ()
    result = {
        "events": report.sequence,
        "seal_per_s": round(missing / seal_s) if missing else 0,
        "clock_s": round(clock_s, 1),
        "cpu_s": round(cpu_s, 1),
        "peak_mib": peak_mib(),
    }
    return judged(result, most={"clock_s": 60})


if __name__ == "__main__":
    sys.exit(main())
