"""Reserved starts, who may pass them, and that they never slip because of who did."""

import itertools
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from scheduling.engine.explain import sentence
from scheduling.engine.plan import Plan, Policy
from scheduling.engine.snapshot import Request, Snapshot, Team
from tests.engine.build import (
    A100,
    H100,
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
from tests.engine.yard import Yard

TWO_NODES = (a_node("n1"), a_node("n2"))
SECOND_US = 1_000_000


def slurm_example(*behind: Request, first: Request) -> Snapshot:
    """n1 and n2 with 8 GPUs each; 6 of n1 are busy until t = 100."""
    gpus = [*some_gpus("n1", free=2), *some_gpus("n2")]
    live = [held("busy", 6, ends_us=NOW_US + 100 * SECOND_US)]
    return a_world(TWO_NODES, gpus, [replace(first, priority=9), *behind], live=live)


def asks(gpus: int, limit_s: int | None, name: str = "later") -> Request:
    return a_request(name, gpus=gpus, time_limit_s=limit_s, cpu_m=0, memory_mib=0)


WHOLE = a_request("p1", replicas=2, gpus=8, time_limit_s=50, cpu_m=0, memory_mib=0)
NINE = a_request("p1", replicas=3, gpus=3, time_limit_s=50, cpu_m=0, memory_mib=0)


def reserved(decided: Plan) -> dict[str, int]:
    """Seconds from now."""
    return {r.workload_id: (r.start_us - NOW_US) // SECOND_US for r in decided.reservations}


def test_the_first_that_cannot_start_gets_a_reservation() -> None:
    decided = decide(slurm_example(first=WHOLE))
    assert reserved(decided) == {"p1": 100}
    assert dict(decided.reservations[0].nodes) == {"n1": 1, "n2": 1}
    (verdict,) = decided.verdicts
    assert (verdict.eta_us, verdict.eta_basis) == (NOW_US + 100 * SECOND_US, "promise")


@pytest.mark.parametrize(("gpus", "limit_s", "starts"), [(2, 90, True), (8, 120, False), (8, 100, True)])
def test_later_work_starts_only_if_it_is_gone_in_time(gpus: int, limit_s: int, starts: bool) -> None:
    decided = decide(slurm_example(asks(gpus, limit_s), first=WHOLE))
    assert started(decided) == (["later"] if starts else [])
    assert reserved(decided)["p1"] == 100


def test_gpus_that_the_reservation_does_not_need_are_not_held() -> None:
    """Slurm keeps both nodes whole and lets the 5-GPU job wait; 6 on n1 and 3 on n2 are all that is needed."""
    decided = decide(slurm_example(asks(5, 120), first=NINE))
    assert started(decided) == ["later"]
    assert reserved(decided) == {"p1": 100}
    assert started(decide(slurm_example(asks(6, 120), first=NINE))) == []


def test_the_blocker_names_for_whom_the_gpus_are_held() -> None:
    decided = decide(slurm_example(asks(8, 120), first=WHOLE))
    assert codes_of(decided, "later") == ["reservation"]
    (blocker,) = next(v for v in decided.verdicts if v.workload_id == "later").blockers
    (holder,) = blocker.data["holders"]
    assert (holder["workload_id"], holder["start_us"]) == ("p1", NOW_US + 100 * SECOND_US)
    text = sentence(blocker, {"h100": "h100-80g", "vision": "Vision"})
    assert text == "h100-80g are free, but held for p1 of team Vision (16 GPUs); it would not end in time"


def test_work_of_another_company_is_not_named() -> None:
    rival = Team("rival", None, "rival", ("rival",))
    world = slurm_example(replace(asks(8, 120), team_id="rival"), first=replace(WHOLE, priority=0))
    world = replace(world, teams=(*TEAMS, rival), requests=tuple(world.requests))
    quotas = (quota("vision", guaranteed=16),)
    decided = decide(replace(world, quotas=quotas))
    (blocker,) = next(v for v in decided.verdicts if v.workload_id == "later").blockers
    assert (blocker.data["holders"][0]["name"], blocker.data["holders"][0]["team_id"]) == (None, None)
    assert "other work" in sentence(blocker, {})


def test_work_without_a_limit_passes_nobody_unless_policy_says_so() -> None:
    world = slurm_example(asks(8, None), first=WHOLE)
    assert started(decide(world)) == []
    lax = Policy(backfill_without_limit=True, training_run_s=90)
    assert started(decide(world, lax)) == ["later"]


def test_a_second_reservation_stands_behind_the_first() -> None:
    second = asks(8, 500, "second")
    decided = decide(slurm_example(second, asks(2, 40, "small"), asks(2, 200, "long"), first=WHOLE))
    assert reserved(decided) == {"p1": 100, "second": 150, "long": 150}
    assert started(decided) == ["small"]


def test_so_many_reservations_and_no_more() -> None:
    behind = [asks(8, 500, f"b{i}") for i in range(4)]
    world = slurm_example(*behind, first=WHOLE)
    assert list(reserved(decide(world, Policy(reservations=2)))) == ["p1", "b0"]
    assert started(decide(world, Policy(reservations=0))) == ["b0"]


def test_behind_a_reservation_that_never_ends_there_is_no_start() -> None:
    endless = replace(WHOLE, time_limit_s=None)
    world = slurm_example(asks(8, None), first=endless)
    decided = decide(world, Policy(training_run_s=None))
    assert reserved(decided) == {"p1": 100}
    assert decided.verdicts[1].eta_us is None


def test_cpu_and_memory_are_reserved_too() -> None:
    nodes = (a_node("n1", cpu_free_m=0),)
    live = [held("busy", 1, ends_us=NOW_US + HOUR_US, cpu_m=64_000)]
    first = a_request("first", gpus=1, cpu_m=64_000, priority=9, time_limit_s=3600)
    short = a_request("short", gpus=1, cpu_m=0, time_limit_s=86_400)
    decided = decide(a_world(nodes, some_gpus("n1", free=7), [first, short], live=live))
    assert started(decided) == ["short"]  # needs none of the CPU that is held for the first
    nodes = (a_node("n1", cpu_free_m=1000),)
    live = [held("busy", 1, ends_us=NOW_US + HOUR_US, cpu_m=63_000)]
    hungry = replace(short, cpu_m=1000)
    decided = decide(a_world(nodes, some_gpus("n1", free=7), [first, hungry], live=live))
    assert codes_of(decided, "short") == ["reservation"]


def test_a_strict_head_of_one_tier_does_not_block_another() -> None:
    nodes = (*TWO_NODES, a_node("n3"))
    gpus = [*some_gpus("n1", free=0), *some_gpus("n2", free=7), *some_gpus("n3", tier=A100)]
    live = [held("a", 8, ends_us=NOW_US + HOUR_US), held("b", 1, node_id="n2", ends_us=NOW_US + HOUR_US)]
    head = a_request("head", replicas=2, gpus=8, priority=9)
    wants = [head, a_request("behind"), a_request("other", tiers=("a100",), gpus=8)]
    decided = decide(a_world(nodes, gpus, wants, live=live))
    assert started(decided) == ["other"]
    assert codes_of(decided, "behind") == ["reservation"]


def test_a_reservation_counts_against_the_limit_of_its_team() -> None:
    live = [held("busy", 8, node_id="n1", ends_us=NOW_US + HOUR_US, team_id="speech")]
    wants = [a_request(f"w{i}", gpus=8, time_limit_s=60) for i in range(3)]
    world = a_world((a_node("n1"),), some_gpus("n1", free=0), wants, [quota("vision", limit=8)], live)
    assert list(reserved(decide(world))) == ["w0"]


def test_a_request_that_starts_on_another_tier_gives_its_reservation_back() -> None:
    gpus = [*some_gpus("n1", free=4), *some_gpus("n2", tier=A100)]
    live = [held("busy", 4, ends_us=NOW_US + HOUR_US)]
    first = a_request("first", gpus=8, tiers=("h100", "a100"))  # guaranteed on h100, borrowed on a100
    world = a_world(TWO_NODES, gpus, [first], [quota("vision", guaranteed=8)], live)
    decided = decide(world)
    assert [(start.workload_id, start.tier_id) for start in decided.starts] == [("first", "a100")]
    assert decided.reservations == ()


def test_of_two_gangs_of_most_of_the_cluster_one_starts_and_the_other_holds_nothing() -> None:
    nodes = [a_node(f"n{i}") for i in range(5)]
    gangs = [a_request(f"g{i}", replicas=3, gpus=8, time_limit_s=3600) for i in range(2)]
    short, long = (a_request(name, gpus=8, time_limit_s=s) for name, s in (("short", 3600), ("long", 7200)))
    gpus = [gpu for node in nodes for gpu in some_gpus(node.id)]
    decided = decide(a_world(nodes, gpus, [*gangs, short, long]))
    assert started(decided) == [
        "g0",
        "long",
        "short",
    ]  # five nodes: the two that the gang will not need as well
    assert reserved(decided) == {"g1": 3600}


def test_free_gpus_on_two_nodes_hold_no_quota_for_one_that_needs_a_whole_node() -> None:
    gpus = [*some_gpus("n1", free=4), *some_gpus("n2", free=4)]
    live = [
        held("a", 4, team_id="speech", ends_us=NOW_US + HOUR_US),
        held("b", 4, team_id="speech", node_id="n2"),
    ]
    whole = a_request("whole", gpus=8, priority=5)
    small = [a_request(f"small{i}", gpus=4, time_limit_s=600) for i in range(2)]
    decided = decide(a_world(TWO_NODES, gpus, [whole, *small], [quota("vision", limit=8)], live))
    assert started(decided) == ["small0", "small1"]
    assert reserved(decided) == {"whole": 3600}


GANG = a_request("gang", replicas=4, gpus=8, time_limit_s=7200, cpu_m=0, memory_mib=0)
OTHERS = Team("others", "lab", "others", ("lab", "others"))


def endless(teams: tuple[str, ...], seed: int, *, limits: bool = True) -> "Stream":
    return Stream(teams, random.Random(seed), limits)


class Stream:
    """One-GPU jobs without end: there are always some waiting."""

    def __init__(self, teams: tuple[str, ...], rng: random.Random, limits: bool) -> None:
        self._teams, self._rng, self._limits = teams, rng, limits
        self._numbers = itertools.count()

    def __call__(self, yard: Yard) -> Iterable[tuple[Request, int]]:
        small = sum(name.startswith("small") for name in yard.waiting)
        for _ in range(12 - small):
            run_s = self._rng.randrange(600, 4 * 3600)
            limit_s = run_s + self._rng.randrange(0, 600) if self._limits else None
            team = self._rng.choice(self._teams)
            name = f"small{next(self._numbers):05}"
            yield asks_one(name, team, limit_s), run_s


def asks_one(name: str, team: str, limit_s: int | None) -> Request:
    return a_request(name, team_id=team, gpus=1, time_limit_s=limit_s, cpu_m=0, memory_mib=0)


def yard_of_32(policy: Policy | None = None) -> Yard:
    nodes = tuple(a_node(f"n{i}") for i in range(4))
    gpus = tuple(gpu for node in nodes for gpu in some_gpus(node.id))
    return Yard(nodes, gpus, teams=(*TEAMS, OTHERS), tiers=(H100,), policy=policy or Policy())


def filled(feed: Stream, policy: Policy | None = None) -> Yard:
    yard = yard_of_32(policy)
    yard.run(feed, until=lambda y: len(y.started_us) > 40)
    return yard


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("teams", [("vision",), ("speech",), ("vision", "speech", "others")])
def test_a_gang_among_endless_small_jobs_starts_no_later_than_its_first_reservation(
    teams: tuple[str, ...], seed: int
) -> None:
    feed = endless(teams, seed)
    yard = filled(feed)
    yard.add(GANG, 7200)
    yard.run(feed, until=lambda y: "gang" in y.started_us)
    assert yard.started_us["gang"] <= yard.reserved_us["gang"][0]
    assert yard.reserved_us["gang"] == sorted(yard.reserved_us["gang"], reverse=True)  # only ever sooner


def test_small_jobs_go_on_starting_while_the_gang_waits() -> None:
    feed = endless(("speech",), 1)
    yard = filled(feed)
    yard.add(GANG, 7200)
    before = len(yard.started_us)
    yard.run(feed, until=lambda y: "gang" in y.started_us)
    assert len(yard.started_us) - before > 10


def test_work_without_limits_does_not_make_the_gang_slip_either() -> None:
    feed = endless(("speech",), 2)
    yard = filled(feed)
    yard.add(GANG, 7200)
    unlimited = endless(("speech", "others"), 3, limits=False)
    yard.run(unlimited, until=lambda y: "gang" in y.started_us)
    assert yard.started_us["gang"] <= yard.reserved_us["gang"][0]


def test_without_reservations_the_gang_would_starve() -> None:
    """That the others are a test at all."""
    feed = endless(("vision", "speech", "others"), 1)
    yard = filled(feed, Policy(reservations=0))
    yard.add(GANG, 7200)
    with pytest.raises(AssertionError, match="never"):
        yard.run(feed, until=lambda y: "gang" in y.started_us, turns=120)
