"""The worked example of FGD, and that sums are exact whatever the order and the batch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.engine.fragmentation import Fragments, PackingPolicy, Potential
from scheduling.engine.mix import Ask, Mix

SHARE, ONE, TWO = Ask(1000, 1, 300), Ask(1000, 1, 1000), Ask(1000, 2, 1000)
FGD_MIX = Mix.of({SHARE: 5.0, ONE: 3.0, TWO: 2.0})
FRAGMENTS_ONLY = PackingPolicy(fragments=1.0, shares=0.0, stranded=0.0, popular_part=1.0)
FGD = PackingPolicy(1.0, 0.0, 0.0, popular_part=1.0, measure=Fragments.SLIVERS)
BUSY_MIX = Mix.of({SHARE: 5.0, Ask(3152, 1, 810): 7.0, ONE: 3.0, TWO: 2.0, Ask(9000, 0, 0): 4.0})
ROWS = st.lists(
    st.tuples(st.integers(0, 96_000), st.lists(st.integers(0, 1000), min_size=4, max_size=4)),
    min_size=1,
    max_size=20,
)


def potential(mix: Mix, policy: PackingPolicy) -> Potential:
    return Potential(mix, ("a", "b"), np.array([8000.0, 4000.0]), policy)


def level(of: Potential, cpu_free_m: int, slots: list[int]) -> float:
    return float(of(np.array([0]), np.array([cpu_free_m]), of.traits(np.array([slots])))[0])


def test_fgd_worked_example() -> None:
    fgd = potential(FGD_MIX, FGD)
    assert level(fgd, 64_000, [500, 1000]) == pytest.approx(450, abs=0.01)
    assert level(fgd, 63_000, [200, 1000]) == pytest.approx(400, abs=0.01)  # 50 fewer fragments: GPU 0
    assert level(fgd, 63_000, [500, 700]) == pytest.approx(600, abs=0.01)


def test_without_cpu_all_free_gpu_is_a_fragment() -> None:
    for policy in (FGD, FRAGMENTS_ONLY):
        assert level(potential(FGD_MIX, policy), 999, [500, 1000]) == pytest.approx(1500)


def test_placeable_counts_whole_tasks() -> None:
    # idle 1500; of shares 1 + 3 fit (1200), of single GPUs one, of pairs none: 1500 - .5 * 1200 - .3 * 1000
    assert level(potential(FGD_MIX, FRAGMENTS_ONLY), 64_000, [500, 1000]) == pytest.approx(600, abs=0.01)
    # CPU for two tasks only: 1500 - .5 * 600 - .3 * 1000
    assert level(potential(FGD_MIX, FRAGMENTS_ONLY), 2_999, [500, 1000]) == pytest.approx(900, abs=0.01)


def test_asks_that_the_tier_does_not_serve_see_only_fragments() -> None:
    only_b = Mix.of([Ask(1000, 1, 1000, ("b",))])
    of = potential(only_b, FRAGMENTS_ONLY)
    traits = of.traits(np.array([[1000, 1000]] * 2))
    assert of(np.array([0, 1]), np.array([64_000] * 2), traits) == pytest.approx([2000, 0])


def test_free_parts_lack_what_their_price_says() -> None:
    of = potential(Mix.of({Ask(0, 1, 500): 1.0}), PackingPolicy(0.0, 1.0, 0.0))
    assert level(of, 64_000, [1000, 1000]) == 0  # whole GPUs lack nothing
    assert level(of, 64_000, [500, 1000]) == 0  # half a GPU holds half a GPU's worth
    assert level(of, 64_000, [700, 499]) == pytest.approx(200 + 499)


def test_gpus_are_stranded_where_cpu_runs_out_first() -> None:
    of = potential(Mix.of({ONE: 3.0, Ask(4000, 1, 1000): 1.0}), PackingPolicy(0.0, 0.0, 1.0))
    # 2 GPUs free; 3 of 4 GPUs are asked with one core, the others with four
    assert level(of, 8000, [1000, 1000]) == 0
    assert level(of, 4000, [1000, 1000]) == pytest.approx(0.25 * 1000)
    assert level(of, 0, [1000, 1000]) == pytest.approx(2000)


@settings(deadline=None, max_examples=60)
@given(ROWS, st.sampled_from(list(Fragments)))
def test_equal_states_are_equal_to_the_last_bit(
    rows: list[tuple[int, list[int]]], measure: Fragments
) -> None:
    of = potential(BUSY_MIX, PackingPolicy(measure=measure))
    cpu, slots = np.array([cpu for cpu, _ in rows]), np.array([slots for _, slots in rows])
    together = of(np.zeros(len(rows), dtype=int), cpu, of.traits(slots))
    alone = [level(of, cpu_free, free[::-1]) for cpu_free, free in rows]
    assert together.tolist() == alone
