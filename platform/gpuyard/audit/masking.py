"""No secret enters the log: masked before an event is stored are values under telling keys, and in any text what
looks like one: passwords in addresses, our tokens, bearer tokens, private keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder

MASK = "•••"
_ENCODER = DjangoJSONEncoder()
_PLAIN = frozenset({int, float, bool})
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
    "signing_key",
    "webhook_url",
)
# Each keeps what stands before the secret, so that one still sees what it was.
_SECRETS = re.compile(
    r"(://[^/\s:@]*:)[^/\s@]+(?=@)"
    r"|([?&](?:access_|api_|auth_)?(?:token|key|secret|password|passwd|signature|sig)=)[^&\s#]+"
    r"|(\bBearer )[^\s\"']+"
    r"|(\b(?:gpy|gy[a-z])_)[A-Za-z0-9_-]{16,}"
    r"|(hooks\.slack\.com/services/)[^\s\"']+"
    r"|(-----BEGIN [A-Z ]*PRIVATE KEY-----)[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.IGNORECASE,
)
_HINT = re.compile(r"://|[?&]|gpy|gy[a-z]_|bearer |slack|-----begin", re.IGNORECASE)
_HARMLESS = frozenset({"fencing_token", "token_id", "token_name", "token_prefix"})
# A workload's environment is full of secrets with harmless names: only the names are kept.
_MASKED_WHOLE = frozenset({"env", "environment", "headers"})


def text_masked(text: str) -> str:
    """The text without what looks like a secret in it."""
    if _HINT.search(text) is None:
        return text
    return _SECRETS.sub(lambda found: f"{found[found.lastindex or 0]}{MASK}", text)


def masked(document: Any) -> Any:
    """A copy as plain JSON values (Decimal, datetime, UUID become text), its secrets replaced."""
    return _mask(document)


def _mask(value: Any, *, is_hidden: bool = False) -> Any:
    if value is None:
        return None
    if type(value) not in _PLAIN:  # most are, and a pass stores thousands of events
        if isinstance(value, Mapping):
            return {
                str(key): _mask(inner, is_hidden=is_hidden or _is_hidden(str(key)))
                for key, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [_mask(inner, is_hidden=is_hidden) for inner in value]
    return MASK if is_hidden else _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return text_masked(str.__str__(value))  # a member of an enum is more than its text
    if type(value) in _PLAIN:
        return value
    return json.loads(_ENCODER.encode(value))


@lru_cache(maxsize=4096)  # a pass stores thousands of events with the same few keys
def _is_hidden(key: str) -> bool:
    return key.lower() in _MASKED_WHOLE or _is_telling(key)


def _is_telling(key: str) -> bool:
    name = key.lower().replace("-", "_")
    return name not in _HARMLESS and any(part in name for part in _TELLING)
