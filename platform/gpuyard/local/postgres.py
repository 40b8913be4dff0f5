"""One PostgreSQL server on 127.0.0.1: made once, started in the foreground, stopped in order."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from gpuyard.local import binaries, processes
from gpuyard.local.state import LocalServicesError, secret, server_user

SUPERUSER, OWNER, APP, DATABASE = "postgres", "gpuyard_owner", "gpuyard_app", "gpuyard"
_START_TIMEOUT_S = 60.0  # after kill -9 it first replays its log
_ATTEMPTS = 3


class PostgresServer:
    """Keeps its port over restarts, so that URLs handed out stay right."""

    name = "postgres"

    def __init__(self, state: Path) -> None:
        self._state = state
        self._user = server_user()
        self._binaries = binaries.postgres(state, self._user)
        # The folder names the major version: another one cannot read it.
        self._home = state / f"pg{self._binaries.major}"
        self.data = self._home / "data"
        self.log = state / "logs" / "postgres.log"
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def url(self, role: str, database: str = DATABASE) -> str:
        password = quote(secret(self._state, role), safe="")
        return f"postgresql://{role}:{password}@127.0.0.1:{self.port}/{database}"

    def environment(self) -> dict[str, str]:
        return {"DATABASE_URL": self.url(APP), "MIGRATE_DATABASE_URL": self.url(OWNER)}

    def start(self) -> None:
        self._initialise()
        _stop_orphan(self.data)
        for _attempt in range(_ATTEMPTS):
            self.port = self.port or processes.free_port()
            self._spawn()
            if self._wait_ready():
                self._ensure_roles()
                return
            self.stop()
            self.port = 0  # somebody took it between our look and its start
        raise LocalServicesError(f"PostgreSQL does not start. The end of {self.log}:\n{_tail(self.log)}")

    def restart(self) -> bool:
        """Starts it again on the same port; False if it does not come up."""
        _stop_orphan(self.data)
        self._spawn()
        return self._wait_ready()

    def stop(self) -> None:
        if self.process is not None:
            # SIGINT is PostgreSQL's fast shutdown; killing it would cost a recovery at the next start.
            processes.stop(self.process, signal.SIGINT, patience_s=30)
            self.process = None

    def _initialise(self) -> None:
        if (self.data / "PG_VERSION").exists():
            return
        self._warn_of_other_versions()
        self._home.mkdir(exist_ok=True)
        draft = self._home / "data.new"
        shutil.rmtree(draft, ignore_errors=True)  # of an initdb that was interrupted
        draft.mkdir(mode=0o700)
        password_file = self._home / ".superuser"
        password_file.write_text("")
        password_file.chmod(0o600)
        password_file.write_text(secret(self._state, SUPERUSER))
        for path in (self._home, draft, password_file):
            self._give(path)
        self._home.chmod(0o700)
        answer = processes.spawn(self._initdb(draft, password_file), user=self._user, output=subprocess.PIPE)
        output, _ = answer.communicate()
        password_file.unlink()
        if answer.returncode != 0:
            raise LocalServicesError(f"initdb failed:\n{output.decode(errors='replace')}")
        draft.rename(self.data)

    def _initdb(self, folder: Path, password_file: Path) -> list[str | Path]:
        # C.UTF-8 sorts the same on every machine, whatever LANG says.
        builtin = self._binaries.major >= 17
        locale = ["--locale-provider=builtin", "--locale=C.UTF-8"] if builtin else ["--locale=C.UTF-8"]
        options = ["-U", SUPERUSER, "--auth=scram-sha-256", "--encoding=UTF8", *locale]
        return [self._binaries.folder / "initdb", "-D", folder, f"--pwfile={password_file}", *options]

    def _warn_of_other_versions(self) -> None:
        others = sorted(f.parent.name for f in self._state.glob("pg*/data") if f.parent != self._home)
        if others:
            raise LocalServicesError(
                f"The state folder {self._state} holds data of PostgreSQL "
                f"{', '.join(o[2:] for o in others)}, but the installed one is {self._binaries.major}, which "
                "cannot read it. Install that version again, or set GPUYARD_STATE to a new folder."
            )

    def _give(self, path: Path) -> None:
        if self._user is not None:
            os.chown(path, self._user.uid, self._user.gid)

    def _spawn(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",  # a socket path may be too long, and TCP does as well
            "max_connections": "100",
            "shared_buffers": "64MB",
            "timezone": "UTC",
            "log_timezone": "UTC",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self.log.parent.mkdir(mode=0o700, exist_ok=True)
        with self.log.open("ab") as output:
            self.process = processes.spawn(
                [self._binaries.folder / "postgres", "-D", self.data, *options],
                user=self._user,
                death_signal=signal.SIGINT,
                output=output,
            )

    def _wait_ready(self) -> bool:
        process = self.process
        assert process is not None

        def settled() -> bool:
            return process.poll() is not None or _postmaster(self.data) == (process.pid, True)

        # An orphan of an earlier run would answer on its port too: postmaster.pid must name our child.
        return processes.wait_until(settled, timeout_s=_START_TIMEOUT_S) and process.poll() is None

    def _ensure_roles(self) -> None:
        """Makes what is missing: safe after an interrupted first start."""
        with psycopg.connect(self.url(SUPERUSER, "postgres"), autocommit=True) as connection:
            roles = {str(row[0]) for row in connection.execute("SELECT rolname FROM pg_roles")}
            for role, right in ((OWNER, "CREATEDB"), (APP, "NOCREATEDB")):
                if role not in roles:
                    connection.execute(
                        sql.SQL("CREATE ROLE {} LOGIN NOSUPERUSER NOCREATEROLE {} PASSWORD {}").format(
                            sql.Identifier(role), sql.SQL(right), sql.Literal(secret(self._state, role))
                        )
                    )
            # So that the owner may end the app's sessions, as DROP DATABASE … WITH (FORCE) does in tests.
            connection.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(APP), sql.Identifier(OWNER)))
            names = {str(row[0]) for row in connection.execute("SELECT datname FROM pg_database")}
            if DATABASE not in names:
                database, owner = sql.Identifier(DATABASE), sql.Identifier(OWNER)
                connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(database, owner))
                connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(database))
            connection.execute(
                sql.SQL("GRANT CONNECT, TEMPORARY ON DATABASE {} TO {}").format(
                    sql.Identifier(DATABASE), sql.Identifier(APP)
                )
            )


def _postmaster(data: Path) -> tuple[int, bool]:
    """The process that postmaster.pid names, and whether it says it is ready; (0, False) without the file."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
        return int(lines[0]), len(lines) > 7 and lines[7].strip() == "ready"
    except (OSError, ValueError, IndexError):
        return 0, False


def _stop_orphan(data: Path) -> None:
    """Ends a server of an earlier run that still holds our data, as happens without death signals."""
    pid, _ = _postmaster(data)
    if not pid or str(data) not in processes.command_line(pid):
        return
    try:
        os.kill(pid, signal.SIGINT)
    except ProcessLookupError:
        return
    if not processes.wait_until(lambda: str(data) not in processes.command_line(pid), timeout_s=30):
        raise LocalServicesError(
            f"PostgreSQL of an earlier run (process {pid}) does not stop. Stop it by hand."
        )
    time.sleep(0.1)  # its last shared memory goes a moment after it


def _tail(path: Path, lines: int = 15) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"
