"""One pass of the scheduling loop: load → plan → commit, one at a time, safe to kill anywhere.

The advisory lock and the commit share one connection: a process that lost its connection has lost both. A pass
that stalled past its lock and wakes later is stopped by the fence in the commit (`Overtaken`).
"""

from __future__ import annotations

import logging
import time

from django.db import OperationalError, connection

from gpuyard.core import clock
from scheduling.claims import claims_turn
from scheduling.commit import Committed, Overtaken, plan_commit
from scheduling.decay import usage_fold
from scheduling.dependencies import dependencies_settle
from scheduling.engine.collector import collector_paused
from scheduling.engine.decisions import Policy
from scheduling.engine.plan import plan
from scheduling.loader import snapshot_load
from scheduling.policies import policy_current
from scheduling.records import Timings
from scheduling.wake import wake_count

logger = logging.getLogger(__name__)

_LOCK_KEY = 0x67707579  # "gpuy"
MAX_TURNS = 20
_DEADLOCK = "40P01"


def pass_turns() -> list[Committed]:
    """Runs passes until no wake-up came while one worked (or `MAX_TURNS`); none if another process is at it."""
    if not _lock():
        return []
    try:
        done: list[Committed] = []
        for _turn in range(MAX_TURNS):
            seen = wake_count()
            done.append(_pass_with_retry())
            if wake_count() == seen:
                break
        return done
    except Overtaken:
        logger.warning("a pass was overtaken by another one and changed nothing")
        return done
    finally:
        _unlock()


def pass_once(policy: Policy | None = None) -> Committed:
    """One pass, without the lock: the fence alone keeps two from both committing."""
    with collector_paused():
        return _pass_once(policy)


def _pass_once(policy: Policy | None) -> Committed:
    claims_started = claims_turn()
    started_at, began = clock.now(), time.monotonic()
    dependencies_settle()
    usage_fold((policy or policy_current()).usage_half_life_s)
    loaded = snapshot_load(policy)
    loaded_at = time.monotonic()
    decided = plan(loaded.snapshot, loaded.policy, loaded.now_us)
    planned_at = time.monotonic()
    timings = Timings(started_at, (loaded_at - began) * 1000, (planned_at - loaded_at) * 1000)
    done = plan_commit(loaded, decided, timings)
    done.started[:0] = claims_started
    return done


def _pass_with_retry() -> Committed:
    try:
        return pass_once()
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", None) != _DEADLOCK:
            raise
        logger.warning("a pass met a deadlock and runs again")
        return pass_once()


def _lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [_LOCK_KEY])
        (locked,) = cursor.fetchone()
    return bool(locked)


def _unlock() -> None:
    if connection.connection is None or connection.connection.closed:
        return  # the lock went with the connection
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_unlock(%s)", [_LOCK_KEY])
