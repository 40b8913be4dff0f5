"""Keys and public ids.

Keys are UUIDv7 (RFC 9562, section 5.7): their order is the order of creation, which keeps index pages dense.
Public ids are random, because a sequence would tell a stranger how much others submit.
"""

from __future__ import annotations

import secrets
import time
import uuid
from functools import partial

# No i, l, o, u and no vowels beside a and e: ids are read aloud and never spell words.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PUBLIC_LENGTH = 8


def uuid7() -> uuid.UUID:
    """Returns a UUIDv7: 48 bits of Unix milliseconds, then 74 random bits."""
    unix_ms = time.time_ns() // 1_000_000
    random_bits = secrets.randbits(74)
    value = (unix_ms & (2**48 - 1)) << 80
    value |= 0x7 << 76 | (random_bits >> 62) << 64
    value |= 0b10 << 62 | random_bits & (2**62 - 1)
    return uuid.UUID(int=value)


def uuid7_text() -> str:
    """The same as text, for rows that are written by the thousand."""
    unix_ms = time.time_ns() // 1_000_000
    random_bits = secrets.randbits(74)
    high = 0x7000 | random_bits >> 62
    low = 1 << 63 | random_bits & (2**62 - 1)
    text = f"{unix_ms:012x}{high:04x}{low:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_public_id(prefix: str) -> str:
    """Returns `<prefix>-` and eight random characters (40 bits); a unique constraint catches the rare repeat."""
    return f"{prefix}-" + "".join(secrets.choice(_ALPHABET) for _ in range(_PUBLIC_LENGTH))


# Defaults for model fields: migrations need importable names.
user_public_id = partial(new_public_id, "u")
team_public_id = partial(new_public_id, "t")
pool_public_id = partial(new_public_id, "p")
node_public_id = partial(new_public_id, "n")
gpu_public_id = partial(new_public_id, "g")
workload_public_id = partial(new_public_id, "w")
case_public_id = partial(new_public_id, "c")
