"""No secret enters the log: values under telling keys are masked before an event is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder

MASK = "•••"
_ENCODER = DjangoJSONEncoder()
_PLAIN = frozenset({str, int, float, bool})
_TELLING = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "authorization",
    "cookie",
    "credential",
    "api_key",
    "apikey",
    "private_key",
    "access_key",
    "digest",
    "recovery_code",
    "totp",
    "session_key",
)
_HARMLESS = frozenset({"fencing_token", "token_id", "token_name", "token_prefix"})
# A workload's environment is full of secrets with harmless names: only the names are kept.
_MASKED_WHOLE = frozenset({"env", "environment", "headers"})


def masked(document: Any) -> Any:
    """A copy as plain JSON values (Decimal, datetime, UUID become text), its secrets replaced."""
    return _mask(document)


def _mask(value: Any, *, is_hidden: bool = False) -> Any:
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {
            str(key): _mask(inner, is_hidden=is_hidden or _is_hidden(str(key)))
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_mask(inner, is_hidden=is_hidden) for inner in value]
    return MASK if is_hidden else _plain(value)


def _plain(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, str):  # a member of an enum
        return str.__str__(value)
    return json.loads(_ENCODER.encode(value))


@lru_cache(maxsize=4096)  # a pass stores thousands of events with the same few keys
def _is_hidden(key: str) -> bool:
    return key.lower() in _MASKED_WHOLE or _is_telling(key)


def _is_telling(key: str) -> bool:
    name = key.lower().replace("-", "_")
    return name not in _HARMLESS and any(part in name for part in _TELLING)
