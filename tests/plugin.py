"""Loaded by pytest before anything else (`-p tests.plugin`): a PostgreSQL and a Valkey for the tests alone.

With DATABASE_URL, MIGRATE_DATABASE_URL and REDIS_URL set, those are used; the owner role needs CREATEDB.
pytest-xdist's workers inherit our environment: they share PostgreSQL (a database each) but get a Valkey each,
so that no worker takes the tasks of another.
"""

import atexit
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gpuyard.local.services import LocalServices

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "platform")) if path not in sys.path]

_services: "LocalServices | None" = None
_state: Path | None = None


def _start() -> None:
    global _services, _state
    parent_state = os.environ.get("GPUYARD_TEST_STATE")
    if parent_state is None:
        os.environ["GPUYARD_TEST_RUN"] = secrets.token_hex(4)
        if os.environ.get("DATABASE_URL"):
            return
    else:
        os.environ.pop("REDIS_URL", None)
    from gpuyard.local.services import LocalServices

    _state = Path(tempfile.mkdtemp(prefix="gpuyard-test-", dir=parent_state))
    if parent_state is None:
        os.environ["GPUYARD_TEST_STATE"] = str(_state)
    os.environ["GPUYARD_STATE"] = str(_state)
    _services = LocalServices(_state, purpose="tests")
    atexit.register(_stop, os.getpid())
    os.environ.update(_services.start())


def _stop(starter: int) -> None:
    global _services
    if _services is None or os.getpid() != starter:  # a forked child leaves its parent's servers alone
        return
    _services.stop()
    _services = None
    if _state is not None:
        shutil.rmtree(_state, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.browser.one_worker import OneWorker

    return OneWorker(config, log) if config.getoption("dist") == "load" else None


def pytest_unconfigure() -> None:
    _stop(os.getpid())


_start()
