"""Typed readings of the environment. A bad or missing value stops the start with the variable's name."""

import base64
import ipaddress
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import environ
from django.core.exceptions import ImproperlyConfigured

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off", ""}


def text(name: str, default: str | None = None) -> str:
    value = os.environ.get(name, "")
    if value:
        return value
    if default is None:
        raise ImproperlyConfigured(f"{name} is not set. Set it in the environment and start again.")
    return default


def secret(name: str, default: str | None = None) -> str:
    """A text, or the content of the file that the variable with `_FILE` behind its name names."""
    if path := os.environ.get(f"{name}_FILE", ""):
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except OSError as exc:
            raise ImproperlyConfigured(f"{name}_FILE={path} cannot be read: {exc.strerror}.") from None
    return text(name, default)


def signing_key(name: str, default: str | None = None) -> str:
    """32 random bytes in base64url, as `secret`."""
    seed = secret(name, default)
    try:
        count = len(base64.b64decode(seed + "=" * (-len(seed) % 4), altchars=b"-_", validate=True))
    except ValueError:
        count = 0
    if count != 32:
        raise ImproperlyConfigured(
            f"{name} must be 32 random bytes in base64url. Make one with: "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return seed


def integer(name: str, default: int, *, at_least: int = 0) -> int:
    value = os.environ.get(name, "")
    if not value:
        return default
    try:
        number = int(value)
    except ValueError:
        raise ImproperlyConfigured(f"{name} must be a whole number, not {value!r}.") from None
    if number < at_least:
        raise ImproperlyConfigured(f"{name} must be at least {at_least}, not {number}.")
    return number


def flag(name: str, default: bool) -> bool:
    value = os.environ.get(name)
    if value is None:
        return default
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise ImproperlyConfigured(f"{name} must be 1 or 0, not {value!r}.")


def words(name: str, default: str = "") -> list[str]:
    """A comma-separated list."""
    return [word.strip() for word in os.environ.get(name, default).split(",") if word.strip()]


def one_of(name: str, choices: tuple[str, ...]) -> str:
    """One of these words; the first where nothing is said."""
    value = os.environ.get(name) or choices[0]
    if value not in choices:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(choices)}, not {value!r}.")
    return value


def networks(name: str) -> list[str]:
    """A comma-separated list of networks, such as 10.1.0.0/16."""
    found = words(name)
    for one in found:
        try:
            ipaddress.ip_network(one, strict=False)
        except ValueError:
            raise ImproperlyConfigured(
                f"{name} must hold networks such as 10.1.0.0/16, not {one!r}."
            ) from None
    return found


def database(name: str, url: str) -> dict[str, Any]:
    """Django's DATABASES entry for a PostgreSQL URL read from the variable `name`."""
    scheme = urlsplit(url).scheme
    if scheme not in {"postgres", "postgresql"}:
        raise ImproperlyConfigured(
            f"{name} must start with postgresql://, not {scheme or 'nothing'}://: "
            "GPU Yard runs on PostgreSQL only."
        )
    config: dict[str, Any] = environ.Env.db_url_config(url)
    if not config.get("NAME"):
        raise ImproperlyConfigured(
            f"{name} names no database: write postgresql://user:password@host:port/name."
        )
    config.setdefault("OPTIONS", {})
    return config


def redis(name: str, url: str) -> str:
    """The server part of a Redis URL; the database numbers are ours (broker 0, cache 1)."""
    parts = urlsplit(url)
    if parts.scheme not in {"redis", "rediss"} or not parts.hostname:
        raise ImproperlyConfigured(
            f"{name} must look like redis://:password@host:port, not {parts.scheme}://…."
        )
    if parts.path.strip("/") not in {"", "0"}:
        raise ImproperlyConfigured(f"{name} must name no database number: GPU Yard uses 0 and 1.")
    return url.split("?", 1)[0].rstrip("/").removesuffix("/0")
