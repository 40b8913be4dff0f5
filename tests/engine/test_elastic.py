"""Services and elastic work: growing into what nobody waits for, and giving it back replica by replica."""

from dataclasses import replace

from scheduling.engine.decisions import Policy
from scheduling.engine.explain import sentence
from scheduling.engine.fairshare import QuotaTree
from scheduling.engine.snapshot import UNITS_PER_GPU, BandGrant, Quota, Request, Snapshot
from tests.engine.build import (
    HOUR_US,
    NOW_US,
    Work,
    a_node,
    a_request,
    a_world,
    claimed,
    codes_of,
    decide,
    held,
    quota,
    running,
    some_gpus,
    started,
    stopped,
    with_work,
)


def elastic(least: int, now: int, most: int, *, kind: str = "training") -> Work:
    """Replicas of one GPU each on n1, the first ones; the team is speech."""
    parts = [running("e", "n1", [index], kind=kind) for index in range(now)]
    rows = tuple(replace(part.live[0], replica=index) for index, part in enumerate(parts))
    request = replace(parts[0].request, replicas_min=least, replicas_max=most, elastic=kind != "inference")
    return Work(request, parts[0].running, rows)


def one_node(*asked: Request, work: Work, **guaranteed: int) -> Snapshot:
    quotas = [quota(team, guaranteed=gpus) for team, gpus in guaranteed.items()]
    return with_work(a_world([a_node("n1")], some_gpus("n1"), asked, quotas), work)


def test_it_grows_into_what_nobody_waits_for() -> None:
    (grow,) = decide(one_node(work=elastic(1, 2, 5))).grows
    assert grow.workload_id == "e"
    assert [replica.index for replica in grow.replicas] == [2, 3, 4]
    assert {gpu_id for replica in grow.replicas for gpu_id in replica.gpu_ids} <= {
        f"n1.{i}" for i in range(2, 8)
    }


def test_it_does_not_grow_where_somebody_waits() -> None:
    waiting = a_request("w", gpus=8)
    assert decide(one_node(waiting, work=elastic(1, 2, 5))).grows == ()
    barred = replace(one_node(waiting, work=elastic(1, 2, 5)), quotas=(quota("vision", limit=4),))
    assert decide(barred).grows  # who waits for a quota does not wait for these GPUs


def test_it_does_not_grow_over_a_limit_or_when_rules_forbid_it() -> None:
    world = replace(one_node(work=elastic(1, 2, 5)), quotas=(quota("speech", limit=3),))
    assert [len(grow.replicas) for grow in decide(world).grows] == [1]
    assert decide(one_node(work=elastic(1, 2, 5)), Policy(grow_running=False)).grows == ()


def test_replicas_above_the_least_go_first_the_highest_index_first() -> None:
    world = one_node(a_request("w", gpus=4), work=elastic(2, 8, 8))
    decided = decide(world)
    (stop,) = decided.stops
    assert stop.replicas == (7, 6, 5, 4)
    assert (stop.why["rule"], stop.why["lost_gpu_s"]) == ("slack", 0)
    assert claimed(decided) == ["w"]


def test_only_a_guarantee_takes_more_than_the_surplus() -> None:
    assert not decide(one_node(a_request("w", gpus=8), work=elastic(2, 8, 8))).stops
    (stop,) = decide(one_node(a_request("w", gpus=8), work=elastic(2, 8, 8), vision=8)).stops
    assert stop.replicas is None
    assert stop.why["rule"] == "return"


def test_surplus_never_counts_against_the_guarantee() -> None:
    world = one_node(a_request("w", gpus=6, team_id="speech"), work=elastic(2, 8, 8), speech=8)
    assert QuotaTree(world).share_used("speech", "h100") == 2 * 7000
    (stop,) = decide(world).stops
    assert stop.replicas == (7, 6, 5, 4, 3, 2)
    assert decide(world).claims[0].borrowed is False


def test_a_service_grows_and_shrinks_but_its_floor_stays() -> None:
    service = elastic(2, 4, 6, kind="inference")
    inside = replace(service, running=replace(service.running, borrowed=False))
    assert [r.index for r in decide(one_node(work=inside)).grows[0].replicas] == [4, 5]
    (stop,) = decide(one_node(a_request("w", gpus=6), work=inside, vision=8)).stops
    assert stop.replicas == (3, 2)
    assert not decide(one_node(a_request("w", gpus=7), work=inside, vision=8)).stops


