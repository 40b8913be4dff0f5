"""Topology in whole passes: where gangs start, what they wait for, and how their ranks lie."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.engine.explain import change_sentence, sentence
from scheduling.engine.plan import Plan, Policy, plan_to_json
from scheduling.engine.snapshot import Gpu, Node, Request, Snapshot
from scheduling.engine.topology import Fabric, level_now
from tests.engine.build import (
    A100,
    H100,
    HOUR_US,
    NOW_US,
    a_node,
    a_request,
    a_world,
    decide,
    held,
    nodes_of,
    some_gpus,
    started,
)
from tests.engine.worlds import snapshots

LEVELS = ("block", "rack")


def racks(free: Mapping[str, Sequence[int]], requests: Sequence[Request], **changes: Any) -> Snapshot:
    """Racks named "block/rack" with so many free of the 8 GPUs of each of their nodes."""
    nodes: list[Node] = []
    gpus: list[Gpu] = []
    for path, rows in free.items():
        for number, count in enumerate(rows):
            name = f"{path.replace('/', '')}{number}"
            nodes.append(a_node(name, domains=tuple(path.split("/"))))
            gpus += some_gpus(name, free=count)
    return replace(a_world(nodes, gpus, requests), levels=LEVELS, **changes)


def reached(decided: Plan) -> Any:
    return decided.starts[0].why_here["topology"]


def test_a_gang_goes_to_the_rack_that_holds_it_with_the_least_room() -> None:
    world = racks({"a/r": (8, 8, 8), "a/s": (8, 8), "b/t": (8,)}, [a_request(replicas=2, gpus=8)])
    decided = decide(world)
    assert nodes_of(decided) == ["as0", "as1"]
    assert reached(decided) == {"level": "rack", "domain": "s"}


def test_kueues_best_fit_in_a_rack() -> None:
    world = racks({"a/r": (3, 3, 2, 1), "a/s": (4,)}, [a_request(replicas=7, gpus=1, required_level="rack")])
    assert nodes_of(decide(world)) == ["ar0"] * 3 + ["ar1"] * 3 + ["ar3"]


def test_required_waits_though_the_gpus_are_free_elsewhere() -> None:
    request = a_request(replicas=3, gpus=8, required_level="rack")
    world = racks({"a/r": (8, 8, 0), "a/s": (8, 8)}, [request])
    assert started(decide(world)) == []
    assert started(decide(replace(world, requests=(replace(request, required_level="block"),)))) == ["w"]


def test_a_preference_is_kept_for_a_while_then_taken_as_it_comes() -> None:
    request = a_request(replicas=3, gpus=8, preferred_level="rack", level_wait_s=7200)
    free = {"a/r": (8, 8), "a/s": (8, 0), "b/t": (8, 0)}
    assert started(decide(racks(free, [request]))) == []
    waited = replace(request, queued_us=NOW_US - 2 * HOUR_US)
    assert nodes_of(decide(racks(free, [waited]))) == ["ar0", "ar1", "as0"]  # the block rather than any three


def test_ranks_follow_the_fabric() -> None:
    world = racks({"b/t": (8,), "a/s": (8,), "a/r": (8,), "b/u": (8,)}, [a_request(replicas=4, gpus=8)])
    assert nodes_of(decide(world)) == ["ar0", "as0", "bt0", "bu0"]


def test_spread_over_racks() -> None:
    request = a_request(replicas=4, gpus=1, spread_level="rack", kind="inference")
    decided = decide(racks({"a/r": (8, 8), "a/s": (1,), "b/t": (8,)}, [request]))
    assert sorted(name[:2] for name in nodes_of(decided)) == ["ar", "ar", "as", "bt"]


def test_a_replica_on_one_island() -> None:
    """Each node has two islands of 4."""
    gpus = [replace(gpu, free=gpu.index in {0, 1, 4, 5}) for gpu in some_gpus("n1")]
    request = a_request(gpus=4, required_level="island")
    world = a_world([a_node("n1")], gpus, [request])
    assert started(decide(world)) == []
    assert started(decide(replace(world, requests=(replace(request, required_level=None),)))) == ["w"]
    assert started(decide(replace(world, requests=(replace(request, gpus_per_replica=2),)))) == ["w"]


@pytest.mark.parametrize("replicas", [2, 4])
def test_a_small_gang_shares_one_island(replicas: int) -> None:
    gpus = [replace(gpu, free=gpu.index != 0) for gpu in some_gpus("n1")]
    world = a_world([a_node("n1")], gpus, [a_request(replicas=replicas, gpus=1, required_level="island")])
    (start,) = decide(world).starts
    islands = {int(gpu_id.split(".")[1]) // 4 for replica in start.replicas for gpu_id in replica.gpu_ids}
    assert islands == ({0} if replicas == 2 else {1})


def test_a_gang_larger_than_an_island_has_each_replica_on_one() -> None:
    gpus = [replace(gpu, free=gpu.index % 4 != 0) for name in ("n1", "n2") for gpu in some_gpus(name)]
    request = a_request(replicas=4, gpus=2, required_level="island")
    (start,) = decide(a_world([a_node("n1"), a_node("n2")], gpus, [request])).starts
    for replica in start.replicas:
        assert len({int(gpu_id.split(".")[1]) // 4 for gpu_id in replica.gpu_ids}) == 1
    assert started(decide(a_world([a_node("n1")], gpus[:8], [request]))) == []


def test_growth_stays_in_the_domain() -> None:
    request = replace(a_request(replicas=2, gpus=8, required_level="rack"), replicas_max=6)
    decided = decide(racks({"a/r": (8, 8, 8), "a/s": (8, 8)}, [request]))
    assert len(set(nodes_of(decided))) in {2, 3}
    assert len({name[:2] for name in nodes_of(decided)}) == 1


def test_a_gang_over_two_tiers_keeps_to_its_rack() -> None:
    nodes = [a_node(name, domains=("a", name[0])) for name in ("r1", "r2", "s1", "s2")]
    gpus = [*some_gpus("r1"), *some_gpus("s1"), *some_gpus("s2", tier=A100)]
    request = a_request(replicas=2, gpus=8, tiers=(H100.id, A100.id), mix_tiers=True, required_level="rack")
    world = replace(a_world(nodes, gpus, [request]), levels=LEVELS)
    assert sorted(nodes_of(decide(world))) == ["s1", "s2"]


def test_an_unknown_level_holds_nothing() -> None:
    request = a_request(replicas=2, gpus=8, required_level="galaxy")
    assert started(decide(racks({"a/r": (8, 8)}, [request]))) == []


def test_a_reservation_lies_in_one_domain() -> None:
    """r holds the gang once w1 ends; before that 16 GPUs are free, but in two racks."""
    request = a_request(replicas=2, gpus=8, required_level="rack", time_limit_s=3600)
    live = [held("w1", 8, node_id="ar1", ends_us=NOW_US + HOUR_US), held("w2", 8, node_id="as1")]
    decided = decide(racks({"a/r": (8, 0), "a/s": (8, 0)}, [request], live=tuple(live)))
    (reservation,) = decided.reservations
    assert (reservation.start_us, sorted(node for node, _ in reservation.nodes)) == (
        NOW_US + HOUR_US,
        ["ar0", "ar1"],
    )


def test_of_two_gangs_of_six_tenths_one_starts_and_the_other_holds_nothing() -> None:
    """10 nodes in two racks; each gang asks for 6 of them. A third job that fits beside the first starts too."""
    gangs = [a_request(f"g{number}", replicas=6, gpus=8, time_limit_s=7200) for number in (1, 2)]
    small = a_request("small", gpus=8, time_limit_s=3600, queued_us=NOW_US)
    decided = decide(racks({"a/r": (8,) * 5, "a/s": (8,) * 5}, [*gangs, small]))
    assert started(decided) == ["g1", "small"]
    (verdict,) = decided.verdicts
    assert (verdict.workload_id, verdict.eta_us) == ("g2", NOW_US + 2 * HOUR_US)
    taken = [gpu for start in decided.starts for replica in start.replicas for gpu in replica.gpu_ids]
    assert len(taken) == len(set(taken)) == 56


def test_without_levels_or_by_policy_the_score_alone_decides() -> None:
    request = a_request(replicas=2, gpus=8)
    free = {"a/r": (8,), "b/s": (8, 8)}
    assert nodes_of(decide(racks(free, [request]))) == ["bs0", "bs1"]
    assert nodes_of(decide(racks(free, [request]), Policy(gangs_close=False))) == ["ar0", "bs0"]
    assert nodes_of(decide(replace(racks(free, [request]), levels=()))) == ["ar0", "bs0"]


@st.composite
def _fabrics(draw: st.DrawFn) -> Snapshot:
    """Random worlds with racks in blocks, labels, and gangs that ask for all of it."""
    world = draw(snapshots())
    names = st.sampled_from(("", "x", "y"))
    labels = st.sampled_from(((), ("disk=ssd",)))
    nodes = [replace(node, domains=(draw(names), draw(names)), labels=draw(labels)) for node in world.nodes]
    levels = st.sampled_from((None, None, "block", "rack", "node", "island", "gone"))
    wants = [
        replace(
            request,
            required_level=draw(levels),
            preferred_level=draw(levels),
            level_wait_s=draw(st.sampled_from((0, 86_400))),
            spread_level=draw(st.sampled_from((None, "rack"))),
            node_labels=draw(labels),
            not_before_us=draw(st.sampled_from((None, None, NOW_US + HOUR_US))),
        )
        for request in world.requests
    ]
    return replace(world, nodes=tuple(nodes), requests=tuple(wants), levels=LEVELS)


@settings(deadline=None, max_examples=60)
@given(_fabrics())
def test_what_starts_keeps_to_its_level_and_what_waits_says_why(world: Snapshot) -> None:
    fabric = Fabric(LEVELS, sorted(world.nodes, key=lambda node: (node.name, node.id)))
    row_of = {name: row for row, name in enumerate(fabric.names[-1])}
    asked = {request.workload_id: request for request in world.requests}
    decided = decide(world)
    assert plan_to_json(decided) == plan_to_json(decide(world))
    for start in decided.starts:
        request = asked[start.workload_id]
        rows = np.array([row_of[replica.node_id] for replica in start.replicas])
        level = level_now(request, NOW_US, LEVELS)
        assert level != "gone"
        depth = fabric.depth(level)
        if depth is not None:
            assert len(set(fabric.ids[depth, rows].tolist())) == 1
        assert (
            (np.diff(fabric.rank[rows]) >= 0).all()
            or request.mix_tiers
            or request.replicas_max > request.replicas_min
        )
    for verdict in decided.verdicts:
        assert verdict.blockers
        assert all(sentence(blocker, {}) for blocker in verdict.blockers)
        assert change_sentence(verdict.smallest_change, {})
        assert verdict.eta_us is None or verdict.eta_us >= NOW_US
