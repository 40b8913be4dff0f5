"""What must be over before a request may start at all."""

from dataclasses import replace
from typing import Any

from scheduling.engine.decisions import Blocker, Policy
from scheduling.engine.explain import sentence
from scheduling.engine.gates import Gates
from scheduling.engine.order import Asks
from scheduling.engine.placement import Fleet
from scheduling.engine.snapshot import Request
from tests.engine.build import (
    HOUR_US,
    NOW_US,
    Work,
    a_node,
    a_request,
    a_world,
    codes_of,
    decide,
    held,
    running,
    some_gpus,
    started,
    with_work,
)


def found(
    request: Request, *placed: Request, policy: Policy | None = None, now_us: int = NOW_US
) -> list[Blocker]:
    """The gates of a request beside those that are placed."""
    world = a_world([a_node("n1")], some_gpus("n1"))
    fleet, rules = Fleet(world), policy or Policy()
    ask = Asks(world, rules, now_us, fleet).ask(request)
    return Gates(replace(world, placed=placed), rules, now_us).blockers(ask)


def test_nothing_asked_nothing_in_the_way() -> None:
    assert found(a_request()) == []


def test_the_earliest_start_holds_until_its_moment() -> None:
    request = a_request(not_before_us=NOW_US + HOUR_US)
    (blocker,) = found(request)
    assert (blocker.code, blocker.data) == ("not_before", {"not_before_us": NOW_US + HOUR_US})
    assert found(request, now_us=NOW_US + HOUR_US) == []


def test_dependencies_are_counted_and_the_first_named() -> None:
    (blocker,) = found(a_request(depends_on=tuple("abcdefg")))
    assert blocker.code == "dependency"
    assert blocker.data == {"workload_ids": ["a", "b", "c", "d", "e"], "count": 7}


def test_an_array_runs_so_many_members_at_once() -> None:
    request = a_request(array_id="sweep", array_cap=2)
    running = [a_request(f"m{number}", array_id="sweep") for number in range(2)]
    (blocker,) = found(request, *running)
    assert (blocker.code, blocker.data["cap"], blocker.data["running"]) == ("array_cap", 2, 2)
    assert found(request, running[1]) == []


def test_all_gates_are_listed_together() -> None:
    request = a_request(not_before_us=NOW_US + 1, depends_on=("a",), array_id="sweep", array_cap=1)
    blockers = found(request, a_request("m", array_id="sweep"))
    assert [blocker.code for blocker in blockers] == ["not_before", "dependency", "array_cap"]
    assert [sentence(blocker, {"a": "prepare-data"}) for blocker in blockers] == [
        "it is not to start before 2027-01-15 08:00 UTC",
        "prepare-data must succeed first",
        "its array runs 1 at once and 1 are running",
    ]


def test_a_gate_keeps_from_starting_and_tells_when_and_what_would_help() -> None:
    later = a_request(not_before_us=NOW_US + HOUR_US)
    world = a_world([a_node("n1")], some_gpus("n1"), [later])
    (verdict,) = decide(world).verdicts
    assert codes_of(decide(world)) == ["not_before"]
    assert (verdict.eta_us, verdict.smallest_change) == (NOW_US + HOUR_US, {"kind": "start_time"})


def test_of_an_array_no_more_start_in_one_pass_than_its_cap() -> None:
    members = [a_request(f"m{number}", array_id="sweep", array_cap=2) for number in range(3)]
    decided = decide(a_world([a_node("n1")], some_gpus("n1"), members))
    assert started(decided) == ["m0", "m1"]
    (verdict,) = decided.verdicts
    assert [blocker.code for blocker in verdict.blockers] == ["array_cap"]
    assert verdict.smallest_change == {"kind": "array_cap", "cap": 3}


def session(name: str, **changes: Any) -> Request:
    return a_request(name, kind="development", **{"owner_id": "ana", **changes})


def until(number: int, **changes: Any) -> Work:
    """One GPU of n1, held for so many hours more."""
    work = running(f"r{number}", "n1", [number], team="vision", **changes)
    rows = tuple(replace(row, ends_us=NOW_US + number * HOUR_US) for row in work.live)
    return replace(work, live=rows)


