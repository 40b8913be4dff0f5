"""Moving work together, so that a larger start fits: when it is worth it, and never without a place for all."""

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduling.engine.decisions import Policy
from scheduling.engine.plan import plan_to_json
from scheduling.engine.snapshot import Snapshot, TeamEvictions
from tests.engine.build import (
    NOW_US,
    Work,
    a_node,
    a_request,
    a_world,
    claimed,
    decide,
    quota,
    running,
    some_gpus,
    stopped,
    with_work,
)
from tests.engine.yard import Yard

MINUTE_US = 60_000_000


def scattered(*works: Work, nodes: int = 2, cpu: int = 64_000, **asked: Any) -> Snapshot:
    """Nodes of 8 GPUs; vision asks for all GPUs of one of them."""
    names = [f"n{number + 1}" for number in range(nodes)]
    world = a_world(
        [a_node(name, cpu_free_m=cpu, cpu_total_m=cpu) for name in names],
        [gpu for name in names for gpu in some_gpus(name)],
        [a_request("w", **{"gpus": 8, **asked})],
    )
    return with_work(world, *works)


def half(name: str, node: str, first: int = 0, size: int = 4, **changes: Any) -> Work:
    """Runs since an hour ago, with a checkpoint of a minute ago."""
    values = {"borrowed": False, "checkpoint_us": NOW_US - MINUTE_US, **changes}
    return running(name, node, range(first, first + size), **values)


def test_work_moves_together_so_that_a_larger_start_fits() -> None:
    decided = decide(scattered(half("a", "n1"), half("b", "n2", restart_cost_s=60)))
    assert (stopped(decided), sorted(claimed(decided))) == (["a"], ["a", "w"])
    (stop,) = decided.stops
    assert (stop.reason, stop.for_workload_id, stop.replicas) == ("consolidate", "w", None)
    assert stop.why == {
        "rule": "consolidate",
        "gained_by_team": "vision",
        "gained_by_workload": "w",
        "lost_gpu_s": 240,
        "restart_gpu_s": 0,
        "checkpoint_age_s": 60,
        "evicted_units": 28000,
        "requested_units": 56000,
        "candidates": 2,
        "why_this": {"next_best_lost_gpu_s": None},
    }
    by_id = {claim.workload_id: claim for claim in decided.claims}
    assert by_id["w"].victims == ("a",)
    assert set(by_id["w"].replicas[0].gpu_ids) == {f"n1.{i}" for i in range(8)}
    assert (by_id["a"].victims, by_id["a"].borrowed) == ((), False)
    assert set(by_id["a"].replicas[0].gpu_ids) == {f"n2.{i}" for i in range(4, 8)}


def test_it_must_be_worth_it() -> None:
    """8 GPUs for half an hour against 4 GPUs for an hour and a restart."""
    works = [half("a", "n1", checkpoint_us=None), half("b", "n2", checkpoint_us=None)]
    assert stopped(decide(scattered(*works, time_limit_s=1800))) == []
    assert stopped(decide(scattered(*works, time_limit_s=1801))) == ["a"]
    dear = [replace(work, request=replace(work.request, restart_cost_s=60)) for work in works]
    assert stopped(decide(scattered(*dear, time_limit_s=1801))) == []


def test_no_more_of_the_run_counts_than_the_policy_says() -> None:
    world = scattered(half("a", "n1", checkpoint_us=None), half("b", "n2", checkpoint_us=None))
    assert stopped(decide(world, Policy(consolidation_cap_s=1800))) == []
    assert stopped(decide(world, Policy(consolidation_cap_s=1801))) == ["a"]


def test_who_finds_no_other_place_stays() -> None:
    """Six free GPUs on n1, three on n2, none of it for five more."""
    big = half("big", "n2", size=5)
    assert stopped(decide(scattered(half("a", "n1", size=2), half("b", "n1", 2), big))) == []
    pinned = half("a", "n1", not_nodes=("n2",))
    other = half("b", "n2", checkpoint_us=None, not_nodes=("n1",))
    assert stopped(decide(scattered(pinned, other))) == []


def test_another_moves_if_the_cheapest_has_no_place() -> None:
    pinned = half("a", "n1", not_nodes=("n2",))
    assert stopped(decide(scattered(pinned, half("b", "n2", restart_cost_s=60)))) == ["b"]


def test_several_move_but_never_more_than_the_policy_says() -> None:
    works = [half("a", "n1", size=2), half("b", "n1", 2, size=2), half("c", "n2", preemptible=False)]
    assert stopped(decide(scattered(*works))) == ["a", "b"]
    assert stopped(decide(scattered(*works), Policy(consolidation_movers=2))) == ["a", "b"]
    for most in (0, 1):
        assert stopped(decide(scattered(*works), Policy(consolidation_movers=most))) == []


