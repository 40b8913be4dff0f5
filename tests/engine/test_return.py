"""Taking back what was lent, for whom it is guaranteed: who leaves, who does not, and what the plan says of it."""

from dataclasses import replace

from scheduling.engine.decisions import Policy
from scheduling.engine.snapshot import Live, Snapshot, TeamEvictions
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
    started,
    stopped,
    with_work,
)


def lent_out(*works: Work, gpus: int = 8, guaranteed: int = 8, **asked: int) -> Snapshot:
    """One node; vision is guaranteed some of it and asks for `gpus` of them, others have borrowed."""
    world = a_world(
        [a_node("n1")],
        some_gpus("n1"),
        [a_request("w", gpus=gpus, **asked)],
        [quota("vision", guaranteed=guaranteed)],
    )
    return with_work(world, *works)


def test_a_guarantee_takes_back_what_was_lent() -> None:
    decided = decide(lent_out(running("b", "n1", range(8))))
    assert (claimed(decided), stopped(decided), started(decided)) == (["w"], ["b"], [])
    (stop,) = decided.stops
    assert (stop.reason, stop.for_workload_id, stop.replicas) == ("return", "w", None)
    assert stop.why == {
        "rule": "return",
        "gained_by_team": "vision",
        "gained_by_workload": "w",
        "lost_gpu_s": 8 * 3600,
        "restart_gpu_s": 0,
        "checkpoint_age_s": None,
        "evicted_units": 56000,
        "requested_units": 56000,
        "candidates": 1,
        "why_this": {"next_best_lost_gpu_s": None},
    }


def test_the_claim_is_on_the_gpus_of_those_who_leave() -> None:
    decided = decide(lent_out(running("b", "n1", range(8)), gpus=2))
    (claim,) = decided.claims
    assert claim.victims == ("b",)
    assert not claim.borrowed
    assert set(claim.replicas[0].gpu_ids) <= {f"n1.{i}" for i in range(8)}


def test_the_least_lost_work_goes() -> None:
    fresh = running("fresh", "n1", range(4), checkpoint_us=NOW_US - 60_000_000)
    stale = running("stale", "n1", range(4, 8))
    decided = decide(lent_out(fresh, stale, gpus=4))
    assert stopped(decided) == ["fresh"]
    why = decided.stops[0].why
    assert (why["lost_gpu_s"], why["checkpoint_age_s"]) == (240, 60)
    assert why["why_this"] == {"next_best_lost_gpu_s": 4 * 3600}


def test_starting_again_counts_as_lost_work() -> None:
    dear = running("dear", "n1", range(4), checkpoint_us=NOW_US, restart_cost_s=7200)
    assert stopped(decide(lent_out(dear, running("other", "n1", range(4, 8)), gpus=4))) == ["other"]


def test_equal_losses_take_the_lowest_priority() -> None:
    works = [running("a", "n1", range(4), priority=5), running("b", "n1", range(4, 8), priority=1)]
    assert stopped(decide(lent_out(*works, gpus=4))) == ["b"]


def test_never_more_than_needed() -> None:
    works = [
        running(name, "n1", columns) for name, columns in (("a", [0]), ("b", [1, 2]), ("c", range(3, 8)))
    ]
    assert stopped(decide(lent_out(*works, gpus=2))) == ["b"]
    assert stopped(decide(lent_out(*works, gpus=3))) == ["a", "b"]


def test_free_gpus_count() -> None:
    decided = decide(lent_out(running("a", "n1", [0]), running("b", "n1", [1]), gpus=7))
    assert (stopped(decided), claimed(decided)) == (["a"], ["w"])


def test_no_work_inside_its_guarantee_is_taken() -> None:
    decided = decide(lent_out(running("own", "n1", range(8), borrowed=False)))
    assert (stopped(decided), claimed(decided)) == ([], [])


def test_nor_for_somebody_over_the_guarantee() -> None:
    decided = decide(lent_out(running("b", "n1", range(8)), guaranteed=4))
    assert (stopped(decided), claimed(decided)) == ([], [])


def test_nor_before_its_minimum_run_time() -> None:
    young = running("young", "n1", range(8), started_us=NOW_US - 599_000_000)
    assert stopped(decide(lent_out(young))) == []
    longer = running("longer", "n1", range(8), min_run_s=2 * 3600)
    assert stopped(decide(lent_out(longer))) == []
    session = running("session", "n1", range(8), kind="development", started_us=NOW_US - 3_599_000_000)
    assert stopped(decide(lent_out(session))) == []


def test_nobody_can_ask_to_stay_for_ever_or_make_others_the_victims() -> None:
    stubborn = running("b", "n1", range(8), min_run_s=31_622_400, started_us=NOW_US - 7_200_000_000)
    assert stopped(decide(lent_out(stubborn))) == ["b"]
    assert stopped(decide(lent_out(stubborn), Policy(asked_min_run_most_s=8_000))) == []
    dear = running("dear", "n1", range(4), restart_cost_s=31_622_400, started_us=NOW_US - 3_600_000_000)
    honest = running("honest", "n1", range(4, 8), started_us=NOW_US - 4 * 3_600_000_000)
    assert stopped(decide(lent_out(dear, honest, gpus=4))) == ["dear"]


