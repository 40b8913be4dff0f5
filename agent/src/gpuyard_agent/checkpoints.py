"""How old the newest checkpoint of each replica is: the newest file below its checkpoint folder."""

import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import Final

from gpuyard_agent import clock

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 30.0
MOST_ENTRIES: Final = 20_000  # looked at in one walk
MOST_DEPTH: Final = 8
MOST_S: Final = 5.0


class CheckpointWatch:
    """One thread per look: a network file system that hangs delays neither the sync nor other replicas.

    While a look hangs, no other one starts in that folder.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written_s: dict[str, float] = {}  # on the agent's clock
        self._looked_s: dict[str, float] = {}
        self._in_flight: set[str] = set()

    def update(self, folders: Mapping[str, str]) -> None:
        """`folders`: replica → its checkpoint folder. Starts the looks that are due, forgets other replicas."""
        now_s = clock.now_s()
        with self._lock:
            self._written_s = {name: at for name, at in self._written_s.items() if name in folders}
            self._looked_s = {name: at for name, at in self._looked_s.items() if name in folders}
            due = [
                name
                for name in folders
                if name not in self._in_flight and now_s - self._looked_s.get(name, -INTERVAL_S) >= INTERVAL_S
            ]
            self._in_flight.update(due)
            self._looked_s.update(dict.fromkeys(due, now_s))
        for name in due:
            threading.Thread(target=self._look, args=(name, folders[name]), daemon=True).start()

    def written_s(self, replica_id: str) -> float | None:
        """When its newest checkpoint was written, on the agent's clock; None if there is none, or not known yet."""
        with self._lock:
            return self._written_s.get(replica_id)

    def _look(self, replica_id: str, folder: str) -> None:
        newest = newest_write(folder)
        # Both clocks now: only the age is taken over, so that setting the wall clock matters until the next look.
        age_s = None if newest is None else max(0.0, time.time() - newest)
        with self._lock:
            self._in_flight.discard(replica_id)
            if age_s is not None and replica_id in self._looked_s:
                self._written_s[replica_id] = clock.now_s() - age_s


def newest_write(folder: str) -> float | None:
    """The newest modification time of a file below `folder`, in seconds of the wall clock; None without files.

    Gives up looking, with what it has, after so many entries or seconds: newer folders first, and no links to folders.
    """
    deadline_s, left = clock.now_s() + MOST_S, MOST_ENTRIES
    newest: float | None = None
    waiting = [(folder, 0)]
    while waiting and left > 0 and clock.now_s() < deadline_s:
        path, depth = waiting.pop()
        below: list[tuple[float, str]] = []
        for entry, modified in _entries(path, left):
            left -= 1
            if entry.is_dir(follow_symlinks=False):
                below.append((modified, entry.path))
            else:
                newest = modified if newest is None else max(newest, modified)
        if depth < MOST_DEPTH:
            waiting += [(below_path, depth + 1) for _modified, below_path in sorted(below)]
    return newest


def _entries(path: str, most: int) -> list[tuple["os.DirEntry[str]", float]]:
    """What can be read of a folder, with modification times; nothing of one that is not there."""
    found: list[tuple[os.DirEntry[str], float]] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if len(found) >= most:
                    break
                try:
                    found.append((entry, entry.stat(follow_symlinks=False).st_mtime))
                except OSError:  # deleted meanwhile, as old checkpoints are
                    continue
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            logger.debug("checkpoint folder %s: %s", path, error)
    return found
