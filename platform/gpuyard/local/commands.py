"""Every management command finds a database: the configured one, the running local one, or one of its own."""

import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from gpuyard.local import services
from gpuyard.local import state as state_module
from gpuyard.local.state import LocalServicesError

# These need no database, or start everything themselves.
WITHOUT = frozenset(
    "help version check diffsettings findstatic collectstatic makemessages compilemessages makemigrations "
    "startapp startproject spectacular up demo state".split()
)
_WAIT_S = 60.0


@contextmanager
def services_for_command(argv: Sequence[str]) -> Iterator[None]:
    """Sets DATABASE_URL, MIGRATE_DATABASE_URL and REDIS_URL around a management command."""
    if not _needs_services(argv):
        # makemigrations would look for unapplied migrations; without a database there is nothing to compare.
        warnings.filterwarnings("ignore", message="Got an error checking a consistent migration history")
        yield
        return
    try:
        with local_services(f"manage.py {argv[1]}"):
            yield
    except LocalServicesError as problem:
        sys.stderr.write(f"{problem}\n")
        sys.exit(1)


def _needs_services(argv: Sequence[str]) -> bool:
    if os.environ.get("DATABASE_URL") or len(argv) < 2 or argv[1] in WITHOUT or argv[1].startswith("-"):
        return False
    return not any(word in {"-h", "--help", "--version"} for word in argv[2:])


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
    previous = signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        with state_module.environment(own.environment):
            yield
    finally:
        own.stop(wait_for_users_s=_WAIT_S)
        signal.signal(signal.SIGTERM, previous)


def _running_or_started(own: services.LocalServices, folder: Path) -> dict[str, str] | None:
    """The environment of another process's servers, or None once our own have started."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        if record := state_module.running(folder):
            return dict(record["env"])
        if own.try_start():
            return None
        if time.monotonic() > deadline:
            raise LocalServicesError(
                f"Another command is starting or stopping the servers in {folder}. Try again."
            )
        time.sleep(0.1)


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # unwinds, so that the servers stop in order
