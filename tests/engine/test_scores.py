"""What is kept of the fleet's state and costs equals what would be worked out anew."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.engine.decisions import Policy
from scheduling.engine.placement import Fleet, Shape, replicas_that_fit
from scheduling.engine.scoring import Scores
from scheduling.engine.snapshot import ISLAND, Snapshot
from tests.engine.worlds import shared_worlds

EXAMPLES = settings(deadline=None, max_examples=60)


def state(fleet: Fleet) -> list[list[object]]:
    kept = [fleet.cpu_free.tolist(), fleet.memory_free.tolist()]
    for tier in fleet.tiers.values():
        counts = (tier.held, tier.sharer, tier.slots, tier.usable, tier.free, tier.by_island)
        kept += [array.tolist() for array in counts]
        kept.append([tier.usable_in_all, tier.most_usable])
        assert (tier.usable_in_all, tier.most_usable) == (tier.usable.sum(), tier.usable.max(initial=0))
    return kept


def shapes(world: Snapshot, fleet: Fleet) -> list[Shape]:
    return [Shape.of(request, fleet.sharer_of(request.team_id)) for request in world.requests]


def costs(scores: Scores, world: Snapshot, fleet: Fleet) -> list[list[float]]:
    found = []
    for tier in fleet.tiers.values():
        for shape in shapes(world, fleet):
            count = np.minimum(fleet.fit_per_node(tier, shape), shape.replicas)
            if count.any():
                found.append(scores.costs(tier, shape, count, shape.replicas).tolist())
    return found


def with_islands(world: Snapshot, fleet: Fleet) -> list[Shape]:
    known = shapes(world, fleet)
    return [*known, *(replace(shape, required_level=ISLAND) for shape in known)]


def fits(world: Snapshot, fleet: Fleet) -> list[list[int]]:
    tiers = fleet.tiers.values()
    return [
        fleet.fit_per_node(tier, shape).tolist() for tier in tiers for shape in with_islands(world, fleet)
    ]


def fits_anew(world: Snapshot, fleet: Fleet) -> list[list[int]]:
    found = []
    for tier in fleet.tiers.values():
        for shape in with_islands(world, fleet):
            count = tier.replicas_on_islands if shape.required_level == ISLAND else tier.replicas_by_gpu
            free = fleet.cpu_free[tier.nodes], fleet.memory_free[tier.nodes]
            fit = replicas_that_fit(shape, count(shape), *free) * fleet.open_nodes(tier, shape)
            found.append(fit.tolist())
    return found


@EXAMPLES
@given(shared_worlds(), st.data())
def test_costs_and_fits_follow_what_is_placed_released_and_undone(
    world: Snapshot, data: st.DataObject
) -> None:
    fleet = Fleet(world)
    costs(fleet.scores, world, fleet)
    fits(world, fleet)
    for shape in shapes(world, fleet):
        before, was = fleet.savepoint(), state(fleet)
        fleet.release(data.draw(st.lists(st.sampled_from(world.live), unique=True)) if world.live else ())
        tier = fleet.tiers[data.draw(st.sampled_from(sorted(fleet.tiers)))]
        fleet.place(tier, shape)
        costs(fleet.scores, world, fleet)
        if data.draw(st.booleans()):
            fleet.rollback(before)
            assert state(fleet) == was
        else:
            break
        fits(world, fleet)
    assert fits(world, fleet) == fits_anew(world, fleet)
    fresh = Scores(list(fleet.tiers.values()), fleet.cpu_free, fleet.cpu_total, fleet.mix, Policy())
    assert costs(fleet.scores, world, fleet) == costs(fresh, world, fleet)


@EXAMPLES
@given(shared_worlds())
def test_the_count_of_what_fits_is_what_can_be_placed_one_by_one(world: Snapshot) -> None:
    fleet = Fleet(world)
    for shape in shapes(world, fleet):
        for tier in fleet.tiers.values():
            one, before = shape.with_replicas(1), fleet.savepoint()
            count = int(fleet.fit_per_node(tier, one).sum())
            placed = 0
            while fleet.place(tier, one) is not None:
                placed += 1
            assert placed == count
            fleet.rollback(before)
