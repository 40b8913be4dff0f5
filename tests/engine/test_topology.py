"""Domains by the numbers: which nodes a gang gets when only its topology counts."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduling.engine.machines import Ints
from scheduling.engine.topology import Fabric, Wish, assign, holds, level_now
from tests.engine.build import HOUR_US, NOW_US, a_node, a_request

LEVELS = ("zone", "rack")


def fabric(*domains: tuple[str, ...]) -> Fabric:
    return Fabric(LEVELS, [a_node(f"n{row}", domains=path) for row, path in enumerate(domains)])


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


def counts(fit: Ints, made: Fabric, wanted: int, wish: Wish | None = None) -> list[int] | None:
    found = assign(fit, fit, made.ids, wanted, wish or Wish())
    return None if found is None else found.tolist()


ONE_RACK = fabric(*[("z", "r")] * 4)
TWO_RACKS = fabric(("z", "r1"), ("z", "r1"), ("z", "r2"), ("z", "r2"))


def test_best_fit_of_kueue_fills_the_largest_and_ends_on_the_smallest_that_holds() -> None:
    """Room 3, 3, 2, 1 and 7 replicas: 3 + 3 + 1."""
    assert counts(ints(3, 3, 2, 1), ONE_RACK, 7) == [3, 3, 0, 1]
    assert counts(ints(1, 2, 3, 3), ONE_RACK, 7) == [1, 0, 3, 3]


def test_the_lowest_domain_that_holds_all_wins() -> None:
    assert counts(ints(2, 2, 8, 0), TWO_RACKS, 4) == [0, 0, 4, 0]
    assert counts(ints(2, 2, 3, 3), TWO_RACKS, 4) == [2, 2, 0, 0]


def test_among_equals_the_one_with_the_least_room_then_the_first_by_name() -> None:
    assert counts(ints(8, 5, 4, 6), ONE_RACK, 4) == [0, 0, 4, 0]
    assert counts(ints(4, 5, 4, 6), ONE_RACK, 4) == [4, 0, 0, 0]


def test_equal_rooms_go_to_the_domain_with_the_fewest_free_gpus() -> None:
    found = assign(ints(2, 2, 2, 2), ints(8, 8, 8, 5), TWO_RACKS.ids, 4, Wish())
    assert found is not None
    assert found.tolist() == [0, 0, 2, 2]


def test_required_waits_rather_than_cross_the_domain() -> None:
    fit = ints(2, 2, 2, 2)
    assert counts(fit, TWO_RACKS, 6, Wish(within=1)) is None
    assert not holds(fit, TWO_RACKS.ids, Wish(within=1), 6)
    assert counts(fit, TWO_RACKS, 6, Wish(within=0)) == [2, 2, 2, 0]
    assert holds(fit, TWO_RACKS.ids, Wish(within=0), 6)


def test_without_a_level_it_takes_several_domains_largest_first() -> None:
    assert counts(ints(1, 1, 3, 3), fabric(("a", "r"), ("a", "r"), ("b", "r"), ("b", "r")), 7) == [1, 0, 3, 3]


def test_the_same_rack_name_in_two_zones_is_two_racks() -> None:
    made = fabric(("a", "r"), ("a", "r"), ("b", "r"), ("b", "r"))
    assert counts(ints(1, 1, 1, 1), made, 4, Wish(within=1)) is None


def test_a_node_without_a_domain_is_near_nobody() -> None:
    made = fabric((), (), ("z",), ("z", ""))
    assert counts(ints(1, 1, 1, 1), made, 2, Wish(within=1)) is None
    assert counts(ints(1, 1, 1, 1), made, 2, Wish(within=0)) == [0, 0, 1, 1]


def test_a_rack_without_a_zone_is_still_one_place() -> None:
    made = fabric(("", "r"), ("z", "r"), ("", "r"))
    assert counts(ints(1, 1, 1), made, 2, Wish(within=1)) == [1, 0, 1]
    assert counts(ints(1, 1, 1), made, 2, Wish(within=0)) == [1, 0, 1]


def test_spread_is_as_even_as_there_is_room() -> None:
    made = fabric(("z", "r1"), ("z", "r2"), ("z", "r3"), ("z", "r3"))
    assert counts(ints(8, 8, 8, 8), made, 7, Wish(spread=1)) == [2, 2, 3, 0]  # the odd one where most room is
    assert counts(ints(1, 8, 8, 8), made, 7, Wish(spread=1)) == [1, 3, 3, 0]
    assert counts(ints(1, 1, 1, 1), made, 5, Wish(spread=1)) is None
    assert counts(ints(4, 4, 4, 4), TWO_RACKS, 4, Wish(within=1, spread=2)) == [2, 2, 0, 0]


def test_neighbours_in_the_fabric_are_neighbours_in_rank() -> None:
    made = fabric(("z2", "r1"), ("z1", "r2"), ("z2", "r1"), ("z1", "r1"))
    assert made.rank.tolist() == [2, 1, 3, 0]
    assert made.shared_level(ints(0, 2)) == ("rack", "r1")
    assert made.shared_level(ints(1, 3)) == ("zone", "z1")
    assert made.shared_level(ints(0, 3)) is None
    assert made.shared_level(ints(3)) == ("node", "n3")


def test_a_preference_is_insisted_on_for_a_while() -> None:
    request = a_request(preferred_level="rack", level_wait_s=7200, required_level="zone")
    assert level_now(request, NOW_US, LEVELS) == "rack"
    assert level_now(request, NOW_US + HOUR_US, LEVELS) == "zone"
    assert level_now(replace(request, required_level="node"), NOW_US, LEVELS) == "node"
    assert level_now(replace(request, preferred_level="gone"), NOW_US, LEVELS) == "zone"
    assert level_now(replace(request, required_level="gone"), NOW_US, LEVELS) == "gone"


@st.composite
def _rooms(draw: st.DrawFn) -> tuple[Fabric, Ints, int, Wish]:
    names = st.sampled_from(("", "a", "b"))
    made = fabric(*draw(st.lists(st.tuples(names, names), min_size=1, max_size=7)))
    fit = ints(*(draw(st.integers(0, 4)) for _ in range(made.ids.shape[1])))
    depths = st.sampled_from((None, 0, 1, 2))
    return made, fit, draw(st.integers(1, 12)), Wish(draw(depths), draw(depths))


@given(_rooms())
def test_all_replicas_have_a_place_within_the_rooms_and_the_wish(
    case: tuple[Fabric, Ints, int, Wish],
) -> None:
    made, fit, wanted, wish = case
    found = assign(fit, fit, made.ids, wanted, wish)
    assert (found is not None) == holds(fit, made.ids, wish, wanted)
    if found is not None:
        assert int(found.sum()) == wanted
        assert (found <= fit).all()
        assert (found >= 0).all()
        if wish.within is not None:
            assert len(set(made.ids[wish.within, found > 0].tolist())) == 1


@given(_rooms())
def test_spreading_leaves_nobody_with_room_behind(case: tuple[Fabric, Ints, int, Wish]) -> None:
    made, fit, wanted, _ = case
    found = assign(fit, fit, made.ids, wanted, Wish(spread=1))
    if found is not None:
        in_domain = np.bincount(made.ids[1], weights=found)
        has_room = np.bincount(made.ids[1], weights=fit) > in_domain
        assert not has_room.any() or in_domain[has_room].min() >= in_domain.max() - 1
