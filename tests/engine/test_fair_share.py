"""Who is to get how much, with the worked examples of the systems whose rules ours follow."""

from dataclasses import replace

from scheduling.engine.division import Claim, divide
from scheduling.engine.fairshare import LENDING, QuotaTree
from scheduling.engine.plan import Plan, Policy
from scheduling.engine.snapshot import UNITS_PER_GPU, BandGrant, Quota, Team, Usage
from scheduling.engine.standing import Standing
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

NODE = (a_node("n1"),)
HALF_LIFE_S = 7 * 86_400


def claim(key: str, guaranteed: int, wanted: int, weight: int = 1, usage_ppm: int = 0) -> Claim:
    return Claim(key, guaranteed * UNITS_PER_GPU, wanted * UNITS_PER_GPU, weight, usage_ppm)


def in_gpus(total: int, *claims: Claim) -> dict[str, float]:
    return {key: units / UNITS_PER_GPU for key, units in divide(total * UNITS_PER_GPU, claims).items()}


def test_guarantees_first_the_rest_by_weight_with_largest_remainder() -> None:
    shares = in_gpus(20, claim("A", 4, 16, 1), claim("B", 4, 16, 3), claim("C", 2, 1))
    assert shares == {"A": 7, "B": 12, "C": 1}


def test_past_use_corrects_the_weight() -> None:
    shares = in_gpus(20, claim("A", 4, 16, 1), claim("B", 4, 16, 3, 1_000_000), claim("C", 2, 1))
    assert shares == {
        "A": 10,
        "B": 9,
        "C": 1,
    }  # 5.5 and 5.5: the last one to the older team, with the smaller id


def test_a_team_that_wants_nothing_changes_nobodys_share() -> None:
    two = in_gpus(20, claim("A", 4, 16, 1), claim("B", 4, 16, 3))
    assert in_gpus(20, claim("A", 4, 16, 1), claim("B", 4, 16, 3), claim("C", 8, 0, 50)) == two


def test_guarantees_beyond_what_there_is_are_served_in_proportion() -> None:
    assert in_gpus(12, claim("A", 16, 16), claim("B", 8, 8)) == {"A": 8, "B": 4}


def test_weight_nothing_gets_the_guarantee_only() -> None:
    assert in_gpus(10, claim("A", 2, 9, 0), claim("B", 0, 9)) == {"A": 2, "B": 8}


TREE = (
    Team("co", None, "co", ("co",)),
    Team("dept", "co", "dept", ("co", "dept")),
    Team("a", "dept", "a", ("co", "dept", "a")),
    Team("b", "dept", "b", ("co", "dept", "b")),
    Team("c", "co", "c", ("co", "c")),
)


def standing_of(wanted: dict[str, int], *rows: Quota, usage: tuple[Usage, ...] = ()) -> Standing:
    nodes = [a_node("n1"), a_node("n2")]
    world = a_world(nodes, [*some_gpus("n1"), *some_gpus("n2")], (), rows, (), TREE)
    asked = {(team, "h100"): gpus * UNITS_PER_GPU for team, gpus in wanted.items()}
    return Standing(QuotaTree(world), asked, usage, Policy(usage_half_life_s=HALF_LIFE_S))


def shares_of(standing: Standing, *teams: str) -> list[float]:
    return [standing.allowed(team, "h100") / UNITS_PER_GPU for team in teams]


def test_a_share_is_divided_level_by_level() -> None:
    standing = standing_of({"a": 16, "b": 16, "c": 16})
    assert shares_of(standing, "co", "dept", "c", "a", "b") == [16, 8, 8, 4, 4]


def test_a_limit_hands_on_what_it_cuts_off() -> None:
    standing = standing_of({"a": 16, "b": 16, "c": 16}, quota("a", limit=1))
    assert shares_of(standing, "dept", "c", "a", "b") == [8, 8, 1, 7]


def test_decayed_use_counts_in_full_for_who_always_held_it_all() -> None:
    for_ever = 16 * UNITS_PER_GPU * HALF_LIFE_S * 1_000_000 // 693_147 + 1
    standing = standing_of({"dept": 16, "c": 16}, usage=(Usage("c", "h100", for_ever),))
    assert shares_of(standing, "dept", "c") == [16, 0]


