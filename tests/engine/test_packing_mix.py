import numpy as np
import pytest

from scheduling.engine.mix import Ask, Mix, accepts, scarcity

ANY, ONLY_A, ONLY_B, A_OR_B = (Ask(1000, 1, 1000, t) for t in ((), ("a",), ("b",), ("a", "b")))


def test_popular_asks_cover_the_part_and_no_more() -> None:
    mix = Mix.of({Ask(1, 0, 0): 60.0, Ask(2, 0, 0): 35.0, Ask(3, 0, 0): 5.0})
    assert mix.popular(0.95).asks == (Ask(1, 0, 0), Ask(2, 0, 0))
    assert mix.popular(0.951).asks == mix.asks
    assert mix.popular(0.95).frequencies() == pytest.approx([60 / 95, 35 / 95])


def test_order_and_repeats_do_not_matter() -> None:
    first, second = Ask(4000, 1, 300), Ask(2000, 2, 1000)
    assert Mix.of([first, second, first]) == Mix.of({second: 1.0, first: 2.0})


def test_an_empty_mix_is_a_mix() -> None:
    empty = Mix.of(())
    assert empty.popular(0.95).asks == ()
    assert empty.frequencies().size == 0
    assert scarcity(empty, ("a",), np.array([8000.0])).tolist() == [0.0]


def test_demand_counts_gpus_and_shares_are_counted_by_size() -> None:
    mix = Mix.of({Ask(1, 2, 1000): 1.0, Ask(1, 1, 500): 4.0, Ask(9, 1, 500): 2.0, Ask(1, 0, 0): 50.0})
    assert dict(zip(mix.asks, mix.gpu_demand(), strict=True))[Ask(1, 2, 1000)] == pytest.approx(0.4)
    assert mix.share_counts() == ([500], [6.0])


def test_no_tiers_named_accepts_all() -> None:
    assert accepts([ANY, ONLY_A], ("a", "b")).tolist() == [[True, True], [True, False]]


def test_a_tier_is_scarce_when_what_needs_it_exceeds_it() -> None:
    supply = np.array([2000.0, 8000.0])  # half of all demand needs `a`: 5 GPUs of 2
    assert scarcity(Mix.of([ONLY_A, ANY]), ("a", "b"), supply) == pytest.approx([1.5, 0.0])
    assert scarcity(Mix.of([ANY]), ("a", "b"), supply) == pytest.approx([0.0, 0.0])
    assert scarcity(Mix.of([ONLY_A, ANY]), ("a", "b"), supply, 2.5) == pytest.approx([0.0, 0.0])


def test_sets_of_tiers_are_scarce_together() -> None:
    supply = np.array([2000.0, 2000.0, 6000.0])
    mix = Mix.of({A_OR_B: 4.0, ONLY_B: 2.0, ANY: 4.0})  # 6 GPUs for the 4 of `a` and `b` together
    assert scarcity(mix, ("a", "b", "c"), supply) == pytest.approx([0.5, 0.5, 0.0])
