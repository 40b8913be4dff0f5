"""The files of one replica's folder, by which agent and shim speak to one another.

Each file has one writer, except `exit.json`: the shim writes it, and the agent does where the shim cannot
(it was killed, the machine rebooted, or the replica never started here). No dataclasses: the shim imports
this module, and their import alone costs more than the rest of it.
"""

import os
from typing import Final, Literal, TypedDict

OnDisconnect = Literal["keep", "stop"]

LAUNCH_FILE: Final = "launch.json"  # agent: how to start it
ORDER_FILE: Final = "order.json"  # agent: what the server asked for; written last, so it marks a whole folder
STOP_FILE: Final = "stop.json"  # agent: end it
SHIM_FILE: Final = "shim.json"  # shim: I own this replica
CHILD_FILE: Final = "child.json"  # shim: the program runs
EXIT_FILE: Final = "exit.json"  # shim (or agent): the program ended
LOCK_FILE: Final = "shim.lock"  # held by the shim for as long as it lives
TAIL_FILE: Final = "tail.json"  # agent: how far the logs were sent
CONTROL_FILES: Final = (
    ORDER_FILE,
    LAUNCH_FILE,
    STOP_FILE,
    SHIM_FILE,
    CHILD_FILE,
    EXIT_FILE,
    LOCK_FILE,
    TAIL_FILE,
)
MESSAGE_CHARS: Final = 400  # as many as the server keeps
LOG_FOLDER: Final = "logs"
WORK_FOLDER: Final = "work"
TEMPORARY_PREFIX: Final = "gpuyard-"  # nothing that is called otherwise is ever removed as a temporary folder


class Launch(TypedDict):
    argv: list[str]
    env: dict[str, str]
    working_dir: str
    temporary_dir: str
    time_limit_s: float | None
    grace_s: float
    on_disconnect: OnDisconnect
    lease_file: str
    lease_deadline_s: float
    spool_bytes: int


class Stop(TypedDict):
    grace_s: float


class ShimIdentity(TypedDict):
    pid: int
    started_ticks: int
    boot_id: str


class Child(TypedDict):
    pid: int
    started_ticks: int
    started_s: float
    boot_id: str


class Exit(TypedDict):
    exit_code: int | None
    signal: int | None
    reason: str
    message: str
    ended_s: float
    boot_id: str
    clean: bool


class Lease(TypedDict):
    deadline_s: float
    boot_id: str


def shortened(text: str, most: int = MESSAGE_CHARS) -> str:
    """Cut out of the middle: what it is about stands first, why it went wrong last."""
    if len(text) <= most:
        return text
    kept = most - 1
    return f"{text[: kept // 2]}…{text[len(text) - (kept - kept // 2) :]}"


def path_of(folder: str, name: str) -> str:
    return os.path.join(folder, name)
