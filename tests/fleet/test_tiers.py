"""How fast tiers are, and what they cost, as the pass knows it."""

from __future__ import annotations

import pytest

from gpuyard.core.errors import Forbidden, Invalid, NotFound
from gpuyard.fleet.tiers import tier_speeds_set
from scheduling.loader import snapshot_load
from tests import factories as make

pytestmark = pytest.mark.django_db


def test_speed_and_cost_reach_the_pass() -> None:
    tier = make.tier("h100-80g")
    make.cost_rate(tier, "3.250000")
    tier_speeds_set(actor=make.admin(), tier="h100-80g", speeds={"training": 2.5, "inference": 1})

    (seen,) = snapshot_load().snapshot.tiers

    assert seen.speeds == (("inference", 1000), ("training", 2500))
    assert seen.cost_micro == 3_250_000


def test_what_is_no_speed_is_refused() -> None:
    make.tier("h100-80g")
    for speeds in (
        {"training": 0.0},
        {"training": -1.0},
        {"mining": 1.0},
        {"training": 1001.0},
        {"training": float("nan")},
    ):
        with pytest.raises(Invalid):
            tier_speeds_set(actor=make.admin(), tier="h100-80g", speeds=speeds)
    with pytest.raises(NotFound):
        tier_speeds_set(actor=make.admin(), tier="none", speeds={})
    with pytest.raises(Forbidden):
        tier_speeds_set(actor=make.user(), tier="h100-80g", speeds={})
