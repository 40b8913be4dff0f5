"""Hours and local midnights as integer microseconds since 1970 (UTC). Pure: no Django, no clock."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
_ONE_US = timedelta(microseconds=1)


def to_us(moment: datetime) -> int:
    """An aware time as microseconds since 1970, exactly."""
    return (moment - EPOCH) // _ONE_US


def from_us(us: int) -> datetime:
    """The UTC time of microseconds since 1970, exactly."""
    return EPOCH + timedelta(microseconds=us)


def local_day(us: int, zone: ZoneInfo) -> date:
    """The calendar day of a moment in a time zone."""
    return from_us(us).astimezone(zone).date()


def hour_starts(start_us: int, end_us: int) -> list[int]:
    """The full UTC hours strictly inside the window."""
    first = (start_us // HOUR_US + 1) * HOUR_US
    return list(range(first, end_us, HOUR_US))


def midnights(start_us: int, end_us: int, zone: ZoneInfo) -> list[int]:
    """The moments strictly inside the window at which a new local day begins.

    Where clocks skip midnight, the pre-change offset (fold 0) gives the moment of the change itself; where midnight
    happens twice, fold 0 is the first: the day begins once.
    """
    day = local_day(start_us, zone)
    last = local_day(end_us, zone)
    found = []
    while day < last:
        day += timedelta(days=1)
        at = to_us(datetime(day.year, day.month, day.day, tzinfo=zone))
        if start_us < at < end_us:
            found.append(at)
    return found
