"""The prices of shares are the duals of the cutting-stock LP: checked against all vertices on small mixes."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.engine.shareprices import best_fill, share_prices

EXAMPLES = settings(deadline=None, max_examples=60)
SIZES = st.lists(st.integers(19, 100).map(lambda tenth: 10 * tenth), min_size=1, max_size=3, unique=True)


def all_patterns(sizes: list[int]) -> list[tuple[int, ...]]:
    """Every set of shares that one GPU holds."""
    counts = product(*(range(1000 // size + 1) for size in sizes))
    return [c for c in counts if sum(n * size for n, size in zip(c, sizes, strict=True)) <= 1000]


def best_dual_value(sizes: list[int], counts: list[int]) -> float:
    """max counts·y over y >= 0 with y·pattern <= 1, by trying every vertex."""
    patterns = np.array(all_patterns(sizes), dtype=float)
    limits = np.concatenate((patterns[patterns.any(axis=1)], -np.eye(len(sizes))))
    bounds = np.concatenate((np.ones(len(limits) - len(sizes)), np.zeros(len(sizes))))
    best = 0.0
    for rows in combinations(range(len(limits)), len(sizes)):
        chosen = limits[list(rows)]
        if abs(np.linalg.det(chosen)) > 1e-9:
            vertex = np.linalg.solve(chosen, bounds[list(rows)])
            if (limits @ vertex <= bounds + 1e-9).all():
                best = max(best, float(np.array(counts) @ vertex))
    return best


@EXAMPLES
@given(SIZES, st.data())
def test_prices_are_feasible_and_optimal(sizes: list[int], data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 50), min_size=len(sizes), max_size=len(sizes)))
    prices = share_prices(sizes, counts)
    assert (prices >= 0).all()
    assert max(np.array(all_patterns(sizes)) @ prices) <= 1 + 1e-6
    assert np.array(counts) @ prices == pytest.approx(best_dual_value(sizes, counts), rel=1e-4)


@EXAMPLES
@given(SIZES)
def test_the_best_fill_is_that_of_all_fills(sizes: list[int]) -> None:
    prices = np.array([(7 * size) % 13 / 13 for size in sizes])
    value = best_fill(np.array(sizes), prices)[0]
    assert value[1000] == pytest.approx(max(np.array(all_patterns(sizes)) @ prices))
    assert (np.diff(value) >= 0).all()


def test_what_fits_in_others_left_over_is_worth_nothing() -> None:
    prices = share_prices([100, 700], [10, 90])
    assert prices == pytest.approx([0.0, 1.0])


def test_two_halves_and_a_share_that_spoils_a_card() -> None:
    assert share_prices([500], [3]) == pytest.approx([0.5])
    assert share_prices([510], [3]) == pytest.approx([1.0])


def test_the_order_of_sizes_and_large_mixes_are_no_trouble() -> None:
    sizes, counts = [810, 470, 320, 650, 230, 990, 11], [5, 4, 3, 2, 1, 1, 9]
    there = share_prices(sizes, counts)
    back = share_prices(sizes[::-1], counts[::-1])
    assert np.array(counts) @ there == pytest.approx(np.array(counts[::-1]) @ back, rel=1e-5)
    many = list(range(37, 987, 19))
    prices = share_prices(many, [1 + size % 7 for size in many])
    assert best_fill(np.array(many), prices)[0][1000] == pytest.approx(1.0)


def test_no_shares_have_no_prices() -> None:
    assert share_prices([], []).size == 0
