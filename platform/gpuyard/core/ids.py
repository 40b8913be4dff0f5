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
# The variant of RFC 9562 is two bits: the other two of the digit stay random.
_VARIANTS = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def uuid7() -> uuid.UUID:
    """Returns a UUIDv7: 48 bits of Unix milliseconds, then 74 random bits."""
    unix_ms = time.time_ns() // 1_000_000
    random_bits = secrets.randbits(74)
    value = (unix_ms & (2**48 - 1)) << 80
    value |= 0x7 << 76 | (random_bits >> 62) << 64
    value |= 0b10 << 62 | random_bits & (2**62 - 1)
    return uuid.UUID(int=value)


def uuid7_texts(count: int) -> list[str]:
    """So many of the same as text, for rows that are written by the thousand: one look at the clock for all."""
    unix_ms = f"{time.time_ns() // 1_000_000:012x}"
    head = f"{unix_ms[:8]}-{unix_ms[8:]}-7"
    digits = secrets.token_hex(10 * count)  # 19 of each 20 are used
    return [
        f"{head}{digits[at : at + 3]}-{_VARIANTS[digits[at + 3]]}{digits[at + 4 : at + 7]}-{digits[at + 7 : at + 19]}"
        for at in range(0, 20 * count, 20)
    ]


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
quota_public_id = partial(new_public_id, "q")  # a grant, or a change that was asked for
