"""The split of a GPU's time: exact, and the same however a window is cut."""

import itertools
import uuid
from collections import Counter, defaultdict
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.days import HOUR_US, MINUTE_US, local_day, midnights, to_us
from billing.segments import Claim, ConditionSpan, Holding, Segment, Timeline, TimelineBroken, segments

TIER = uuid.UUID(int=1)
START = to_us(datetime(2026, 3, 28, 22, 0, tzinfo=UTC))
END = START + 6 * HOUR_US
ZONES = ["Europe/Berlin", "America/New_York", "Asia/Beirut", "Australia/Lord_Howe", "America/Havana", "UTC"]


def key(number: int) -> uuid.UUID:
    return uuid.UUID(int=100 + number)


def ready(start: int = START) -> list[ConditionSpan]:
    return [ConditionSpan(start, None, "ready", TIER)]


def by_bucket(found: list[Segment]) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for segment in found:
        totals[segment.bucket] += segment.unit_us
    return dict(totals)


# --- Any timeline at all -----------------------------------------------------------------------------------

moments = st.integers(START - HOUR_US, END + HOUR_US)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """One GPU with one to two lanes of slots; in each lane holders follow one another, as the ledger enforces."""
    edges = sorted(draw(st.sets(st.integers(START + 1, END - 1), max_size=3)))
    words = st.sampled_from(["ready", "maintenance", "cordoned", "down"])
    bounds = [START - HOUR_US, *edges]
    conditions = [ConditionSpan(a, b, draw(words), TIER) for a, b in zip(bounds, [*edges, None], strict=True)]
    lanes = draw(st.sampled_from([[(0, 1000)], [(0, 250), (250, 900)]]))
    holdings: list[Holding] = []
    claims: list[Claim] = []
    for lane in lanes:
        times = sorted(draw(st.sets(moments, min_size=0, max_size=8)))
        for index, (a, b) in enumerate(zip(times[::2], times[1::2], strict=False)):
            at = st.none() | st.integers(a, b)
            stretch = sorted(draw(st.tuples(st.integers(a, b), st.integers(a, b))))
            holdings.append(
                Holding(
                    key(len(holdings)),
                    7 * (lane[1] - lane[0]),
                    a,
                    b,
                    slots=(lane,),
                    running_from=draw(at),
                    stopping_from=draw(at),
                    uncharged=((stretch[0], stretch[1]),) if draw(st.booleans()) else (),
                    cuts=tuple(midnights(START, END, ZoneInfo(draw(st.sampled_from(ZONES))))),
                )
            )
            if index == 0 and draw(st.booleans()):  # promised while still held by another
                claims.append(Claim(key(50 + len(claims)), 7 * (lane[1] - lane[0]), a, b, slots=(lane,)))
    minutes = draw(
        st.dictionaries(
            st.integers(START // MINUTE_US, END // MINUTE_US), st.sampled_from(["active", "idle_held"])
        )
    )
    cuts = draw(st.lists(moments, max_size=3))
    return Timeline(7000, conditions, holdings, claims, cuts, minutes)


@given(timelines())
@settings(max_examples=150, deadline=None)
def test_every_microsecond_is_in_exactly_one_bucket(timeline: Timeline) -> None:
    found = segments(timeline, (START, END))
    assert sum(segment.unit_us for segment in found) == 7000 * (END - START)
    for hour in range(START, END, HOUR_US):
        in_hour = [s.unit_us for s in found if hour <= s.start and s.end <= hour + HOUR_US]
        assert sum(in_hour) == 7000 * HOUR_US


@given(timelines(), st.sets(st.integers(START, END), max_size=6))
@settings(max_examples=150, deadline=None)
def test_cutting_the_window_anywhere_changes_no_sum(timeline: Timeline, cuts: set[int]) -> None:
    def totals(found: list[Segment]) -> dict[tuple[object, ...], int]:
        sums: dict[tuple[object, ...], int] = defaultdict(int)
        for s in found:
            sums[(s.start // HOUR_US, s.bucket, s.key, s.tier)] += s.unit_us
        return dict(sums)

    bounds = [START, *sorted(cuts), END]
    pieces = [s for a, b in itertools.pairwise(bounds) for s in segments(timeline, (a, b))]
    assert totals(pieces) == totals(segments(timeline, (START, END)))


@given(timelines())
@settings(max_examples=100, deadline=None)
def test_a_holder_is_charged_its_units_for_its_span_less_what_is_uncharged(timeline: Timeline) -> None:
    found = segments(timeline, (START, END))
    charged: Counter[object] = Counter()
    for segment in found:
        if segment.bucket in ("active", "idle_held", "unknown", "transition"):
            charged[segment.key] += segment.unit_us
    for holding in timeline.holdings:
        assert holding.end is not None
        seconds = [(max(holding.start, START), min(holding.end, END))]
        for off, on in holding.uncharged:
            seconds = [
                piece for a, b in seconds for piece in ((a, min(b, max(a, off))), (max(a, min(b, on)), b))
            ]
        assert charged[holding.key] == holding.units * sum(max(0, b - a) for a, b in seconds)


@given(timelines())
@settings(max_examples=100, deadline=None)
def test_no_two_segments_of_one_holder_and_bucket_overlap(timeline: Timeline) -> None:
    spans: dict[tuple[object, str], list[tuple[int, int]]] = defaultdict(list)
    for segment in segments(timeline, (START, END)):
        assert segment.start // HOUR_US == (segment.end - 1) // HOUR_US
        spans[(segment.key, segment.bucket)].append((segment.start, segment.end))
    for found in spans.values():
        found.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(found))


# --- Each bucket ---------------------------------------------------------------------------------------------


def test_starting_running_and_stopping_are_told_apart() -> None:
    holding = Holding(
        key(1),
        7000,
        START,
        None,
        running_from=START + MINUTE_US,
        stopping_from=START + 4 * MINUTE_US,
    )
    first = START // MINUTE_US
    timeline = Timeline(
        7000, ready(), [holding], minutes={first: "active", first + 1: "active", first + 2: "idle_held"}
    )
    found = by_bucket(segments(timeline, (START, START + 5 * MINUTE_US)))
    minute = 7000 * MINUTE_US
    assert found == {"transition": 2 * minute, "active": minute, "idle_held": minute, "unknown": minute}


def test_a_claim_over_a_victim_that_still_stops_reserves_nothing() -> None:
    half = START + 30 * MINUTE_US
    victim = Holding(key(1), 7000, START, half)
    claim = Claim(key(2), 7000, START, None)
    found = by_bucket(segments(Timeline(7000, ready(), [victim], [claim]), (START, START + HOUR_US)))
    assert found == {"transition": 7000 * 30 * MINUTE_US, "reserved": 7000 * 30 * MINUTE_US}


def test_the_rest_of_a_shared_gpu_is_unallocated() -> None:
    share = Holding(key(1), 1750, START, None, slots=((0, 250),))
    found = by_bucket(segments(Timeline(7000, ready(), [share]), (START, START + HOUR_US)))
    assert found == {"transition": 1750 * HOUR_US, "unallocated": 5250 * HOUR_US}


def test_more_held_than_there_is_is_an_error() -> None:
    twice = [Holding(key(1), 7000, START, None), Holding(key(2), 7000, START, None)]
    with pytest.raises(TimelineBroken):
        segments(Timeline(7000, ready(), twice), (START, END))


def test_time_without_a_condition_is_an_error() -> None:
    with pytest.raises(TimelineBroken):
        segments(Timeline(7000, ready(START + 1)), (START, END))


# --- Local midnights -------------------------------------------------------------------------------------------


@given(st.sampled_from(ZONES), st.dates(date(2020, 1, 2), date(2030, 12, 30)))
@settings(max_examples=200, deadline=None)
def test_a_day_begins_at_its_local_midnight_also_when_clocks_change(zone: str, day: date) -> None:
    noon = to_us(datetime(day.year, day.month, day.day, 12, tzinfo=UTC))
    start, end, local = noon - 36 * HOUR_US, noon + 37 * HOUR_US, ZoneInfo(zone)
    found = midnights(start, end, local)
    assert len(found) == (local_day(end, local) - local_day(start, local)).days
    for at in found:
        assert local_day(at, local) > local_day(at - 1, local)


def test_the_day_of_the_change_of_clocks_in_berlin_has_23_hours() -> None:
    start, end = to_us(datetime(2026, 3, 28, 12, tzinfo=UTC)), to_us(datetime(2026, 3, 30, 12, tzinfo=UTC))
    first, second = midnights(start, end, ZoneInfo("Europe/Berlin"))
    assert second - first == 23 * HOUR_US


def test_where_midnight_is_skipped_the_day_begins_with_the_change() -> None:
    zone = ZoneInfo("Asia/Beirut")  # 00:00 → 01:00 on 2026-03-29
    start, end = to_us(datetime(2026, 3, 28, 12, tzinfo=UTC)), to_us(datetime(2026, 3, 29, 12, tzinfo=UTC))
    assert midnights(start, end, zone) == [to_us(datetime(2026, 3, 28, 22, tzinfo=UTC))]
