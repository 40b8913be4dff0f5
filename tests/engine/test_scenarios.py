"""Long runs of a small yard: nobody is taken back and forth, promises are kept, nothing is lost or doubled."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.engine.decisions import Plan, Policy
from scheduling.engine.snapshot import Request
from tests.engine.build import a_node, a_request, quota, some_gpus
from tests.engine.yard import Yard

MINUTE_US = 60_000_000


def a_yard(node_count: int = 2, *, policy: Policy | None = None, **guaranteed: int) -> Yard:
    names = [f"n{number}" for number in range(node_count)]
    return Yard(
        tuple(a_node(name) for name in names),
        tuple(gpu for name in names for gpu in some_gpus(name)),
        tuple(quota(team, guaranteed=units) for team, units in sorted(guaranteed.items())),
        policy=policy or Policy(),
    )


def settle(yard: Yard, minutes: int = 1) -> Plan:
    """One pass, and then time goes on."""
    decided = yard.decide()
    yard.now_us += minutes * MINUTE_US
    return decided


def check(yard: Yard) -> None:
    """No GPU has two holders, none is claimed twice, nobody is lost."""
    holders: Counter[str] = Counter()
    claims: Counter[str] = Counter()
    for row in yard.live():
        for gpu_id in row.gpu_ids:
            (claims if row.state == "claimed" else holders)[gpu_id] += row.slots
    assert all(slots <= 1000 for slots in (*holders.values(), *claims.values()))
    assert not set(yard.waiting) & set(yard.jobs)


def test_two_tenants_with_more_than_half_for_1000_passes() -> None:
    """Neither fits beside the other. One is inside its guarantee, so it stays; the other is not taken in circles."""
    policy = Policy(min_run_s=600)
    yard = a_yard(2, policy=policy, vision=10)
    yard.add(a_request("big", team_id="speech", gpus=5, replicas=2), 10**9)
    settle(yard)
    yard.add(a_request("own", team_id="vision", gpus=5, replicas=2), 10**9)
    for _ in range(1_000):
        settle(yard)
        check(yard)
    assert yard.jobs["own"].state == "running"
    for times in yard.evicted_us.values():
        assert all(later - earlier >= policy.min_run_s * 1_000_000 for earlier, later in pairwise(times))
    assert {name: len(times) for name, times in yard.evicted_us.items()} == {"big": 1}


def test_neither_of_two_borrowers_is_ever_taken_back() -> None:
    yard = a_yard(2)
    for team in ("vision", "speech"):
        yard.add(a_request(f"of-{team}", team_id=team, gpus=5, replicas=2), 10**9)
    for _ in range(1_000):
        settle(yard)
    assert not yard.evicted_us
    assert len(yard.jobs) == 1


def test_a_guarantee_starts_within_minimum_run_and_grace_whatever_others_do() -> None:
    yard = a_yard(4, vision=16)
    number = 0
    for minute in range(60):
        while len(yard.waiting) < 20:
            yard.add(a_request(f"s{number:04}", team_id="speech", gpus=1 + number % 3), 10**6)
            number += 1
        if minute == 30:
            yard.add(a_request("own", team_id="vision", gpus=8, replicas=2), 10**6)
        settle(yard)
        check(yard)
    asked_us = yard.jobs["own"].request.queued_us
    assert yard.jobs["own"].state == "running"
    assert yard.jobs["own"].since_us - asked_us <= (yard.policy.min_run_s + yard.grace_s + 60) * 1_000_000


def test_what_was_evicted_does_not_take_it_back() -> None:
    yard = a_yard(1, vision=8)
    yard.add(a_request("lent", team_id="speech", gpus=8), 10**6)
    settle(yard, 20)
    yard.add(a_request("own", team_id="vision", gpus=8), 3600)
    for _ in range(50):
        settle(yard)
        check(yard)
    assert yard.jobs["own"].state == "running"
    assert yard.started_us["own"] < yard.now_us - 40 * MINUTE_US
    for _ in range(20):
        settle(yard)
    assert yard.jobs["lent"].state == "running"


def test_a_gang_among_endless_small_jobs_is_never_later_than_first_reserved() -> None:
    yard = a_yard(4)
    number = 0
    for minute in range(400):
        while len(yard.waiting) < 40:
            job = a_request(f"s{number:04}", team_id="speech", gpus=1, time_limit_s=1800)
            yard.add(job, 600 + number * 97 % 1200)
            number += 1
        if minute == 20:
            yard.add(a_request("gang", team_id="vision", gpus=8, replicas=4, time_limit_s=600), 600)
        settle(yard)
        if "gang" in yard.started_us:
            break
    assert yard.started_us["gang"] <= yard.reserved_us["gang"][0] + MINUTE_US


def test_eight_free_as_two_times_four_hold_no_quota_meanwhile() -> None:
    yard = a_yard(2, vision=8)
    for name in ("a", "b"):
        yard.add(a_request(name, team_id="speech", gpus=4, preemptible=False), 10**6)
    yard.quotas += (quota("speech", guaranteed=8),)
    settle(yard)
    both = {row.node_id for row in yard.live()}
    yard.add(a_request("wide", team_id="vision", gpus=8), 10**6)
    decided = settle(yard)
    if len(both) == 2:
        assert not decided.claims
        assert [v.workload_id for v in decided.verdicts] == ["wide"]
    yard.add(a_request("narrow", team_id="vision", gpus=4, queued_us=0), 60)
    assert "narrow" in [start.workload_id for start in settle(yard).starts] or len(both) == 1


def test_a_lowered_quota_stops_nothing() -> None:
    yard = a_yard(1, vision=8)
    yard.add(a_request("own", team_id="vision", gpus=8), 10**6)
    settle(yard, 60)
    yard.quotas = (quota("vision", guaranteed=0, limit=1),)
    assert not settle(yard).stops
    assert yard.jobs["own"].state == "running"


@st.composite
def streams(draw: st.DrawFn) -> list[tuple[int, Request, int]]:
    """(minute, request, run time) of what comes in the course of an hour."""
    found = []
    for number in range(draw(st.integers(2, 10))):
        least = draw(st.sampled_from((1, 1, 2)))
        request = a_request(
            f"w{number}",
            team_id=draw(st.sampled_from(("vision", "speech"))),
            gpus=draw(st.sampled_from((1, 2, 4, 8))),
            kind=draw(st.sampled_from(("training", "training", "inference", "development"))),
            preemptible=draw(st.integers(0, 3)) > 0,
        )
        request = replace(
            request,
            replicas_min=least,
            replicas_max=draw(st.sampled_from((least, 3))),
            elastic=draw(st.booleans()),
        )
        found.append((draw(st.integers(0, 50)), request, draw(st.sampled_from((300, 3_000, 30_000)))))
    return found


@settings(deadline=None, max_examples=60)
@given(streams(), st.integers(0, 16), st.integers(0, 8), st.sampled_from((0, 300)))
def test_claims_are_neither_lost_nor_doubled(
    stream: list[tuple[int, Request, int]], own: int, other: int, headroom: int
) -> None:
    yard = a_yard(2, vision=own, speech=other)
    yard.policy = Policy(min_run_s=300, inference_headroom=headroom)
    for minute in range(60):
        for at, request, run_s in stream:
            if at == minute:
                yard.add(request, run_s)
        before = {name for name, job in yard.jobs.items() if job.state == "claiming"}
        decided = settle(yard)
        check(yard)
        kept = {name for name, job in yard.jobs.items() if job.state in ("claiming", "running")}
        assert before <= kept | set(yard.started_us)
        for claim in decided.claims:
            assert set(claim.victims) <= {stop.workload_id for stop in decided.stops}
        for job in yard.jobs.values():
            indexes = {row.replica for row in job.rows if row.state != "stopping"}
            assert len(indexes) <= job.request.replicas_max
            assert job.state == "stopping" or len(indexes) >= job.request.replicas_min


@settings(deadline=None, max_examples=40)
@given(streams(), st.integers(0, 16))
def test_a_return_settles_within_two_rounds(stream: list[tuple[int, Request, int]], own: int) -> None:
    yard = a_yard(2, vision=own)
    for _, request, _ in stream:
        yard.add(replace(request, team_id="speech", workload_id="s" + request.workload_id), 10**6)
    settle(yard, 60)
    for _, request, _ in stream:
        yard.add(replace(request, team_id="vision"), 10**6)
    settle(yard)
    settle(yard)
    for _ in range(3):
        assert not [stop for stop in settle(yard).stops if stop.why["rule"] in ("return", "floor")]