def test_only_what_may_be_interrupted_moves() -> None:
    bound = [half("a", "n1", preemptible=False), half("b", "n2", preemptible=False)]
    assert stopped(decide(scattered(*bound))) == []
    young = [half(name, node, started_us=NOW_US - MINUTE_US) for name, node in (("a", "n1"), ("b", "n2"))]
    assert stopped(decide(scattered(*young))) == []
    often = [half("a", "n1", evictions=3), half("b", "n2", evictions=3)]
    assert stopped(decide(scattered(*often))) == []
    world = scattered(half("a", "n1"), half("b", "n2"))
    assert stopped(decide(replace(world, evictions=(TeamEvictions("speech", 50),)))) == []


def test_a_team_is_not_moved_beyond_its_budget() -> None:
    works = [half("a", "n1", size=2), half("b", "n1", 2, size=2), half("c", "n2", preemptible=False)]
    world = scattered(*works)
    assert stopped(decide(replace(world, evictions=(TeamEvictions("speech", 49),)))) == []
    assert stopped(decide(replace(world, evictions=(TeamEvictions("speech", 48),)))) == ["a", "b"]


def test_nothing_moves_for_whom_quotas_keep_out() -> None:
    world = scattered(half("a", "n1"), half("b", "n2"))
    assert stopped(decide(replace(world, quotas=(quota("vision", limit=7),)))) == []


def test_nothing_moves_where_not_enough_is_free() -> None:
    assert stopped(decide(scattered(half("a", "n1"), half("b", "n2", size=5)))) == []


def test_nothing_moves_while_enough_leaves() -> None:
    leaving = half("a", "n1")
    leaving = replace(
        leaving,
        live=(replace(leaving.live[0], state="stopping"),),
        running=replace(leaving.running, state="stopping"),
    )
    assert stopped(decide(scattered(leaving, half("b", "n2")))) == []


def test_the_books_are_as_if_nothing_had_moved() -> None:
    """What the gainer's own team runs inside the guarantee still counts while it moves."""
    own = [half("a", "n1", team="vision"), half("b", "n2", team="vision")]
    decided = decide(replace(scattered(*own), quotas=(quota("vision", guaranteed=8),)))
    assert {claim.workload_id: claim.borrowed for claim in decided.claims} == {"a": False, "w": True}


@st.composite
def busy_worlds(draw: st.DrawFn) -> Snapshot:
    """On each node a little is free."""
    works, nodes = [], draw(st.integers(2, 4))
    for number in range(nodes):
        column, until = 0, draw(st.integers(3, 6))
        while column < until:
            size = draw(st.integers(1, min(3, until - column)))
            changes = {
                "preemptible": draw(st.integers(0, 5)) > 0,
                "checkpoint_us": NOW_US - draw(st.integers(0, 40)) * MINUTE_US,
            }
            works.append(half(f"r{number}.{column}", f"n{number + 1}", column, size, **changes))
            column += size
    cpu, gpus, replicas = (
        draw(st.sampled_from((6_000, 64_000))),
        draw(st.integers(4, 8)),
        draw(st.integers(1, 2)),
    )
    world = scattered(*works, nodes=nodes, cpu=cpu, gpus=gpus, replicas=replicas)
    more = [a_request(f"x{i}", gpus=draw(st.integers(1, 8))) for i in range(draw(st.integers(0, 2)))]
    return replace(world, requests=(*world.requests, *more))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(busy_worlds())
def test_every_move_has_its_place_and_nothing_is_promised_twice(world: Snapshot) -> None:
    policy = Policy(consolidation_movers=3)
    decided = decide(world, policy)
    assert plan_to_json(decided) == plan_to_json(decide(world, policy))
    assert len(decided.stops) <= 3
    claims = {claim.workload_id: claim for claim in decided.claims}
    assert all(stop.workload_id in claims and stop.for_workload_id in claims for stop in decided.stops)
    leaving = {stop.workload_id for stop in decided.stops}
    taken = [gpu_id for row in world.live if row.workload_id not in leaving for gpu_id in row.gpu_ids]
    placed = [r for starts in (decided.starts, decided.claims) for one in starts for r in one.replicas]
    taken += [gpu_id for replica in placed for gpu_id in replica.gpu_ids]
    assert len(taken) == len(set(taken))
    for node in world.nodes:
        stay = sum(r.cpu_m for r in world.live if r.node_id == node.id and r.workload_id not in leaving)
        assert stay + sum(r.cpu_m for r in placed if r.node_id == node.id) <= node.cpu_total_m


def test_all_of_it_starts_once_what_moves_has_left() -> None:
    nodes = tuple(a_node(f"n{number}") for number in (1, 2))
    yard = Yard(nodes, tuple(gpu for node in nodes for gpu in some_gpus(node.id)))
    for name in ("a", "b", "c"):
        yard.add(a_request(name, gpus=4, not_nodes=("n2",) if name != "c" else ()), 7200)
    yard.decide()
    assert len(yard.running) == 3
    del yard.jobs["a"]
    yard.now_us += 11 * MINUTE_US
    yard.add(a_request("w", gpus=8), 7200)
    decided = yard.decide()
    assert (stopped(decided), sorted(claimed(decided))) == (["c"], ["c", "w"])
    yard.now_us = yard.next_us()
    yard.decide()
    assert {name: job.state for name, job in yard.jobs.items()} == dict.fromkeys("bcw", "running")
    assert not yard.waiting
