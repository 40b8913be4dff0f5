"""How good the choice of victims is: against every other choice, on small random clusters."""

import random
from itertools import combinations

from scheduling.engine.choices import Choices
from scheduling.engine.decisions import Policy
from scheduling.engine.ground import Ground
from scheduling.engine.placement import Fleet, Shape
from scheduling.engine.placings import units_of
from scheduling.engine.preemption import Search
from scheduling.engine.snapshot import Snapshot
from scheduling.engine.victims import RETURN, Victims
from tests.engine.build import (
    NOW_US,
    Work,
    a_node,
    a_request,
    a_world,
    decide,
    quota,
    running,
    some_gpus,
    with_work,
)

POLICY = Policy()


def a_small_yard(seed: int) -> tuple[Snapshot, list[Work]]:
    """Up to four nodes, filled with borrowed work of one or two replicas, some GPUs free; a gang asks."""
    rng = random.Random(seed)
    names = [f"n{number}" for number in range(rng.randint(2, 4))]
    room = {name: list(range(4)) for name in names}
    works = []
    for number in range(rng.randint(2, 8)):
        on = rng.sample(names, rng.choice((1, 1, 1, 2)))
        size = rng.choice((1, 1, 2, 2, 3, 4))
        if any(len(room[name]) < size for name in on):
            continue
        ago_us = rng.randint(1, 40) * 90_000_000
        parts = [
            running(
                f"v{number}", name, [room[name].pop() for _ in range(size)], checkpoint_us=NOW_US - ago_us
            )
            for name in on
        ]
        rows = tuple(row for part in parts for row in part.live)
        works.append(Work(parts[0].request, parts[0].running, rows))
    asked = a_request("w", gpus=rng.choice((1, 2, 4)), replicas=rng.randint(1, len(names)))
    world = a_world(
        [a_node(name) for name in names],
        [gpu for name in names for gpu in some_gpus(name, 4)],
        [asked],
        [quota("vision", guaranteed=99)],
    )
    return with_work(world, *works), works


def loss(work: Work) -> int:
    assert work.running.checkpoint_us is not None
    return sum(row.units for row in work.live) * (NOW_US - work.running.checkpoint_us) // (7000 * 1_000_000)


def least_loss(world: Snapshot, works: list[Work]) -> int | None:
    """Over all sets of victims that make room."""
    best: int | None = None
    for count in range(len(works) + 1):
        for leaving in combinations(works, count):
            total = sum(loss(work) for work in leaving)
            if (best is None or total < best) and fits_without(world, leaving):
                best = total
    return best


def fits_without(world: Snapshot, leaving: tuple[Work, ...]) -> bool:
    fleet = Fleet(world, POLICY)
    for work in leaving:
        fleet.release(work.live)
    (request,) = world.requests
    size, each = request.replicas_min, request.gpus_per_replica
    return int((fleet.tiers["h100"].usable // each).sum()) >= size


def test_the_loss_is_at_most_a_fifth_over_the_least_there_is() -> None:
    compared = 0
    for seed in range(120):
        world, works = a_small_yard(seed)
        decided = decide(world, POLICY)
        best = least_loss(world, works)
        if best is None:
            assert not decided.stops
            continue
        names = {stop.workload_id for stop in decided.stops}
        found = sum(loss(work) for work in works if work.request.workload_id in names)
        assert found <= 1.2 * best
        assert len(decided.claims) + len(decided.starts) == 1
        compared += bool(best)
    assert compared > 40


def test_no_victim_could_have_stayed() -> None:
    for seed in range(120):
        world, works = a_small_yard(seed)
        names = {stop.workload_id for stop in decide(world, POLICY).stops}
        leaving = [work for work in works if work.request.workload_id in names]
        for kept in leaving:
            assert not fits_without(world, tuple(work for work in leaving if work is not kept))


def test_equal_worlds_give_equal_victims() -> None:
    for seed in range(20):
        world, _ = a_small_yard(seed)
        assert decide(world, POLICY) == decide(world, POLICY)
        for claim in decide(world, POLICY).claims:
            assert units_of(claim.replicas) == world.requests[0].replicas_min * 7000 * len(
                claim.replicas[0].gpu_ids
            )


def test_what_is_kept_answers_like_what_is_made_anew() -> None:
    """One victim after another leaves; searches of several shapes share what is known of the nodes."""
    for seed in range(60):
        world, _ = a_small_yard(seed)
        fleet = Fleet(world, POLICY)
        tier = fleet.tiers["h100"]
        victims = Victims(world, POLICY, NOW_US).circles(RETURN)[0]
        everywhere = tier.usable >= 0
        shapes = [Shape.of(a_request(gpus=gpus, replicas=count)) for gpus in (1, 2, 4) for count in (1, 2)]
        ground = Ground(fleet, tier, victims)
        kept: dict[str, Choices] = {}
        searches = [Search(ground, kept, shape) for shape in shapes]
        while victims:
            fresh = Ground(fleet, tier, victims)
            for search, shape in zip(searches, shapes, strict=True):
                found = search.cheapest(shape.replicas, everywhere)
                assert found == Search(fresh, {}, shape).cheapest(shape.replicas, everywhere)
            gone = victims.pop(seed % len(victims))
            fleet.release(gone.live)
            ground.forget((), [gone])
