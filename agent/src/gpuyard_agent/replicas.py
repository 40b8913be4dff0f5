"""The folder that stands for one replica on this node: it is there before the replica starts and until the
server has said that it needs to hear no more of it."""

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from gpuyard_agent import clock, files, records
from gpuyard_agent.protocol import MalformedAnswer, ReplicaOrder, read_order

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReplicaFolder:
    path: str
    order: ReplicaOrder
    boot_id: str  # of the machine when the replica was accepted

    def file(self, name: str) -> str:
        return records.path_of(self.path, name)

    @property
    def checkpoint_folder(self) -> str | None:
        """Where it writes its checkpoints; a relative path counts from where the program runs."""
        if self.order.checkpoint_dir is None:
            return None
        return os.path.join(
            self.order.working_dir or self.file(records.WORK_FOLDER), self.order.checkpoint_dir
        )

    def read(self, name: str) -> Any:
        return files.read_json(self.file(name))

    def write(self, name: str, value: object) -> None:
        files.write_json(self.file(name), value)

    def write_exit(
        self, *, reason: str, message: str = "", clean: bool, ended_s: float | None = None
    ) -> records.Exit:
        """For what the shim cannot write itself."""
        ended: records.Exit = {
            "exit_code": None,
            "signal": None,
            "reason": reason,
            "message": message,
            "ended_s": clock.now_s() if ended_s is None else ended_s,
            "boot_id": clock.boot_id(),
            "clean": clean,
        }
        files.write_json(self.file(records.EXIT_FILE), ended, durable=True)
        return ended


class ReplicaStore:
    def __init__(self, root: str) -> None:
        self._root = root
        os.makedirs(root, mode=0o700, exist_ok=True)

    def load(self) -> Iterator[ReplicaFolder]:
        """What earlier lives of the agent left here."""
        for name in sorted(os.listdir(self._root)):
            path = os.path.join(self._root, name)
            content = files.read_json(records.path_of(path, records.ORDER_FILE))
            if content is None:  # killed while making or removing it: nothing of it was started or is left
                _remove_tree(path)
                continue
            try:
                yield ReplicaFolder(path, read_order(content["order"]), content["boot_id"])
            except (MalformedAnswer, KeyError, TypeError) as error:
                logger.error("%s is unreadable and left alone: %s", path, error)

    def prepare(self, order: ReplicaOrder) -> ReplicaFolder:
        """Make the folders. Until `commit` the replica does not count as known."""
        path = os.path.join(self._root, order.replica_id)
        for folder in (
            path,
            records.path_of(path, records.LOG_FOLDER),
            records.path_of(path, records.WORK_FOLDER),
        ):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        return ReplicaFolder(path, order, clock.boot_id())

    def make_temporary_dir(self) -> str:
        """Outside the state folder: sockets are made in it, and their path may have 107 bytes only."""
        return tempfile.mkdtemp(prefix=records.TEMPORARY_PREFIX)

    def commit(self, folder: ReplicaFolder) -> None:
        """From here on the replica is known, also after a power cut: it must not be started a second time."""
        content = {"order": asdict(folder.order), "boot_id": folder.boot_id}
        files.write_json(folder.file(records.ORDER_FILE), content, durable=True)

    def remove(self, folder: ReplicaFolder) -> None:
        launch: records.Launch | None = folder.read(records.LAUNCH_FILE)
        for name in records.CONTROL_FILES:  # first the one that makes the folder count
            with contextlib.suppress(FileNotFoundError):
                os.unlink(folder.file(name))
        if launch is not None and os.path.basename(launch["temporary_dir"]).startswith(
            records.TEMPORARY_PREFIX
        ):
            _remove_tree(launch["temporary_dir"])
        _remove_tree(folder.path)


def _remove_tree(path: str) -> None:
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as error:  # such as a folder that the replica made unreadable
        logger.warning("%s could not be removed: %s", path, error)
