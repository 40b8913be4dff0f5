"""Settings stop the start with the variable's name."""

from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from gpuyard.settings import env


@pytest.fixture(params=["", "twelve", "-1"])
def bad_number(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("GPUYARD_DB_POOL", request.param)
    return str(request.param)


def test_a_missing_text_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUYARD_SECRET_KEY", raising=False)
    with pytest.raises(ImproperlyConfigured, match="GPUYARD_SECRET_KEY is not set"):
        env.text("GPUYARD_SECRET_KEY")


def test_a_bad_number_is_named_and_an_empty_one_is_the_default(bad_number: str) -> None:
    if bad_number == "":
        assert env.integer("GPUYARD_DB_POOL", 3) == 3
        return
    with pytest.raises(ImproperlyConfigured, match="GPUYARD_DB_POOL must be"):
        env.integer("GPUYARD_DB_POOL", 3)


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("Yes", True), ("0", False), ("", False)])
def test_flags(value: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUYARD_TLS", value)
    assert env.flag("GPUYARD_TLS", True) is expected


def test_a_flag_that_is_neither_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUYARD_TLS", "maybe")
    with pytest.raises(ImproperlyConfigured, match="GPUYARD_TLS must be 1 or 0, not 'maybe'"):
        env.flag("GPUYARD_TLS", True)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mysql://u:p@h/db", "must start with postgresql://"),
        ("sqlite:///file", "must start with postgresql://"),
        ("postgresql://u:p@h:5432", "names no database"),
    ],
)
def test_a_bad_database_url_is_named(url: str, reason: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"DATABASE_URL {reason}"):
        env.database("DATABASE_URL", url)


def test_a_socket_folder_stays_in_the_options() -> None:
    config = env.database("DATABASE_URL", "postgresql://u:p@/yard?host=%2Frun%2Fpg")
    assert (config["NAME"], config["OPTIONS"]["host"]) == ("yard", "/run/pg")


@pytest.mark.parametrize("url", ["redis://:p@h:6379", "redis://:p@h:6379/", "redis://:p@h:6379/0"])
def test_a_redis_url_is_the_server_alone(url: str) -> None:
    assert env.redis("REDIS_URL", url) == "redis://:p@h:6379"


@pytest.mark.parametrize(
    ("url", "reason"), [("redis://h:6379/3", "no database number"), ("amqp://h", "must look like redis://")]
)
def test_a_bad_redis_url_is_named(url: str, reason: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"REDIS_URL must .*{reason.removeprefix('must ')}"):
        env.redis("REDIS_URL", url)


def test_a_signing_key_comes_from_a_variable_or_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = "A" * 43
    monkeypatch.setenv("GPUYARD_AUDIT_KEY", key)
    assert env.signing_key("GPUYARD_AUDIT_KEY") == key
    monkeypatch.setenv("GPUYARD_AUDIT_KEY_FILE", str(tmp_path / "key"))
    with pytest.raises(ImproperlyConfigured, match="cannot be read"):
        env.signing_key("GPUYARD_AUDIT_KEY")
    (tmp_path / "key").write_text("short\n")
    with pytest.raises(ImproperlyConfigured, match="must be 32 random bytes"):
        env.signing_key("GPUYARD_AUDIT_KEY")
    (tmp_path / "key").write_text(f"{key}\n")
    assert env.signing_key("GPUYARD_AUDIT_KEY") == key
