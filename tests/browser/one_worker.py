"""pytest-xdist gives all browser tests to one worker, so that one platform starts and not one for each worker.

Its own `--dist loadgroup` finds no groups under pytest 9.2, which keeps the ids of tests in another place.
"""

from xdist.scheduler.loadscope import LoadScopeScheduling  # type: ignore[import-untyped]


class OneWorker(LoadScopeScheduling):  # type: ignore[misc]
    """Every test goes where there is room, those of this folder together and first."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/browser" if nodeid.startswith("tests/browser/") else nodeid
