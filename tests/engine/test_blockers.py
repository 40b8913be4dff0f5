"""Every blocker by example, and that each stands alone: with its cause gone, it alone is gone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from scheduling.engine.snapshot import Snapshot, Team
from tests.engine.build import (
    HOUR_US,
    NOW_US,
    TEAMS,
    a_node,
    a_request,
    a_world,
    codes_of,
    decide,
    held,
    quota,
    some_gpus,
    started,
)


def data_of(snapshot: Snapshot, code: str) -> Any:
    return next(b.data for b in decide(snapshot).verdicts[0].blockers if b.code == code)


def test_more_than_any_node_has_names_the_largest_node() -> None:
    nodes = [a_node("n1"), a_node("n2")]
    gpus = [*some_gpus("n1", 4), *some_gpus("n2", 8)]
    world = a_world(nodes, gpus, [a_request(gpus=16)])
    assert codes_of(decide(world)) == ["never_fits_node"]
    data = data_of(world, "never_fits_node")
    assert (data["asked"], data["largest"], data["node_name"]) == (16, 8, "n2")


def test_cpu_and_memory_that_no_node_has_never_fit_either() -> None:
    world = a_world([a_node("n1")], some_gpus("n1"), [a_request(cpu_m=65_000, memory_mib=300_000)])
    blockers = decide(world).verdicts[0].blockers
    assert [(b.code, b.data["resource"]) for b in blockers] == [
        ("never_fits_node", "cpu"),
        ("never_fits_node", "memory"),
    ]


def test_what_no_node_has_together_never_fits() -> None:
    nodes = [a_node("n1", cpu_total_m=8_000, cpu_free_m=8_000), a_node("n2")]
    gpus = [*some_gpus("n1", 8), *some_gpus("n2", 4)]
    world = a_world(nodes, gpus, [a_request(gpus=8, cpu_m=32_000)])
    assert codes_of(decide(world)) == ["never_fits_node"]
    assert data_of(world, "never_fits_node")["resource"] == "together"


def test_a_gang_larger_than_the_whole_fleet_can_never_start() -> None:
    world = a_world([a_node("n1")], some_gpus("n1"), [a_request(replicas=3, gpus=4)])
    assert codes_of(decide(world)) == ["gang_split"]
    data = data_of(world, "gang_split")
    assert (data["ever"], data["replicas_fit"]) == (False, 2)


def test_eight_free_on_two_nodes_are_not_free_for_one_of_eight() -> None:
    nodes = [a_node("n1"), a_node("n2")]
    gpus = [*some_gpus("n1", free=4), *some_gpus("n2", free=4)]
    world = a_world(nodes, gpus, [a_request(gpus=8)], live=[held("old", 8)])
    assert codes_of(decide(world)) == ["not_enough_free_gpus"]
    data = data_of(world, "not_enough_free_gpus")
    assert (data["total_free"], data["largest_free"], data["needed"]) == (8, 4, 8)
    assert data["holders"] == [{"team_id": "vision", "gpus": 8.0, "next_end_us": None}]


def test_holders_of_another_company_stay_unnamed() -> None:
    stranger = Team("rival", None, "rival", ("rival",))
    live = [held("a", 4, team_id="rival"), held("b", 4, ends_us=NOW_US + HOUR_US)]
    world = a_world([a_node("n1")], some_gpus("n1", free=0), [a_request()], (), live, (*TEAMS, stranger))
    holders = data_of(world, "not_enough_free_gpus")["holders"]
    assert [(held["team_id"], held["next_end_us"]) for held in holders] == [
        (None, None),
        ("vision", NOW_US + HOUR_US),
    ]


def test_enough_free_but_not_for_all_replicas_is_a_split_gang() -> None:
    nodes = [a_node("n1"), a_node("n2"), a_node("n3")]
    gpus = [*some_gpus("n1", free=5), *some_gpus("n2", free=3), *some_gpus("n3", free=1)]
    world = a_world(nodes, gpus, [a_request(replicas=2, gpus=4)])
    assert codes_of(decide(world)) == ["gang_split"]
    assert data_of(world, "gang_split")["replicas_fit"] == 1


def test_the_cpu_beside_free_gpus_is_the_blocker_not_the_gpus() -> None:
    nodes = [a_node("n1", cpu_free_m=2000), a_node("n2")]
    gpus = [*some_gpus("n1"), *some_gpus("n2", free=0)]
    world = a_world(nodes, gpus, [a_request(gpus=4, cpu_m=4000)])
    assert codes_of(decide(world)) == ["cpu"]
    assert (data_of(world, "cpu")["largest_free"], data_of(world, "cpu")["node_name"]) == (2000, "n1")


def test_where_either_change_would_do_both_are_listed() -> None:
    nodes = [a_node("n1", schedulable=False, reason_unschedulable="fan"), a_node("n2")]
    gpus = [*some_gpus("n1"), *some_gpus("n2", free=0)]
    world = a_world(nodes, gpus, [a_request(gpus=8)])
    assert codes_of(decide(world)) == ["not_enough_free_gpus", "nodes_cordoned"]
    assert started(decide(replace(world, nodes=(a_node("n1"), a_node("n2"))))) == ["w"]
    assert started(decide(replace(world, gpus=(*some_gpus("n1"), *some_gpus("n2"))))) == ["w"]


def test_gpus_not_ready_and_tiers_without_gpus() -> None:
    world = a_world([a_node("n1")], some_gpus("n1", ready=False), [a_request()])
    assert codes_of(decide(world)) == ["no_ready_gpu"]
    assert codes_of(decide(a_world(requests=[a_request()]))) == ["no_ready_gpu"]


def test_unknown_tiers_and_budgets() -> None:
    world = a_world(
        [a_node("n1")], some_gpus("n1"), [a_request(tiers=("gone",), budget_blocker="no budget left")]
    )
    assert codes_of(decide(world)) == ["budget", "tier_unknown"]
    assert codes_of(decide(a_world(requests=[a_request(tiers=())]))) == ["tier_unknown"]


def test_each_tier_named_lists_its_own_blockers() -> None:
    world = a_world([a_node("n1")], some_gpus("n1", free=0), [a_request(tiers=("h100", "a100"))])
    blockers = decide(world).verdicts[0].blockers
    assert [(b.code, b.data["tier_id"]) for b in blockers] == [
        ("not_enough_free_gpus", "h100"),
        ("no_ready_gpu", "a100"),
    ]


Change = Callable[[Snapshot], Snapshot]


def _node(**changes: Any) -> Change:
    return lambda world: replace(world, nodes=tuple(replace(node, **changes) for node in world.nodes))


def _gpus(**changes: Any) -> Change:
    return lambda world: replace(world, gpus=tuple(replace(gpu, **changes) for gpu in world.gpus))


def _request(**changes: Any) -> Change:
    return lambda world: replace(world, requests=tuple(replace(asked, **changes) for asked in world.requests))


def _without_quota(team: str, tier: str | None) -> Change:
    return lambda world: replace(
        world, quotas=tuple(row for row in world.quotas if (row.team_id, row.tier_id) != (team, tier))
    )


# Everything at once is wrong with this world: each line is one cause and what ends it.
REMEDIES: dict[str, Change] = {
    "budget": _request(budget_blocker=None),
    "quota_limit": _without_quota("vision", "h100"),
    "quota_limit_total": _without_quota("lab", None),
    "never_fits_node": _request(gpus_per_replica=8),
    "pool_not_allowed": _request(pool_ids=None),
    "nodes_cordoned": _node(schedulable=True),
    "no_ready_gpu": _gpus(ready=True),
    "not_enough_free_gpus": _gpus(free=True),
    "cpu": _node(cpu_free_m=64_000),
    "memory": _node(memory_free_mib=262_144),
}


def everything_wrong() -> Snapshot:
    node = a_node("n1", schedulable=False, cpu_free_m=0, memory_free_mib=0)
    request = a_request(gpus=16, pool_ids=("other",), budget_blocker="no budget left")
    quotas = [quota("vision", limit=1), quota("lab", None, limit=1)]
    return a_world([node], some_gpus("n1", free=0, ready=False), [request], quotas)


def test_all_blockers_at_once() -> None:
    assert sorted(codes_of(decide(everything_wrong()))) == sorted(REMEDIES)


@pytest.mark.parametrize("code", REMEDIES)
def test_ending_one_cause_removes_exactly_its_blocker(code: str) -> None:
    left = codes_of(decide(REMEDIES[code](everything_wrong())))
    assert sorted(left) == sorted(set(REMEDIES) - {code})


def test_with_all_causes_ended_it_starts() -> None:
    world = everything_wrong()
    for remedy in REMEDIES.values():
        world = remedy(world)
    assert started(decide(world)) == ["w"]


def test_three_blockers_lose_one_each() -> None:
    three = {code: REMEDIES[code] for code in ("quota_limit", "not_enough_free_gpus", "nodes_cordoned")}
    world = everything_wrong()
    for code, remedy in REMEDIES.items():
        world = world if code in three else remedy(world)
    assert sorted(codes_of(decide(world))) == sorted(three)
    for code, remedy in three.items():
        assert sorted(codes_of(decide(remedy(world)))) == sorted(set(three) - {code})


# The same once more, for a gang that asks for labels, a rack, an earliest start and others' success.
def wrong_in_other_ways() -> Snapshot:
    nodes = [a_node(name, domains=(name[0],)) for name in ("r1", "s1")]
    request = a_request(
        replicas=2,
        gpus=8,
        required_level="rack",
        node_labels=("disk=ssd",),
        not_before_us=NOW_US + HOUR_US,
        depends_on=("prepare",),
    )
    gpus = [*some_gpus("r1", free=0), *some_gpus("s1", free=0)]
    return replace(a_world(nodes, gpus, [request]), levels=("rack",))


MORE_REMEDIES: dict[str, Change] = {
    "not_before": _request(not_before_us=None),
    "dependency": _request(depends_on=()),
    "node_selection": _node(labels=("disk=ssd",)),
    "topology": _node(domains=("r",)),
    "not_enough_free_gpus": _gpus(free=True),
}


@pytest.mark.parametrize("code", MORE_REMEDIES)
def test_gates_labels_and_topology_are_listed_together_and_end_alone(code: str) -> None:
    assert sorted(codes_of(decide(wrong_in_other_ways()))) == sorted(MORE_REMEDIES)
    left = codes_of(decide(MORE_REMEDIES[code](wrong_in_other_ways())))
    assert sorted(left) == sorted(set(MORE_REMEDIES) - {code})


def test_with_these_ended_too_it_starts() -> None:
    world = wrong_in_other_ways()
    for remedy in MORE_REMEDIES.values():
        world = remedy(world)
    assert started(decide(world)) == ["w"]


def test_labels_that_too_few_nodes_have() -> None:
    world = a_world(
        [a_node("n1"), a_node("n2", labels=("a=b",))], some_gpus("n1"), [a_request(node_labels=("a=b",))]
    )
    assert codes_of(decide(world)) == ["node_selection"]
    data = data_of(world, "node_selection")
    assert (data["node_labels"], data["node_count"], data["left_count"]) == (["a=b"], 1, 0)
    excluded = a_world([a_node("n1")], some_gpus("n1"), [a_request(not_nodes=("n1",))])
    assert codes_of(decide(excluded)) == ["node_selection"]


def test_the_largest_domain_against_the_need() -> None:
    nodes = [a_node(name, domains=(name[0],)) for name in ("r1", "r2", "r3", "s1")]
    gpus = [gpu for node in nodes for gpu in some_gpus(node.name, free=0 if node.name == "r1" else 8)]
    request = a_request(replicas=3, gpus=8, required_level="rack")
    world = replace(a_world(nodes, gpus, [request]), levels=("rack",))
    assert codes_of(decide(world)) == ["topology"]
    data = data_of(world, "topology")
    assert (data["largest_domain"], data["replicas_fit"], data["replicas_in_all"]) == ("r", 2, 3)
    assert started(decide(_request(required_level=None)(world))) == ["w"]
    assert started(decide(_gpus(free=True)(world))) == ["w"]


def test_a_domain_that_could_never_hold_it() -> None:
    nodes = [a_node(name, domains=(name[0],)) for name in ("r1", "s1")]
    gpus = [*some_gpus("r1"), *some_gpus("s1")]
    request = a_request(replicas=2, gpus=8, required_level="rack")
    world = replace(a_world(nodes, gpus, [request]), levels=("rack",))
    assert data_of(world, "topology")["ever"] is False
    assert data_of(_request(required_level="galaxy")(world), "topology")["is_level"] is False


def test_the_largest_part_of_a_card_and_whose_the_others_are() -> None:
    gpus = some_gpus("n1", 3, free=0)
    gpus[0] = replace(gpus[0], slots_free=300, shared_by="vision")
    gpus[1] = replace(gpus[1], slots_free=900, shared_by="speech")
    world = a_world([a_node("n1")], gpus, [a_request(share=500)])
    assert codes_of(decide(world)) == ["share"]
    data = data_of(world, "share")
    assert (data["slots"], data["largest_free"], data["shared_by_others"]) == (500, 300, 1)


def test_gpus_that_are_being_vacated_are_counted() -> None:
    world = a_world(
        [a_node("n1")], some_gpus("n1", free=0), [a_request()], live=[held("x", 3, state="stopping")]
    )
    assert data_of(world, "not_enough_free_gpus")["leaving"] == 3.0
