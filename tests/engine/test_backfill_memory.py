"""The timeline keeps what it worked out; what it says must be as if it had kept nothing."""

import random

import numpy as np
import pytest

from scheduling.engine import moments
from scheduling.engine.backfill import Timeline
from scheduling.engine.decisions import Policy
from scheduling.engine.moments import Moments
from scheduling.engine.order import Ask, Asks
from scheduling.engine.placement import Fleet
from scheduling.engine.snapshot import Snapshot
from tests.engine.build import HOUR_US, NOW_US, a_node, a_request, a_world, held, some_gpus


def busy_world(seed: int) -> tuple[Snapshot, list[Ask]]:
    dice = random.Random(seed)
    names = [f"n{number}" for number in range(4)]
    live = [
        held(f"{name}.{place}", 2, node_id=name, ends_us=NOW_US + dice.randrange(1, 9) * HOUR_US)
        for name in names
        for place in range(4)
    ]
    requests = [
        a_request(
            f"w{number:02}",
            gpus=dice.choice((1, 2, 8)),
            replicas=dice.choice((1, 1, 2)),
            time_limit_s=dice.choice((3_600, 7_200)),
        )
        for number in range(24)
    ]
    gpus = [gpu for name in names for gpu in some_gpus(name, free=0)]
    world = a_world([a_node(name) for name in names], gpus, requests, live=live)
    return world, list(Asks(world, Policy(), NOW_US, Fleet(world)).all)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kept", [1 << 21, 24])  # 24 numbers are two moments
def test_what_is_kept_changes_no_answer(seed: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "_KEPT_NUMBERS", kept)
    world, asks = busy_world(seed)
    kept_on = Timeline(Fleet(world), world.live, Policy(), NOW_US)
    for count, ask in enumerate(asks):
        anew = Timeline(Fleet(world), world.live, Policy(), NOW_US)
        anew.held.update(kept_on.held)
        start_us = kept_on.earliest("h100", ask)
        assert start_us == anew.earliest("h100", ask)
        if start_us is not None:
            kept_on.reserve("h100", ask, start_us)
        if count % 5 == 4 and kept_on.held:
            kept_on.cancel(next(iter(kept_on.held)))  # room that comes back


def test_moments_follow_what_is_taken_while_they_hold() -> None:
    kept = Moments(2)
    kept.put(10, np.full((3, 2), 5))
    kept.put(20, np.full((3, 2), 5))
    kept.shift(15, 25, np.array([1]), np.array([[1], [2], [3]]))
    at_10, at_20 = kept.get(10), kept.get(20)
    assert at_10 is not None
    assert at_10.tolist() == [[5, 5]] * 3
    assert at_20 is not None
    assert at_20.tolist() == [[5, 6], [5, 7], [5, 8]]
    kept.forget()
    assert kept.get(10) is None