def test_a_team_that_used_much_waits_for_one_that_did_not() -> None:
    wants = [a_request(f"{team}{i}", team_id=team, gpus=2) for team in ("vision", "speech") for i in range(4)]
    used = 4 * UNITS_PER_GPU * HALF_LIFE_S * 1_000_000 // 693_147
    world = replace(a_world(NODE, some_gpus("n1"), wants), usage=(Usage("speech", "h100", used),))
    assert sum(name.startswith("vision") for name in started(decide(world))) == 3
    assert sum(name.startswith("vision") for name in started(decide(replace(world, usage=())))) == 2


def cohort(use_x: int, use_y: int) -> QuotaTree:
    """Kueue's example: X nominal 8 lending 4, Y nominal 8 borrowing 6, on 16 GPUs."""
    teams = (Team("x", None, "x", ("x",)), Team("y", None, "y", ("y",)))
    rows = [
        replace(quota("x", guaranteed=8), lend_limit=4 * UNITS_PER_GPU),
        quota("y", guaranteed=8, limit=14),
    ]
    nodes, gpus = [a_node("n1"), a_node("n2")], [*some_gpus("n1"), *some_gpus("n2")]
    live = [held("wx", use_x, team_id="x"), held("wy", use_y, team_id="y")]
    return QuotaTree(a_world(nodes, gpus, (), rows, live, teams))


def available(tree: QuotaTree, team_id: str) -> int:
    return max(
        gpus
        for gpus in range(17)
        if gpus == 0 or not tree.hits(team_id, "h100", gpus * UNITS_PER_GPU, bound=False)
    )


def test_what_is_not_lent_stays_out_of_reach_used_or_not() -> None:
    assert available(cohort(0, 0), "y") == 12
    assert available(cohort(6, 0), "y") == 10
    assert available(cohort(3, 8), "y") == 4  # X's third GPU was kept back anyway
    (hit,) = cohort(0, 8).hits("y", "h100", 5 * UNITS_PER_GPU, bound=False)
    assert (hit.rule, hit.used, hit.limit) == (LENDING, 12 * UNITS_PER_GPU, 16 * UNITS_PER_GPU)


def test_the_limit_bounds_what_is_borrowed() -> None:
    tree = cohort(0, 8)
    assert [hit.rule for hit in tree.hits("y", "h100", 7 * UNITS_PER_GPU, bound=False)] == [
        "limit",
        "lending",
    ]


def test_an_owner_starts_inside_its_guarantee_whatever_was_lent() -> None:
    assert available(cohort(6, 10), "x") == 2


def test_what_is_kept_back_below_counts_once_on_the_way_up() -> None:
    rows = [
        replace(quota("dept", guaranteed=8), lend_limit=2 * UNITS_PER_GPU),
        replace(quota("a", guaranteed=4), lend_limit=0),
    ]
    nodes, gpus = [a_node("n1"), a_node("n2")], [*some_gpus("n1"), *some_gpus("n2")]
    tree = QuotaTree(a_world(nodes, gpus, (), rows, (), TREE))
    assert available(tree, "c") == 10  # 16 − max(6 kept by dept, 4 kept by a)
    assert available(tree, "b") == 12  # 16 − 4 kept by a; dept's own 6 are b's to use


def test_the_verdict_names_what_is_kept_back() -> None:
    rows = [replace(quota("speech", guaranteed=8), lend_limit=0)]
    decided = decide(a_world(NODE, some_gpus("n1"), [a_request()], rows))
    assert codes_of(decided) == ["lend_limit"]


def test_what_may_not_be_interrupted_stays_inside_the_guarantee() -> None:
    wants = [a_request(f"w{i}", gpus=2, preemptible=False) for i in range(3)]
    world = a_world(NODE, some_gpus("n1"), wants, [quota("vision", guaranteed=4), quota("lab", guaranteed=4)])
    decided = decide(world)
    assert started(decided) == ["w0", "w1"]
    assert codes_of(decided, "w2") == ["not_preemptible"]
    change = decided.verdicts[0].smallest_change
    assert change is not None
    assert change["raise"] == [
        {"team_id": "vision", "tier_id": "h100", "units": 2 * UNITS_PER_GPU, "what": "guarantee"}
    ]
    assert started(decide(world, Policy(non_preemptible_may_borrow=True))) == ["w0", "w1", "w2"]


