"""Moments as the engine counts them."""

from __future__ import annotations

from datetime import datetime, timedelta

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def to_us(moment: datetime) -> int:
    """Returns microseconds since 1970, exactly: a float of seconds would lose the last digits."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def from_us(moment_us: int) -> datetime:
    """The reverse of `to_us`."""
    return _EPOCH + timedelta(microseconds=moment_us)
