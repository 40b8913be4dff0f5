import random
from dataclasses import replace

import pytest

from scheduling.engine.snapshot import Team
from tests.engine.build import (
    A100,
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

NODE = (a_node("n1"),)


def test_guaranteed_before_borrowed_whatever_priority_and_age() -> None:
    borrower = a_request("borrower", team_id="speech", gpus=8, priority=9, queued_us=0)
    owner = a_request("owner", gpus=8)
    decided = decide(a_world(NODE, some_gpus("n1"), [borrower, owner], [quota("vision", guaranteed=8)]))
    assert started(decided) == ["owner"]
    assert not decided.starts[0].borrowed


def test_a_start_over_the_guarantee_is_borrowed_as_a_whole() -> None:
    world = a_world(NODE, some_gpus("n1"), [a_request(gpus=6)], [quota("vision", guaranteed=4)])
    (start,) = decide(world).starts
    assert start.borrowed
    assert start.why_now["rule"] == "borrowed"


def test_the_most_deprived_team_goes_first_and_turns_alternate() -> None:
    wants = [a_request(f"{team}{i}", team_id=team, gpus=1) for team in ("vision", "speech") for i in range(3)]
    quotas = [quota("vision", guaranteed=4), quota("speech", guaranteed=4)]
    live = [held("old", 2, node_id="elsewhere")]  # vision uses half of its guarantee already
    decided = decide(a_world(NODE, some_gpus("n1", free=4), wants, quotas, live))
    # The one to start counts: speech 1/4, 2/4; then vision 3/5 (it is lent the GPU that speech does not ask for).
    assert started(decided) == ["speech0", "speech1", "vision0", "speech2"]


def test_inside_a_team_priority_then_age_then_id() -> None:
    wants = [
        a_request("b"),
        a_request("a"),
        a_request("older", queued_us=NOW_US - 2 * HOUR_US),
        a_request("urgent", priority=5, queued_us=NOW_US),
    ]
    assert started(decide(a_world(NODE, some_gpus("n1"), wants))) == ["urgent", "older", "a", "b"]


def test_teams_without_a_guarantee_take_turns_too() -> None:
    wants = [a_request(f"v{i}") for i in range(2)] + [
        a_request(f"s{i}", team_id="speech", queued_us=NOW_US) for i in (0, 1)
    ]
    assert started(decide(a_world(NODE, some_gpus("n1"), wants))) == ["v0", "s0", "v1", "s1"]


def test_a_head_that_cannot_start_blocks_neither_its_tier_nor_another() -> None:
    nodes = [a_node("n1"), a_node("n2")]
    gpus = [*some_gpus("n1", free=2), *some_gpus("n2", tier=A100)]
    wants = [
        a_request("head", gpus=8, priority=9),
        a_request("small", gpus=2),
        a_request("other", tiers=("a100",)),
    ]
    assert sorted(started(decide(a_world(nodes, gpus, wants)))) == ["other", "small"]


def test_a_team_without_its_own_quota_uses_what_its_parent_has_left() -> None:
    wants = [a_request("child", gpus=4), a_request("sibling", team_id="speech", gpus=4)]
    quotas = [quota("lab", guaranteed=6), quota("speech", guaranteed=4)]
    decided = decide(a_world(NODE, some_gpus("n1"), wants, quotas))
    assert {start.workload_id: start.borrowed for start in decided.starts} == {
        "child": True,
        "sibling": False,
    }
    quotas = [quota("lab", guaranteed=8), quota("speech", guaranteed=4)]
    decided = decide(a_world(NODE, some_gpus("n1"), wants, quotas))
    assert not any(start.borrowed for start in decided.starts)


def test_limits_hold_at_every_ancestor_and_over_all_tiers() -> None:
    group = Team("group", "vision", "group", ("lab", "vision", "group"))
    live = [held("old", 6, team_id="speech", node_id="elsewhere", tier_id="a100")]
    quotas = [quota("group", limit=1), quota("vision", limit=1), quota("lab", None, limit=7)]
    world = a_world(
        NODE, some_gpus("n1"), [a_request(team_id="group", gpus=2)], quotas, live, (*TEAMS, group)
    )
    verdict = decide(world).verdicts[0]
    found = [(blocker.code, blocker.data["team_id"]) for blocker in verdict.blockers]
    assert found == [("quota_limit", "group"), ("quota_limit", "vision"), ("quota_limit_total", "lab")]


def test_a_limit_counts_what_this_pass_started() -> None:
    wants = [a_request(f"w{i}", gpus=2) for i in range(3)]
    decided = decide(a_world(NODE, some_gpus("n1"), wants, [quota("lab", limit=4)]))
    assert started(decided) == ["w0", "w1"]
    assert codes_of(decided, "w2") == ["quota_limit"]


def test_positions_count_the_line_of_one_tier() -> None:
    wants = [a_request("h1"), a_request("h2"), a_request("a1", tiers=("a100",)), a_request("h0", priority=1)]
    decided = decide(a_world(NODE, some_gpus("n1", free=0), wants))
    assert {v.workload_id: v.position for v in decided.verdicts} == {"h0": 1, "h1": 2, "h2": 3, "a1": 1}


@pytest.mark.parametrize("seed", range(12))
def test_the_line_is_the_order_in_which_they_would_start(seed: int) -> None:
    rng = random.Random(seed)
    teams = [Team("co", None, "co", ("co",))]
    for dept in "xy":
        teams.append(Team(dept, "co", dept, ("co", dept)))
        teams += [Team(f"{dept}{i}", dept, f"{dept}{i}", ("co", dept, f"{dept}{i}")) for i in range(2)]
    wants = [
        a_request(
            f"w{i:02}",
            team_id=rng.choice(teams[1:]).id,
            gpus=rng.choice((1, 2)),
            priority=rng.randrange(3),
            queued_us=NOW_US - rng.randrange(10**10),
        )
        for i in range(14)
    ]
    rows = [
        quota(team.id, guaranteed=rng.randrange(4)) for team in teams[3:4] + teams[5:] if rng.random() < 0.5
    ]
    nodes = [a_node(f"n{i}") for i in range(8)]
    free = a_world(nodes, [gpu for node in nodes for gpu in some_gpus(node.id)], wants, rows, (), teams)
    busy = replace(free, gpus=tuple(replace(gpu, free=False) for gpu in free.gpus))
    assert [verdict.workload_id for verdict in decide(busy).verdicts] == started(decide(free))
