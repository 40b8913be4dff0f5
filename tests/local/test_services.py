"""The launcher of the embedded PostgreSQL and Valkey."""

import os
import pwd
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import redis

from gpuyard.local import state as state_module
from gpuyard.local.services import LocalServices
from gpuyard.local.state import LocalServicesError
from tests.local.running import clean_environment

NEEDED = ["DATABASE_URL", "MIGRATE_DATABASE_URL", "REDIS_URL"]

# Imports first, then gives up root: the interpreter itself may lie where a plain user cannot read.
AS_PLAIN_USER = """
import os, sys
from pathlib import Path
import psycopg, redis
from gpuyard.local.services import LocalServices
import encodings.idna
uid, gid, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
os.setgroups([]); os.setgid(gid); os.setuid(uid)
services = LocalServices(folder, purpose="test")
urls = services.start()
with psycopg.connect(urls["DATABASE_URL"]) as connection:
    print(connection.execute("SELECT 'postgres answers'").fetchone()[0])
print(redis.Redis.from_url(urls["REDIS_URL"]).ping())
services.stop()
"""


@pytest.fixture(autouse=True)
def _nothing_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NEEDED:
        monkeypatch.delenv(name, raising=False)


def test_starts_both_and_gives_two_roles(state: Path) -> None:
    services = LocalServices(state, purpose="test")
    urls = services.start()
    try:
        with (
            psycopg.connect(urls["DATABASE_URL"]) as app,
            psycopg.connect(urls["MIGRATE_DATABASE_URL"]) as owner,
        ):
            query = "SELECT current_user, rolsuper, rolcreaterole FROM pg_roles WHERE rolname = current_user"
            assert app.execute(query).fetchone() == ("gpuyard_app", False, False)
            assert owner.execute(query).fetchone() == ("gpuyard_owner", False, False)
            owner.execute("CREATE EXTENSION btree_gist")
            owner.execute("CREATE TABLE made_by_owner (id int)")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                app.execute("CREATE TABLE made_by_app (id int)")
        assert redis.Redis.from_url(urls["REDIS_URL"]).ping()
    finally:
        services.stop()


def test_secrets_are_closed_to_others(state: Path) -> None:
    services = LocalServices(state, purpose="test")
    services.start()
    try:
        private = [state_module.running_file(state), *(state / "secrets").iterdir()]
        private += [*state.glob("pg*/data"), state / "valkey" / "valkey.conf"]
        assert {path.name: oct(stat.S_IMODE(path.stat().st_mode) & 0o077) for path in private} == {
            path.name: "0o0" for path in private
        }
    finally:
        services.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_runs_as_a_plain_user(state: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    os.chown(state.parent, nobody.pw_uid, nobody.pw_gid)
    script = [sys.executable, "-c", AS_PLAIN_USER, str(nobody.pw_uid), str(nobody.pw_gid), str(state)]
    env = clean_environment(state) | {"PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(state)}
    answer = subprocess.run(script, env=env, cwd="/", capture_output=True, text=True, timeout=60, check=False)
    if "may not execute" in answer.stderr or "PermissionError" in answer.stderr:
        pytest.skip("this environment lies where a plain user cannot execute it")
    assert answer.stdout.split("\n")[:2] == ["postgres answers", "True"], answer.stderr


def test_two_state_folders_run_side_by_side(state: Path) -> None:
    first, second = (LocalServices(state.parent / name, purpose="test") for name in ("state", "other"))
    try:
        one, two = first.start(), second.start()
        assert all(one[name] != two[name] for name in NEEDED)
        with psycopg.connect(one["DATABASE_URL"]) as a, psycopg.connect(two["DATABASE_URL"]) as b:
            assert a.execute("SELECT 1").fetchone() == b.execute("SELECT 1").fetchone() == (1,)
    finally:
        second.stop()
        first.stop()


def test_committed_rows_survive_kill_9_of_postgres(state: Path) -> None:
    services = LocalServices(state, purpose="test")
    services.start()
    try:
        postgres = services.servers[0]
        with psycopg.connect(services.environment["MIGRATE_DATABASE_URL"]) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS number")
        assert postgres.process is not None
        os.kill(postgres.process.pid, signal.SIGKILL)
        postgres.process.wait()
        assert postgres.restart()
        with psycopg.connect(services.environment["MIGRATE_DATABASE_URL"]) as connection:
            assert connection.execute("SELECT number FROM kept").fetchone() == (1,)
    finally:
        services.stop()


def test_configured_servers_win(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://somebody@example.test/theirs")
    monkeypatch.setenv("REDIS_URL", "redis://example.test")
    services = LocalServices(state, purpose="test")
    urls = services.start()
    services.stop()
    assert urls == {
        "DATABASE_URL": "postgresql://somebody@example.test/theirs",
        "REDIS_URL": "redis://example.test",
    }
    assert not list(state.glob("pg*"))


def test_one_starter_at_a_time(state: Path) -> None:
    first, second = LocalServices(state, purpose="up"), LocalServices(state, purpose="up")
    first.start()
    try:
        assert not second.try_start()
        with pytest.raises(LocalServicesError, match="already runs with the state folder"):
            second.start()
        found = state_module.running(state)
        assert found is not None
        assert found["env"] == first.environment
    finally:
        first.stop()
    assert state_module.running(state) is None


def test_data_of_another_postgres_version_is_refused_with_a_remedy(state: Path) -> None:
    (state / "pg14" / "data").mkdir(parents=True)
    services = LocalServices(state, purpose="test")
    with pytest.raises(LocalServicesError, match=r"holds data of PostgreSQL 14.*set GPUYARD_STATE"):
        services.start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers as somebody else")
def test_a_closed_state_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("GPUYARD_STATE", str(tmp_path / "state"))
    with pytest.raises(LocalServicesError, match=r"GPUYARD_STATE=.*nobody may not enter"):
        state_module.state_dir()