def test_a_floor_pushes_out_what_its_own_team_has_borrowed() -> None:
    floor = a_request("s", team_id="speech", gpus=4, kind="inference")
    training = a_request("t", team_id="speech", gpus=4)
    borrower = running("b", "n1", range(8))
    decided = decide(one_node(floor, work=borrower, speech=4))
    assert (claimed(decided), stopped(decided)) == (["s"], ["b"])
    assert decided.stops[0].why["rule"] == "floor"
    assert not decide(one_node(training, work=borrower, speech=4)).stops


def test_a_band_takes_also_from_a_guarantee_within_the_budget() -> None:
    asked = a_request("w", gpus=8, band=1)
    own = running("own", "n1", range(8), borrowed=False)
    grants = (BandGrant("vision", 1, 8 * 7000),)
    world = replace(one_node(asked, work=own, speech=8), band_grants=grants)
    decided = decide(world)
    assert (claimed(decided), stopped(decided)) == (["w"], ["own"])
    assert decided.stops[0].reason == "preempt"
    often = running("own", "n1", range(8), borrowed=False, evictions=3)
    assert not decide(replace(one_node(asked, work=often, speech=8), band_grants=grants)).stops
    same = running("own", "n1", range(8), borrowed=False, band=1)
    assert not decide(replace(one_node(asked, work=same, speech=8), band_grants=grants)).stops
    assert not decide(one_node(asked, work=own, speech=8)).stops  # without a grant


def test_head_room_keeps_borrowed_training_out_but_no_guarantee_and_no_service() -> None:
    policy = Policy(inference_headroom=500)
    idle = a_world([a_node("n1")], some_gpus("n1"), [], [])

    def names(request: Request, *quotas: Quota) -> list[str]:
        return started(decide(replace(idle, requests=(request,), quotas=quotas), policy))

    assert names(a_request("w", gpus=4)) == ["w"]
    assert names(a_request("w", gpus=5)) == []
    assert names(a_request("w", gpus=5), quota("vision", guaranteed=5)) == ["w"]
    assert names(a_request("w", gpus=5, kind="inference")) == ["w"]


def test_head_room_is_said_for_each_tier_and_waiting_for_it_ends() -> None:
    policy = Policy(inference_headroom=500, inference_headroom_tiers=(("h100-80g", 250), ("other", 1000)))
    job = held("l", 5, ends_us=NOW_US + HOUR_US)
    world = a_world([a_node("n1")], some_gpus("n1", free=3), [a_request("w", gpus=2)], [], [job])
    decided = decide(world, policy)
    assert codes_of(decided) == ["headroom"]
    (verdict,) = decided.verdicts
    assert verdict.blockers[0].data["limit"] == 6 * UNITS_PER_GPU
    assert (verdict.eta_us, verdict.eta_basis) == (NOW_US + HOUR_US, "time_limits")
    assert verdict.smallest_change == {
        "kind": "fewer_gpus",
        "gpus_per_replica": 1,
        "tier": "h100",
        "when": "now",
    }
    assert sentence(verdict.blockers[0], {}).startswith("at most 6 h100 are for borrowed work other than")


def test_sessions_and_services_may_be_kept_inside_their_guarantee() -> None:
    policy = Policy(development_may_borrow=False, inference_may_borrow=False)
    for kind in ("development", "inference"):
        idle = a_world([a_node("n1")], some_gpus("n1"), [a_request("w", kind=kind)], [])
        assert started(decide(idle, policy)) == []
        assert started(decide(replace(idle, quotas=(quota("vision", guaranteed=1),)), policy)) == ["w"]
        assert started(decide(idle)) == ["w"]


def test_gates_keep_a_request_from_starting() -> None:
    world = a_world([a_node("n1")], some_gpus("n1"), [], [])
    later = a_request("later", not_before_us=NOW_US + 1)
    after = a_request("after", depends_on=("x",))
    members = [a_request(f"m{n}", array_id="a", array_cap=2) for n in range(4)]
    decided = decide(replace(world, requests=(later, after, *members)))
    assert started(decided) == ["m0", "m1"]
    assert not decided.reservations


def test_oversold_guarantees_are_told() -> None:
    world = a_world([a_node("n1")], some_gpus("n1"), [], [quota("lab", guaranteed=9)])
    assert decide(world).oversold == (("h100", 63000, 56000),)
