"""Passes in processes of their own that stop in the middle of any write, so that they can be ended exactly there.

A trigger counts what a connection writes and, at the write that is asked for, waits for a lock that the test holds.
Statements count where they end, and rows of workloads once more at COMMIT: so the last halts lie inside the COMMIT.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import psycopg
from django.apps import apps
from django.db import connections

Connection = psycopg.Connection[tuple[Any, ...]]
_LOCK = 0x68616C74  # "halt"
_NAME = "halting"  # of the connections of these passes
_WITHIN_S = 60.0

_FUNCTION = f"""
CREATE TABLE halt_at (write_number integer NOT NULL);
GRANT SELECT, UPDATE ON halt_at TO PUBLIC;
INSERT INTO halt_at VALUES (0);
CREATE FUNCTION halt() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE seen integer := coalesce(nullif(current_setting('halt.seen', true), ''), '0')::integer + 1;
BEGIN
  PERFORM set_config('halt.seen', seen::text, false);
  IF seen = (SELECT write_number FROM halt_at) THEN
    PERFORM pg_advisory_xact_lock_shared({_LOCK});
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER halt_in_commit AFTER UPDATE ON scheduling_workload DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION halt();
DO $$ DECLARE name regclass; BEGIN
  FOR name IN SELECT oid FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
      AND relname <> 'halt_at' LOOP
    EXECUTE format('CREATE TRIGGER halt AFTER INSERT OR UPDATE OR DELETE ON %s EXECUTE FUNCTION halt()', name);
  END LOOP;
END $$;
"""
_HALTED = (
    "SELECT l.pid FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid AND a.datname = current_database()"
    " WHERE l.locktype = 'advisory' AND NOT l.granted"
)
_CONNECTED = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"

End = Callable[["Halts", int], None]
"""How a pass that has halted is ended: given its process id."""


def run_pass(database: str) -> None:
    """What a scheduler worker does when it is woken."""
    connections.settings["default"]["NAME"] = database
    connections.settings["default"]["OPTIONS"]["application_name"] = _NAME
    from scheduling.passes import pass_turns

    pass_turns()


if not apps.ready:  # in the process from which the passes are forked
    import django

    django.setup()

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__, "scheduling.passes"])


class Halts:
    """One test's database with these triggers. `owner` makes them, `watcher` is one more connection of the app role."""

    def __init__(self, owner: Connection, watcher: Connection) -> None:
        owner.execute(_FUNCTION.encode())
        self._watcher = watcher
        self._database = str(connections.settings["default"]["NAME"])

    def pass_until(self, write_number: int, end: End) -> bool:
        """Runs a pass that is ended at this write; False: it was through before, and has ended by itself."""
        self._ask("UPDATE halt_at SET write_number = %s", write_number)
        self._ask("SELECT pg_advisory_lock(%s)", _LOCK)
        process = _FORKS.Process(target=run_pass, args=(self._database,))
        process.start()
        assert process.pid is not None
        _until(lambda: self._halted() or process.exitcode is not None)
        halted = bool(self._halted())
        if halted:
            end(self, process.pid)
        self._ask("SELECT pg_advisory_unlock(%s)", _LOCK)
        process.join(_WITHIN_S)
        assert process.exitcode is not None
        assert halted or process.exitcode == 0, "the pass broke by itself"
        _until(lambda: not self._ask(_CONNECTED, _NAME))
        return halted

    def kill(self, pid: int) -> None:
        """kill -9 of the worker: PostgreSQL learns of it when the statement, or the COMMIT, is done."""
        os.kill(pid, signal.SIGKILL)

    def cut(self, pid: int) -> None:
        """The connection ends in the middle of the statement, or of the COMMIT; the worker lives and sees it."""
        for backend in self._halted():
            self._ask("SELECT pg_terminate_backend(%s)", backend)
        _until(lambda: not self._ask(_CONNECTED, _NAME))

    def _halted(self) -> list[int]:
        return [pid for (pid,) in self._ask(_HALTED)]

    def _ask(self, statement: str, *values: object) -> list[Any]:
        cursor = self._watcher.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []


def _until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + _WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)
