"""How numbers, durations and money are written."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from gpuyard.web import wording

NOW = datetime(2026, 11, 26, 10, 42, 7, tzinfo=UTC)
SPACE = wording.NARROW


def plain(text: str) -> str:
    return text.replace(SPACE, " ")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (42.9, "42 s"),
        (192, "3 m 12 s"),
        (599, "9 m 59 s"),
        (600, "10 m"),
        (8040, "2 h 14 m"),
        (43200, "12 h"),
        (529_000, "6 d 2 h"),
        (-5, "0 s"),
        (None, "–"),
    ],
)
def test_durations_read_as_people_say_them(seconds: float | None, shown: str) -> None:
    assert plain(wording.duration(seconds)) == shown


@pytest.mark.parametrize(
    ("typed", "seconds"),
    [
        ("12 h", 43200),
        ("1h30m", 5400),
        ("90 min", 5400),
        ("2d", 172_800),
        ("8", 28800),
        ("0.5", 1800),
        ("45 s", 45),
        ("soon", None),
        ("12 parsecs", None),
        ("", None),
        ("h", None),
    ],
)
def test_a_typed_time_is_read_or_refused(typed: str, seconds: int | None) -> None:
    assert wording.parse_duration(typed) == seconds


def test_a_shown_duration_can_be_typed_back() -> None:
    assert wording.parse_duration(wording.duration(8040)) == 8040


@pytest.mark.parametrize(
    ("amount", "currency", "shown"),
    [
        (Decimal("441.6"), "EUR", "441.60 €"),
        (Decimal("59760"), "USD", "59,760.00 $"),
        (Decimal("-3"), "EUR", "-3.00 €"),
        (Decimal("1.5"), "SEK", "1.50 SEK"),
        (None, "EUR", "–"),
    ],
)
def test_money_always_carries_its_currency(amount: Decimal | None, currency: str, shown: str) -> None:
    assert plain(wording.money(amount, currency)) == shown


def test_less_than_a_cent_is_never_shown_as_nothing() -> None:
    assert plain(wording.money(Decimal("0.004"), "EUR")) == "< 0.01 €"
    assert plain(wording.money(Decimal("0.00"), "EUR", True)) == "< 0.01 €"
    assert plain(wording.money(Decimal("0.00"), "EUR")) == "0.00 €"


@pytest.mark.parametrize(
    ("count", "tier", "shown"),
    [(4, "h100-80g", "4 × h100-80g"), (0.25, "l4-24g", "0.25 × l4-24g"), (1234, "", "1,234")],
)
def test_gpus_are_a_count_times_a_tier(count: float, tier: str, shown: str) -> None:
    assert plain(wording.gpus(count, tier)) == shown


@pytest.mark.parametrize(
    ("before", "shown"),
    [
        (timedelta(seconds=3), "now"),
        (timedelta(seconds=42), "42 s ago"),
        (timedelta(minutes=6, seconds=52), "6 m ago"),
        (timedelta(hours=2, minutes=14), "2 h 14 m ago"),
        (timedelta(minutes=-20), "in 20 m"),
    ],
)
def test_how_long_ago_is_counted_from_the_pages_clock(before: timedelta, shown: str) -> None:
    assert plain(wording.ago(NOW - before, NOW)) == shown


def test_a_clock_names_the_day_only_where_it_is_another() -> None:
    assert wording.clock(NOW, NOW) == "10:42"
    assert wording.clock(NOW + timedelta(days=1), NOW) == "Fri 27 Nov 10:42"
    assert wording.clock(NOW, NOW, seconds=True) == "10:42:07"


@pytest.mark.parametrize(
    ("name", "shown"), [("vision-manager", "VM"), ("ada", "AD"), ("researcher 04", "R0"), ("", "?")]
)
def test_initials_stand_for_a_person(name: str, shown: str) -> None:
    assert wording.initials(name) == shown


def test_every_state_has_a_word_and_a_mark() -> None:
    assert {word.glyph for word in wording.WORKLOAD_STATES.values()} <= {
        "wait", "claimed", "active", "stop", "done", "fault", "off", "unknown",
    }  # fmt: skip
    assert wording.state_word("of_another_version").label == "of another version"