def test_nor_what_may_not_be_interrupted_or_a_services_floor() -> None:
    lenient = Policy(non_preemptible_may_borrow=True)
    assert stopped(decide(lent_out(running("b", "n1", range(8), preemptible=False)), lenient)) == []
    borrower = running("s", "n1", range(8), kind="inference")
    assert stopped(decide(lent_out(borrower))) == ["s"]
    assert stopped(decide(lent_out(borrower), Policy(inference_may_borrow=False))) == []
    inside = running("s", "n1", range(8), kind="inference", borrowed=False)
    assert stopped(decide(lent_out(inside))) == []


def test_nothing_goes_if_the_preemptor_would_not_fit() -> None:
    stays = running("own", "n1", [0], borrowed=False)
    assert stopped(decide(lent_out(stays, running("b", "n1", range(1, 8))))) == []


def test_a_budget_only_orders_who_returns_first() -> None:
    often = running("often", "n1", range(4), evictions=3, checkpoint_us=NOW_US)
    other = running("other", "n1", range(4, 8))
    assert stopped(decide(lent_out(often, other, gpus=4))) == ["other"]
    assert stopped(decide(lent_out(often, other, gpus=8))) == ["often", "other"]
    world = replace(lent_out(often, other, gpus=8), evictions=(TeamEvictions("speech", 99),))
    assert stopped(decide(world)) == ["often", "other"]


def test_a_gang_gets_several_nodes_or_nothing() -> None:
    nodes = [a_node("n1"), a_node("n2")]
    gpus = [*some_gpus("n1"), *some_gpus("n2")]
    asked = [a_request("w", gpus=8, replicas=2)]
    world = a_world(nodes, gpus, asked, [quota("vision", guaranteed=16)])
    lent, own = running("a", "n1", range(8)), running("b", "n2", range(8), borrowed=False)
    assert stopped(decide(with_work(world, lent, own))) == []
    both = decide(with_work(world, lent, running("b", "n2", range(8))))
    assert stopped(both) == ["a", "b"]
    assert len(both.claims[0].replicas) == 2


def test_a_limit_above_is_freed_by_those_below_it() -> None:
    """Room elsewhere does not help: a sister team has used up what the two may have together."""
    nodes = [a_node("n1"), a_node("n2")]
    gpus = [*some_gpus("n1"), *some_gpus("n2")]
    quotas = [quota("lab", limit=8), quota("vision", guaranteed=4)]
    world = a_world(nodes, gpus, [a_request("w", gpus=4)], quotas)
    sister = [running("s1", "n1", range(4)), running("s2", "n1", range(4, 8), checkpoint_us=NOW_US)]
    decided = decide(with_work(world, *sister))
    assert (claimed(decided), stopped(decided)) == (["w"], ["s2"])


def test_what_leaves_already_is_waited_for_first() -> None:
    leaving = running("leaving", "n1", range(4))
    row = replace(leaving.live[0], state="stopping")
    leaving = replace(leaving, live=(row,), running=replace(leaving.running, state="stopping"))
    decided = decide(lent_out(leaving, running("b", "n1", range(4, 8)), gpus=4))
    assert (claimed(decided), stopped(decided)) == (["w"], [])
    assert decided.claims[0].victims == ()


def test_what_is_claimed_already_is_not_promised_twice() -> None:
    leaving = running("leaving", "n1", range(8))
    row = replace(leaving.live[0], state="stopping")
    leaving = replace(leaving, live=(row,), running=replace(leaving.running, state="stopping"))
    world = lent_out(leaving, gpus=4)
    claim = Live("c", "vision", "h100", 28000, "claimed", "n1", False, NOW_US, None, gpu_ids=row.gpu_ids[:4])
    decided = decide(replace(world, live=(*world.live, claim), quotas=(quota("vision", guaranteed=16),)))
    assert set(decided.claims[0].replicas[0].gpu_ids) == set(row.gpu_ids[4:])


def test_what_victims_leave_over_serves_the_next() -> None:
    world = lent_out(running("b", "n1", range(8)), gpus=4)
    world = replace(world, requests=(*world.requests, a_request("w2", gpus=4)))
    decided = decide(world)
    assert (claimed(decided), stopped(decided)) == (["w", "w2"], ["b"])
    assert [claim.victims for claim in decided.claims] == [("b",), ("b",)]
    gpus = [gpu_id for claim in decided.claims for gpu_id in claim.replicas[0].gpu_ids]
    assert len(set(gpus)) == 8


def test_nobody_starts_on_gpus_that_are_still_held() -> None:
    world = lent_out(running("b", "n1", range(8)), gpus=4)
    borrower = a_request("late", team_id="speech", gpus=4)
    decided = decide(replace(world, requests=(*world.requests, borrower)))
    assert (claimed(decided), started(decided)) == (["w"], [])
