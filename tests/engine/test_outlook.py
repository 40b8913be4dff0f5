"""The smallest change that would help, and when a start could come by itself."""

from dataclasses import replace
from typing import Any

from scheduling.engine.plan import Policy, Verdict
from scheduling.engine.snapshot import UNITS_PER_GPU, Snapshot
from tests.engine.build import (
    A100,
    HOUR_US,
    NOW_US,
    a_node,
    a_request,
    a_world,
    decide,
    held,
    quota,
    some_gpus,
)

NODE = (a_node("n1"),)


def verdict_of(world: Snapshot, policy: Policy | None = None) -> Verdict:
    return decide(world, policy).verdicts[0]


def change_of(world: Snapshot) -> dict[str, Any] | None:
    change = verdict_of(world).smallest_change
    return None if change is None else dict(change)


def test_a_request_that_never_fits_is_told_what_would() -> None:
    world = a_world(NODE, some_gpus("n1", free=3), [a_request(gpus=16)])
    assert change_of(world) == {"kind": "fewer_gpus", "gpus_per_replica": 8, "tier": "h100", "when": "later"}


def test_fewer_gpus_that_would_start_now() -> None:
    world = a_world(NODE, some_gpus("n1", free=3), [a_request(gpus=4)])
    assert change_of(world) == {"kind": "fewer_gpus", "gpus_per_replica": 3, "tier": "h100", "when": "now"}


def test_another_tier_only_if_it_starts_now_and_has_the_memory() -> None:
    nodes = [a_node("n1"), a_node("n2")]
    gpus = [*some_gpus("n1", free=0), *some_gpus("n2", tier=A100)]
    wants_a100 = a_world(
        nodes, [*some_gpus("n1"), *some_gpus("n2", tier=A100, free=0)], [a_request(tiers=("a100",))]
    )
    assert change_of(wants_a100) == {"kind": "other_tier", "tier": "h100"}
    assert change_of(a_world(nodes, gpus, [a_request()])) == {"kind": "wait"}


def test_the_units_of_quota_that_would_start_it() -> None:
    quotas = [quota("vision", limit=2), quota("lab", None, limit=3)]
    world = a_world(
        NODE, some_gpus("n1"), [a_request(gpus=4, replicas=1)], quotas, [held("old", 2, node_id="x")]
    )
    change = change_of(world)
    assert change is not None
    assert (change["kind"], change["units"]) == ("quota", 4 * UNITS_PER_GPU)
    assert [(item["team_id"], item["units"]) for item in change["raise"]] == [
        ("vision", 4 * UNITS_PER_GPU),
        ("lab", 3 * UNITS_PER_GPU),
    ]


def test_quota_is_no_change_where_the_machines_are_full() -> None:
    world = a_world(NODE, some_gpus("n1", free=0), [a_request(gpus=4)], [quota("vision", limit=2)])
    assert change_of(world) is None


def test_a_budget_alone_is_the_change_and_nothing_helps_beside_it() -> None:
    asks = a_request(budget_blocker="no budget left")
    assert change_of(a_world(NODE, some_gpus("n1"), [asks])) == {"kind": "budget"}
    assert change_of(a_world(NODE, some_gpus("n1", free=0), [asks])) is None


def test_eta_is_when_enough_of_the_running_must_have_ended() -> None:
    live = [held(f"old{i}", 2, ends_us=NOW_US + i * HOUR_US) for i in (1, 2, 3)] + [held("endless", 2)]
    verdict = verdict_of(a_world(NODE, some_gpus("n1", free=0), [a_request(gpus=4)], live=live))
    assert (verdict.eta_us, verdict.eta_basis) == (NOW_US + 2 * HOUR_US, "promise")
    alone = verdict_of(
        a_world(NODE, some_gpus("n1", free=0), [a_request(gpus=4)], live=live), Policy(reservations=0)
    )
    assert (alone.eta_us, alone.eta_basis) == (NOW_US + 2 * HOUR_US, "time_limits")


def test_work_without_a_limit_is_expected_to_run_as_long_as_its_kind_does() -> None:
    live = [held("old", 2, ends_us=NOW_US + HOUR_US), held("open", 6)]
    world = a_world(NODE, some_gpus("n1", free=0), [a_request(gpus=4)], live=live)
    verdict = verdict_of(world, Policy(training_run_s=3 * 3600, reservations=0))
    assert (verdict.eta_us, verdict.eta_basis) == (
        NOW_US + 2 * HOUR_US,
        "class_defaults",
    )  # it has run for one
    outlived = verdict_of(world, Policy(training_run_s=1800, reservations=0))
    assert outlived.eta_us == NOW_US + HOUR_US  # half an hour doubled twice


def test_no_eta_where_nobody_knows_when_the_work_ends() -> None:
    live = [held("old", 2, ends_us=NOW_US + HOUR_US), held("service", 6, kind="inference")]
    verdict = verdict_of(a_world(NODE, some_gpus("n1", free=0), [a_request(gpus=4)], live=live))
    assert (verdict.eta_us, verdict.eta_basis) == (None, None)


