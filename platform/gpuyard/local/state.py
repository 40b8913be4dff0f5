"""Where one machine's state lies, its secrets, and how a second process finds what already runs.

Imports no Django: settings and manage.py use it before there is any.
"""

import hashlib
import json
import os
import pwd
import secrets
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

CHECKOUT = Path(__file__).resolve().parents[3]
LASTING_TEMP = Path("/var/tmp")  # noqa: S108  survives a reboot; our folder in it is checked for its owner
VARIABLES = ("DATABASE_URL", "MIGRATE_DATABASE_URL", "REDIS_URL")


class LocalServicesError(Exception):
    """The embedded services cannot be used; the message says what to do."""


@dataclass(frozen=True)
class ServerUser:
    """Whom PostgreSQL and Valkey run as: PostgreSQL refuses to run as root."""

    uid: int
    gid: int


def server_user() -> ServerUser | None:
    """`nobody` if we are root, else None: ourselves."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam("nobody")
    return ServerUser(entry.pw_uid, entry.pw_gid)


def state_dir() -> Path:
    """The folder that holds everything that lasts. It need not exist yet."""
    if chosen := os.environ.get("GPUYARD_STATE"):
        path = Path(chosen).absolute()
        if not reachable(path, server_user()):
            raise LocalServicesError(
                f"GPUYARD_STATE={path} lies below a folder that the user nobody may not enter, and "
                "PostgreSQL does not run as root. Choose one that everybody may enter, such as /var/lib/gpuyard."
            )
        return path
    in_checkout = (CHECKOUT / "manage.py").is_file()
    inside = CHECKOUT / ".state" if in_checkout else Path.home() / ".local" / "state" / "gpuyard"
    if reachable(inside, server_user()) and os.access(_nearest(inside), os.W_OK):
        return inside
    name = hashlib.sha256(str(inside).encode()).hexdigest()[:12]
    return LASTING_TEMP / f"gpuyard-{os.geteuid()}-{name}"


def reachable(path: Path, user: ServerUser | None) -> bool:
    """May this user pass through every existing folder above `path`?"""
    return user is None or all(
        _may_enter(parent, user) for parent in path.resolve().parents if parent.exists()
    )


def _may_enter(folder: Path, user: ServerUser) -> bool:
    info = folder.stat()
    if info.st_uid == user.uid:
        return bool(info.st_mode & stat.S_IXUSR)
    if info.st_gid == user.gid:
        return bool(info.st_mode & stat.S_IXGRP)
    return bool(info.st_mode & stat.S_IXOTH)


def _nearest(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


def prepare(path: Path) -> Path:
    """Creates the state folder; refuses one that somebody else put there first."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise LocalServicesError(f"Cannot create the state folder {path}: {problem.strerror}.") from None
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
        raise LocalServicesError(
            f"The state folder {path} is not ours. Remove it, or set GPUYARD_STATE to another folder."
        )
    path.chmod(0o711 if server_user() else 0o700)
    return path


def write_private(path: Path, content: str) -> None:
    """Replaces the file in one step; nobody else can read it at any moment."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
    temporary.replace(path)


def secret(folder: Path, name: str) -> str:
    """A random secret kept in the state folder; two processes that ask at once get the same."""
    path = folder / "secrets" / name
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if not path.exists():
        draft = path.with_name(f".{name}.{os.getpid()}.{secrets.token_hex(4)}")
        write_private(draft, secrets.token_urlsafe(32))
        try:
            os.link(draft, path)  # unlike rename, this fails if another process was first
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_text()


def secret_key() -> str:
    """Django's SECRET_KEY for local use; production sets GPUYARD_SECRET_KEY."""
    if chosen := os.environ.get("GPUYARD_SECRET_KEY"):
        return chosen
    try:
        return secret(prepare(state_dir()), "secret_key")
    except (OSError, LocalServicesError) as problem:
        sys.stderr.write(f"No lasting secret key ({problem}): sign-ins end with this process.\n")
        return secrets.token_urlsafe(32)


def audit_key() -> str:
    """The seed of the key that signs the log's checkpoints, for local use; production sets GPUYARD_AUDIT_KEY."""
    if os.environ.get("GPUYARD_AUDIT_KEY") or os.environ.get("GPUYARD_AUDIT_KEY_FILE"):
        return ""  # the settings read it
    try:
        return secret(prepare(state_dir()), "audit_key")
    except (OSError, LocalServicesError) as problem:
        sys.stderr.write(f"No lasting key for the log's checkpoints ({problem}).\n")
        return secrets.token_urlsafe(32)


def running_file(folder: Path) -> Path:
    return folder / "running.json"


def running(folder: Path) -> dict[str, Any] | None:
    """What running.json says, if the process that wrote it lives and its servers answer."""
    try:
        record: dict[str, Any] = json.loads(running_file(folder).read_text())
        urls = [record["env"][name] for name in ("DATABASE_URL", "REDIS_URL") if name in record["env"]]
        alive = _process_lives(int(record["pid"])) and all(_answers(url) for url in urls)
    except (OSError, ValueError, KeyError, LocalServicesError):
        return None
    return record if alive else None


def running_environment() -> dict[str, str]:
    """Connection URLs of the running local instance, or nothing. For settings."""
    if all(os.environ.get(name) for name in ("DATABASE_URL", "REDIS_URL")):
        return {}
    try:
        record = running(state_dir())
    except LocalServicesError:
        return {}
    return dict(record["env"]) if record else {}


def _process_lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _answers(url: str) -> bool:
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 5432), timeout=0.5):
            return True
    except OSError:
        return False


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Sets variables of this process, and takes them back."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
