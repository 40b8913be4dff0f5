"""The generations of GPUs, oldest first: what "ampere or newer" means. A new generation is one word here."""

from __future__ import annotations

ARCHITECTURES = (
    "kepler",
    "maxwell",
    "pascal",
    "volta",
    "turing",
    "ampere",
    "ada",
    "hopper",
    "blackwell",
    "rubin",
)


def is_at_least(have: str, wanted: str) -> bool:
    """Whether `have` is the generation `wanted` or a newer one; one that is not known is newer than nothing."""
    return have in ARCHITECTURES and ARCHITECTURES.index(have) >= ARCHITECTURES.index(wanted)