def test_eta_counts_cpu_and_quota_given_back() -> None:
    busy = a_node("n1", cpu_free_m=0)
    live = [
        held("early", 1, ends_us=NOW_US + HOUR_US, cpu_m=500),
        held("late", 1, ends_us=NOW_US + 2 * HOUR_US, cpu_m=2000),
        held("later", 1, ends_us=NOW_US + 3 * HOUR_US),
    ]
    world = a_world((busy,), some_gpus("n1", free=5), [a_request(cpu_m=1000)], live=live)
    assert verdict_of(world).eta_us == NOW_US + 2 * HOUR_US
    limited = a_world(
        (busy,), some_gpus("n1", free=5), [a_request(cpu_m=1000)], [quota("vision", limit=1)], live
    )
    assert verdict_of(limited).eta_us == NOW_US + 3 * HOUR_US


def test_eta_counts_what_starts_in_this_pass() -> None:
    wants = [a_request("first", gpus=8, priority=1, time_limit_s=3600), a_request("second", gpus=8)]
    assert verdict_of(a_world(NODE, some_gpus("n1"), wants)).eta_us == NOW_US + HOUR_US


def test_no_eta_for_what_time_does_not_mend() -> None:
    live = [held("old", 8, ends_us=NOW_US + HOUR_US)]
    for request in (a_request(gpus=16), a_request(budget_blocker="none left")):
        assert verdict_of(a_world(NODE, some_gpus("n1", free=0), [request], live=live)).eta_us is None
    world = a_world(NODE, some_gpus("n1", free=0), [a_request(gpus=2)], [quota("lab", limit=1)], live)
    assert verdict_of(world).eta_us is None


def test_etas_are_worked_out_for_so_many_shapes_only() -> None:
    live = [held("old", 8, ends_us=NOW_US + HOUR_US)]
    wants = [a_request("w1", gpus=1, priority=1), a_request("w2", gpus=2)]
    decided = decide(
        a_world(NODE, some_gpus("n1", free=0), wants, live=live), Policy(eta_shapes=1, reservations=0)
    )
    assert [verdict.eta_us is None for verdict in decided.verdicts] == [False, True]


def _racks(*free: int, **wants: Any) -> Snapshot:
    """One node of 8 GPUs in each of rack r (the first two) and rack s."""
    nodes = [a_node(name, domains=(name[0],)) for name in ("r1", "r2", "s1")[: len(free)]]
    gpus = [gpu for node, count in zip(nodes, free, strict=True) for gpu in some_gpus(node.name, free=count)]
    return replace(a_world(nodes, gpus, [a_request(replicas=2, gpus=8, **wants)]), levels=("rack",))


def test_a_wider_level_that_would_start_now_or_ever() -> None:
    assert change_of(_racks(8, 0, 8, required_level="rack")) == {
        "kind": "level",
        "level": None,
        "tier": "h100",
        "when": "now",
    }
    never = _racks(8, 0, required_level="node")
    assert change_of(never) == {"kind": "level", "level": "rack", "tier": "h100", "when": "later"}


def test_eta_of_a_required_level_is_when_one_domain_has_room() -> None:
    live = (held("a", 8, node_id="r2", ends_us=NOW_US + 2 * HOUR_US),)
    world = replace(_racks(8, 0, 8, required_level="rack"), live=live)
    assert verdict_of(world, Policy(reservations=0)).eta_us == NOW_US + 2 * HOUR_US


def test_a_preference_is_expected_to_relax() -> None:
    live = (held("a", 8, node_id="r2", ends_us=NOW_US + 9 * HOUR_US),)
    world = replace(_racks(8, 0, 8, preferred_level="rack", level_wait_s=7200), live=live)
    assert verdict_of(world, Policy(reservations=0)).eta_us == NOW_US + HOUR_US


def gated(**changes: Any) -> Verdict:
    live = [held("old", 8, ends_us=NOW_US + HOUR_US)]
    world = a_world(NODE, some_gpus("n1", free=0), [a_request(**changes)], live=live)
    return verdict_of(world, Policy(reservations=0))


def test_a_gate_holds_the_estimate_back() -> None:
    assert gated(not_before_us=NOW_US + 3 * HOUR_US).eta_us == NOW_US + 3 * HOUR_US
    assert gated(not_before_us=NOW_US + 60).eta_us == NOW_US + HOUR_US
    assert gated(depends_on=("old",)).eta_us == NOW_US + HOUR_US
    assert gated(depends_on=("waits",)).eta_us is None


def test_of_alternatives_one_that_ends_is_enough() -> None:
    """n1 is out of service, n2 is busy for an hour."""
    nodes = (a_node("n1", schedulable=False), a_node("n2"))
    gpus = [*some_gpus("n1"), *some_gpus("n2", free=0)]
    live = [held("old", 8, node_id="n2", ends_us=NOW_US + HOUR_US)]
    world = a_world(nodes, gpus, [a_request(gpus=8)], live=live)
    assert verdict_of(world, Policy(reservations=0)).eta_us == NOW_US + HOUR_US
