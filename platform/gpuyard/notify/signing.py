"""The signature of a webhook: `GPUYard-Signature: t=<unix seconds>,v1=<hex>`, an HMAC-SHA256 of `t.body`.

The time is signed with the body, so that a request that somebody recorded can be refused when it comes again later.
While a secret is being changed there is a `v1` for each of both.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable

HEADER = "GPUYard-Signature"
WINDOW_S = 300  # what receivers are told to accept


def secret_new() -> str:
    """256 random bits; its beginning says what it is."""
    return f"whsec_{secrets.token_urlsafe(32)}"


def signature(body: bytes, secrets_active: Iterable[str], unix_s: int) -> str:
    """The value of the header."""
    signed = b"%d." % unix_s + body
    sums = [hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest() for secret in secrets_active]
    return ",".join([f"t={unix_s}", *(f"v1={one}" for one in sums)])
