"""Small JSON files that another process may read at any moment: always whole, never half-written."""

import json
import os
from typing import Any


def write_json(path: str, value: object, *, durable: bool = False, mode: int = 0o600) -> None:
    """Replace `path` in one step. `durable` also survives a power cut, and costs an fsync."""
    temporary = f"{path}.{os.getpid()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(descriptor, "w", encoding="utf-8") as handle:
        json.dump(value, handle)
        handle.flush()
        if durable:
            os.fsync(handle.fileno())
    os.replace(temporary, path)
    if durable:
        _sync_folder(os.path.dirname(path) or ".")


def read_json(path: str) -> Any:
    """The content, or None where there is no such file or it is no JSON."""
    try:
        with open(path, encoding="utf-8") as handle:
            return json.load(handle)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
