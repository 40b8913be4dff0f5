"""Units and amounts: integers and exact fractions until the one rounding at the end.

Thirds of an hour do not sum in decimals (3 times 20 minutes at 1.0 = 0.999…9), so lines store integer
unit-microseconds and their rate, and an amount is divided and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import cache

UNITS_PER_GPU = 7000
"""A whole GPU. 7000 so that thousandths and sevenths (the compute slices of MIG) are both integers."""
SLOTS_PER_GPU = 1000
COMPUTE_SLICES_PER_CARD = 7
UNIT_US_PER_GPU_HOUR = UNITS_PER_GPU * 3600 * 1_000_000


@cache  # of few different values, for each GPU of a fleet
def units_for(
    *,
    slots: int = SLOTS_PER_GPU,
    compute_slices: int = COMPUTE_SLICES_PER_CARD,
    card_slices: int = COMPUTE_SLICES_PER_CARD,
) -> int:
    """What an allocation counts for in quota and money: the only function that says so.

    Whole GPU: 7000. Share: 7 per slot. MIG instance: 7000 times its compute slices by the card's
    slices (7; on an A30: 4).
    """
    if not 0 < slots <= SLOTS_PER_GPU:
        raise ValueError(f"slots must be 1 to {SLOTS_PER_GPU}, not {slots}")
    if not 0 < compute_slices <= card_slices:
        raise ValueError(f"{compute_slices} compute slices of {card_slices}")
    units, remainder = divmod(UNITS_PER_GPU * slots * compute_slices, SLOTS_PER_GPU * card_slices)
    if remainder:
        raise ValueError(f"{slots} slots of {compute_slices}/{card_slices} of a card are no whole units")
    return units


def amount(unit_us: int, rate: Decimal, *, places: int = 2) -> Decimal:
    """The money for `unit_us` unit-microseconds at `rate` per GPU-hour, rounded once."""
    return amount_total([(unit_us, rate)], places=places)


def amount_total(lines: Iterable[tuple[int, Decimal]], *, places: int = 2) -> Decimal:
    """The money for many (unit-microseconds, rate), rounded once: rounded parts may have another sum."""
    return _rounded(sum((exact_amount(unit_us, rate) for unit_us, rate in lines), Fraction(0)), places)


def exact_amount(unit_us: int, rate: Decimal) -> Fraction:
    """The unrounded amount, for sums and for `round_to_total`."""
    return Fraction(rate) * unit_us / UNIT_US_PER_GPU_HOUR


def gpu_hours(unit_us: int, *, places: int = 6) -> Decimal:
    """Unit-microseconds as hours of a whole GPU."""
    return _rounded(Fraction(unit_us, UNIT_US_PER_GPU_HOUR), places)


def round_to_total(values: Sequence[Fraction | Decimal | int], *, places: int = 2) -> list[Decimal]:
    """Rounds each value so that the results add up to the rounded sum (largest remainder, first come)."""
    scaled = [Fraction(value) * 10**places for value in values]
    floors = [math.floor(value) for value in scaled]
    missing = round(sum(scaled, Fraction(0))) - sum(floors)
    by_remainder = sorted(range(len(scaled)), key=lambda i: (floors[i] - scaled[i], i))
    for index in by_remainder[:missing]:
        floors[index] += 1
    return [Decimal(floor).scaleb(-places) for floor in floors]


def largest_remainder(total: Decimal, weights: Sequence[Decimal | int], *, places: int = 2) -> list[Decimal]:
    """Splits `total` by weights into parts that add up to it exactly; equal parts if all weights are 0."""
    if Fraction(total) * 10**places % 1:
        raise ValueError(f"{total} has more than {places} decimals")
    weight_sum = sum((Fraction(weight) for weight in weights), Fraction(0))
    shares = [
        Fraction(weight) / weight_sum if weight_sum else Fraction(1, len(weights)) for weight in weights
    ]
    return round_to_total([Fraction(total) * share for share in shares], places=places)


def _rounded(value: Fraction, places: int) -> Decimal:
    # round() of a Fraction is exact and takes halves to even, as Decimal does by default.
    return Decimal(round(value * 10**places)).scaleb(-places)