def test_the_guarantee_of_every_team_above_binds_it_too() -> None:
    rows = [quota("vision", guaranteed=4), quota("lab", guaranteed=2)]
    wants = [a_request(f"w{i}", gpus=2, preemptible=False) for i in range(2)]
    decided = decide(a_world(NODE, some_gpus("n1"), wants, rows))
    assert started(decided) == ["w0"]
    (blocker,) = decided.verdicts[0].blockers
    assert (blocker.code, blocker.data["team_id"]) == ("not_preemptible", "lab")


def test_the_job_itself_counts_in_who_is_most_deprived() -> None:
    wants = [a_request("large", gpus=6, queued_us=NOW_US - 2 * HOUR_US)]
    wants += [a_request(f"s{i}", team_id="speech", gpus=1) for i in range(8)]
    assert started(decide(a_world(NODE, some_gpus("n1"), wants)))[:4] == ["s0", "s1", "s2", "s3"]


def test_who_waited_long_is_no_longer_judged_by_size() -> None:
    wants = [a_request("large", gpus=6, queued_us=NOW_US - 5 * HOUR_US)]
    wants += [a_request(f"s{i}", team_id="speech", gpus=1) for i in range(8)]
    assert started(decide(a_world(NODE, some_gpus("n1"), wants)))[0] == "large"
    assert started(decide(a_world(NODE, some_gpus("n1"), wants), Policy(starvation_s=0)))[0] == "s0"


def test_age_raises_the_priority_inside_a_team() -> None:
    wants = [a_request("urgent", priority=2), a_request("old", queued_us=NOW_US - 72 * HOUR_US)]
    assert started(decide(a_world(NODE, some_gpus("n1"), wants))) == ["old", "urgent"]
    assert started(decide(a_world(NODE, some_gpus("n1"), wants), Policy(ageing_s=0))) == ["urgent", "old"]


def with_band(cap: int) -> Plan:
    wants = [a_request(f"critical{i}", team_id="speech", gpus=4, band=1) for i in range(2)]
    wants += [a_request("owner", gpus=8)]
    world = a_world(NODE, some_gpus("n1"), wants, [quota("vision", guaranteed=8)], teams=TEAMS)
    return decide(replace(world, band_grants=(BandGrant("lab", 1, cap * UNITS_PER_GPU),)))


def test_a_band_goes_before_all_guarantees_up_to_its_cap() -> None:
    assert started(with_band(8)) == ["critical0", "critical1"]
    assert started(with_band(4)) == ["critical0"]
    assert codes_of(with_band(4), "critical1") == [
        "reservation"
    ]  # like any borrower, it may not delay the owner
    assert started(with_band(3)) == ["owner"]
    assert started(with_band(0)) == ["owner"]


def test_work_that_runs_at_a_band_uses_up_the_cap() -> None:
    live = [held("running", 4, team_id="speech", band=1, node_id="elsewhere")]
    wants = [a_request("critical", team_id="speech", gpus=4, band=1), a_request("owner", gpus=8)]
    world = a_world(NODE, some_gpus("n1"), wants, [quota("vision", guaranteed=8)], live)
    world = replace(world, band_grants=(BandGrant("speech", 2, 4 * UNITS_PER_GPU),))
    assert started(decide(world)) == ["owner"]


def test_many_hopeless_requests_of_one_team_cost_another_nothing() -> None:
    flood = [a_request(f"x{i:04}", gpus=8, replicas=4) for i in range(2000)]
    mine = [a_request(f"s{i}", team_id="speech", gpus=2) for i in range(4)]
    decided = decide(a_world(NODE, some_gpus("n1"), [*flood, *mine]))
    assert started(decided) == ["s0", "s1", "s2", "s3"]
