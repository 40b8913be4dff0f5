"""Every management command finds a database: the configured one, the running local one, or one of its own.

Runs before Django is configured, so that settings read the right URLs.
"""

import argparse
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from gpuyard.local import services, supervisor
from gpuyard.local import state as state_module
from gpuyard.local.state import LocalServicesError

# These need no database …
WITHOUT = frozenset(
    {"check", "collectstatic", "compilemessages", "diffsettings", "findstatic", "help", "makemessages"}
    | {"makemigrations", "spectacular", "startapp", "startproject", "version"}
)
# … and these run the whole platform until they end.
PLATFORM = frozenset({"up", "demo"})
_WAIT_S = 60.0


@contextmanager
def services_for_command(argv: Sequence[str]) -> Iterator[None]:
    """Sets DATABASE_URL, MIGRATE_DATABASE_URL and REDIS_URL around a management command."""
    signal.signal(signal.SIGTERM, _exit_on_signal)
    signal.signal(signal.SIGHUP, _exit_on_signal)
    command = argv[1] if len(argv) > 1 else "help"
    asks_for_help = any(word in {"-h", "--help", "--version"} for word in argv[1:])
    try:
        if command in WITHOUT or command.startswith("-") or asks_for_help:
            # makemigrations would look for unapplied migrations; without a database there are none to find.
            warnings.filterwarnings("ignore", message="Got an error checking a consistent migration history")
            yield
        elif command in PLATFORM:
            with platform_services(argv):
                yield
        elif os.environ.get("DATABASE_URL"):
            yield
        else:
            with local_services(f"manage.py {command}"):
                yield
    except LocalServicesError as problem:
        sys.stderr.write(f"{problem}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def add_platform_arguments(parser: argparse.ArgumentParser) -> None:
    """What `up` and `demo` have in common; read here before Django exists, and by the commands for --help."""
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port to serve on (8000)")
    parser.add_argument("--reset", action="store_true", help="forget all earlier data first")


@contextmanager
def platform_services(argv: Sequence[str]) -> Iterator[None]:
    """Takes the port and starts the servers; the command starts the rest through `supervisor.current()`."""
    parser = argparse.ArgumentParser(prog=f"manage.py {argv[1]}", add_help=False)
    add_platform_arguments(parser)
    options, _rest = parser.parse_known_args(list(argv[2:]))
    folder = state_module.state_dir()
    with supervisor.opened(
        folder, purpose=argv[1], host=options.host, port=options.port, reset=options.reset
    ) as opened:
        os.environ.update(opened.environment)
        yield


@contextmanager
def local_services(purpose: str) -> Iterator[None]:
    """The running local instance if there is one, else one for the length of the block."""
    folder = state_module.prepare(state_module.state_dir())
    own = services.LocalServices(folder, purpose=purpose)
    with services.using(folder):
        record = _running_or_started(own, folder)
        if record is not None:
            with state_module.environment(record):
                yield
            return
    try:
        with state_module.environment(own.environment):
            yield
    finally:
        own.stop(wait_for_users_s=_WAIT_S)


def _running_or_started(own: services.LocalServices, folder: Path) -> dict[str, str] | None:
    """The environment of another process's servers, or None once our own have started."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        if record := state_module.running(folder):
            return dict(record["env"])
        if own.try_start():
            return None
        if time.monotonic() > deadline:
            raise LocalServicesError(f"Another command holds the servers in {folder}. Try again later.")
        time.sleep(0.1)


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # unwinds, so that the servers stop in order
