"""docker-compose.yml by contract: there is no Docker engine where this is built, so its commands run as processes."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from gpuyard.local.postgres import PostgresServer
from gpuyard.local.services import LocalServices
from tests.local.running import ROOT, clean_environment

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
APP_SERVICES = ["migrate", "web", "worker-pass", "worker", "beat"]
SECRETS = {
    "GPUYARD_SECRET_KEY": "secret-key",
    "GPUYARD_AUDIT_KEY": "A" * 43,
    "GPUYARD_APP_PASSWORD": "app-password",
    "GPUYARD_OWNER_PASSWORD": "owner-password",
    "POSTGRES_PASSWORD": "superuser-password",
}


def _filled(value: str) -> str:
    """Compose's ${NAME:-default} and ${NAME:?message}."""
    return re.sub(
        r"\$\{(\w+):([-?])([^}]*)\}",
        lambda m: SECRETS.get(m[1], m[3] if m[2] == "-" else "MISSING"),
        value,
    )


def _environment(service: str, state: Path) -> dict[str, str]:
    declared = {name: _filled(str(value)) for name, value in SERVICES[service]["environment"].items()}
    assert "MISSING" not in declared.values()
    return (
        clean_environment(state)
        | declared
        | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "platform")])}
    )


def _command(service: str) -> list[str]:
    words = [_filled(word) for word in SERVICES[service]["command"]]
    program = words.pop(0)
    return [sys.executable, *([] if program == "python" else ["-m", program]), *words]


def test_only_migrate_gets_the_owner_role() -> None:
    owners = [s for s in APP_SERVICES if "MIGRATE_DATABASE_URL" in SERVICES[s]["environment"]]
    assert owners == ["migrate"]
    assert all("gpuyard_app" in SERVICES[service]["environment"]["DATABASE_URL"] for service in APP_SERVICES)


def test_everything_waits_for_the_migrations() -> None:
    for service in set(APP_SERVICES) - {"migrate"}:
        assert SERVICES[service]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"


@pytest.mark.parametrize("service", APP_SERVICES)
def test_the_command_is_understood(service: str, tmp_path: Path) -> None:
    # `--help` after all other arguments: the program parses them and says so if it knows one of them not.
    answer = subprocess.run(
        [*_command(service), "--help"],
        env=_environment(service, tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "usage" in answer.stdout.lower()


def test_production_settings_pass_djangos_deployment_check(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "django", "check", "--deploy", "--fail-level", "ERROR"],
        env=_environment("web", tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize(
    "name", ["GPUYARD_SECRET_KEY", "GPUYARD_AUDIT_KEY", "DATABASE_URL", "REDIS_URL", "GPUYARD_ALLOWED_HOSTS"]
)
def test_production_names_the_missing_variable(name: str, tmp_path: Path) -> None:
    env = {k: v for k, v in _environment("web", tmp_path).items() if k != name}
    answer = subprocess.run(
        [sys.executable, "-m", "django", "diffsettings"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode != 0
    assert f"{name} is not set" in answer.stderr


def test_the_roles_script_makes_the_two_roles(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (ROOT / "docker/postgres/roles.sh").read_text()
    statements = re.search(r"<<'SQL'\n(.*)SQL\n", script, re.DOTALL)
    assert statements is not None
    for name in ("DATABASE_URL", "MIGRATE_DATABASE_URL"):
        monkeypatch.delenv(name)
    services = LocalServices(state, purpose="test")
    services.start()
    try:
        postgres = services.servers[0]
        assert isinstance(postgres, PostgresServer)
        with psycopg.connect(postgres.url("postgres", "postgres"), autocommit=True) as connection:
            for leftover in ("DATABASE gpuyard", "ROLE gpuyard_app", "ROLE gpuyard_owner"):
                connection.execute(f"DROP {leftover}")
            for statement in statements[1].strip().split(";\n"):
                connection.execute(re.sub(r":'(\w+)'", r"'\1'", statement))
            roles = connection.execute(
                "SELECT rolname, rolsuper, rolcanlogin FROM pg_roles WHERE rolname LIKE 'gpuyard%' ORDER BY 1"
            ).fetchall()
        assert roles == [("gpuyard_app", False, True), ("gpuyard_owner", False, True)]
    finally:
        services.stop()
