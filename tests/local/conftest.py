import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.running import eventually, processes_of


@pytest.fixture
def state() -> Iterator[Path]:
    """A state folder that `nobody` can reach (pytest's own temporary folders are closed to it).

    Whatever a test does, no process may be left of it.
    """
    folder = Path(tempfile.mkdtemp(prefix="gpuyard-state-"))
    folder.chmod(0o755)
    yield folder / "state"
    gone = eventually(lambda: not processes_of(folder / "state"))
    left = processes_of(folder / "state")
    shutil.rmtree(folder, ignore_errors=True)
    assert gone, left