def test_sessions_hold_so_many_gpus_for_a_team_and_a_person() -> None:
    wants = [session(f"a{n}") for n in range(3)] + [session(f"b{n}", owner_id="bo") for n in range(3)]
    world = a_world([a_node("n1")], some_gpus("n1"), [*wants, a_request("job", owner_id="ana")])
    assert started(decide(world, Policy(sessions_per_person=2))) == ["a0", "a1", "b0", "b1", "job"]
    decided = decide(world, Policy(sessions_per_person=2, sessions_per_team=3))
    assert started(decided) == ["a0", "a1", "b0", "job"]
    assert (codes_of(decided, "a2"), codes_of(decided, "b1")) == (["sessions", "sessions"], ["sessions"])
    texts = [sentence(blocker, {}) for blocker in decided.verdicts[0].blockers]
    assert texts == [
        "sessions of team vision may hold 3 GPUs at once; they hold 3 and this asks for 1",
        "its owner's sessions may hold 2 GPUs at once; they hold 2 and this asks for 1",
    ]
    assert started(decide(world)) == ["a0", "a1", "a2", "b0", "b1", "b2", "job"]


def test_a_session_larger_than_its_cap_can_never_start() -> None:
    world = a_world([a_node("n1")], some_gpus("n1"), [session("w", gpus=2)])
    (verdict,) = decide(world, Policy(sessions_per_person=1)).verdicts
    assert sentence(verdict.blockers[0], {}).endswith("so it can never start as it is")
    assert (verdict.eta_us, verdict.smallest_change) == (None, None)


def test_a_session_may_start_when_those_before_it_end() -> None:
    works = [until(n, kind="development", owner_id="ana") for n in (1, 2)]
    world = with_work(
        a_world([a_node("n1")], some_gpus("n1"), [session("w"), session("more", gpus=2)]), *works
    )
    decided = decide(world, Policy(sessions_per_person=2))
    when = {verdict.workload_id: verdict.eta_us for verdict in decided.verdicts}
    assert when == {"w": NOW_US + HOUR_US, "more": NOW_US + 2 * HOUR_US}
    assert {verdict.smallest_change["kind"] for verdict in decided.verdicts if verdict.smallest_change} == {
        "wait"
    }


def test_an_array_at_its_cap_goes_on_when_a_member_ends() -> None:
    works = [until(n, array_id="sweep") for n in (1, 2)]
    wants = [a_request("w", array_id="sweep", array_cap=1, time_limit_s=3600)]
    (verdict,) = decide(with_work(a_world([a_node("n1")], some_gpus("n1"), wants), *works)).verdicts
    assert (verdict.eta_us, verdict.eta_basis) == (NOW_US + 2 * HOUR_US, "time_limits")


def test_what_follows_waiting_work_starts_when_that_may_have_ended() -> None:
    job = replace(held("l", 8), ends_us=NOW_US + HOUR_US)
    first = a_request("z", gpus=8, time_limit_s=7200)
    wants = [
        first,
        a_request("a", depends_on=("b", "z")),
        a_request("b", depends_on=("z",), time_limit_s=3600),
    ]
    world = a_world([a_node("n1")], some_gpus("n1", free=0), wants, [], [job])
    decided = decide(world)
    when = {verdict.workload_id: (verdict.eta_us, verdict.eta_basis) for verdict in decided.verdicts}
    assert when["z"][0] == NOW_US + HOUR_US
    assert when["b"] == (NOW_US + 3 * HOUR_US, "time_limits")
    assert when["a"] == (NOW_US + 4 * HOUR_US, "time_limits")
    endless = replace(world, requests=(replace(first, kind="inference", time_limit_s=None), *wants[1:]))
    assert {v.workload_id: v.eta_us for v in decide(endless).verdicts}["a"] is None
    circle = replace(world, requests=tuple(a_request(x, depends_on=(y,)) for x, y in ("ab", "ba")))
    assert [verdict.eta_us for verdict in decide(circle).verdicts] == [None, None]
