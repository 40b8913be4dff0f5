from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.core.money import (
    amount,
    amount_total,
    exact_amount,
    gpu_hours,
    largest_remainder,
    round_to_total,
    units_for,
)

HOUR_US = 3_600_000_000


@pytest.mark.parametrize(
    ("given", "units"),
    [
        ({}, 7000),
        ({"slots": 1}, 7),
        ({"slots": 333}, 2331),
        ({"compute_slices": 3}, 3000),
        ({"compute_slices": 1, "card_slices": 4}, 1750),
    ],
)
def test_units_of_whole_gpus_shares_and_instances(given: dict[str, int], units: int) -> None:
    assert units_for(**given) == units


@pytest.mark.parametrize(
    "given",
    [
        {"slots": 0},
        {"slots": 1001},
        {"slots": -1},
        {"compute_slices": 8},
        {"slots": 1, "compute_slices": 1, "card_slices": 3},
    ],
)
def test_units_of_what_cannot_be_held(given: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"slots|slices"):
        units_for(**given)


def test_three_thirds_of_an_hour_are_one_hour() -> None:
    third = 7000 * HOUR_US // 3
    assert amount_total([(third, Decimal("1.000000"))] * 3) == Decimal("1.00")
    assert gpu_hours(3 * third) == Decimal("1.000000")


def test_an_amount_is_rounded_once_and_halves_go_to_even() -> None:
    assert amount(7000 * HOUR_US, Decimal("0.125000")) == Decimal("0.12")
    assert amount(7000 * HOUR_US, Decimal("0.135000")) == Decimal("0.14")
    assert amount(1, Decimal("0.000001"), places=30) > 0


def test_rounded_values_add_up_to_the_rounded_sum() -> None:
    third = Fraction(100, 3)
    assert round_to_total([third, third, third]) == [Decimal("33.34"), Decimal("33.33"), Decimal("33.33")]


def test_a_reversal_rounds_to_its_total_too() -> None:
    parts = round_to_total([exact_amount(7000 * HOUR_US // 3, Decimal(1)) * sign for sign in (1, 1, -1, -1)])
    assert sum(parts) == 0


def test_no_lines_have_no_parts() -> None:
    assert round_to_total([]) == []


@given(
    cents=st.integers(-(10**9), 10**9),
    weights=st.lists(st.decimals(0, 10**6, places=6), min_size=1, max_size=20),
)
def test_a_split_adds_up_and_is_never_a_cent_off(cents: int, weights: list[Decimal]) -> None:
    total = Decimal(cents).scaleb(-2)
    parts = largest_remainder(total, weights)
    assert sum(parts) == total
    weight_sum = sum(map(Fraction, weights))
    if weight_sum:
        for part, weight in zip(parts, weights, strict=True):
            assert abs(Fraction(part) - Fraction(total) * Fraction(weight) / weight_sum) < Fraction(1, 100)


def test_a_total_finer_than_its_places_is_not_split() -> None:
    with pytest.raises(ValueError, match="decimals"):
        largest_remainder(Decimal("0.001"), [1, 1])
