"""No secret enters the log: values under telling keys are masked before an event is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder

MASK = "•••"
_ENCODER = DjangoJSONEncoder()
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
    return _mask(json.loads(_ENCODER.encode(document)))


def _mask(value: Any, *, is_hidden: bool = False) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _mask(inner, is_hidden=is_hidden or _is_telling(key) or key.lower() in _MASKED_WHOLE)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_mask(inner, is_hidden=is_hidden) for inner in value]
    return MASK if is_hidden and value is not None else value


@lru_cache(maxsize=4096)  # a pass stores thousands of events with the same few keys
def _is_telling(key: str) -> bool:
    name = key.lower().replace("-", "_")
    return name not in _HARMLESS and any(part in name for part in _TELLING)
