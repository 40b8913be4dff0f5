"""What must be over before a request may start at all."""

from scheduling.engine.explain import sentence
from scheduling.engine.gates import arrays_running, gate
from scheduling.engine.snapshot import Snapshot
from tests.engine.build import (
    HOUR_US,
    NOW_US,
    a_node,
    a_request,
    a_world,
    codes_of,
    decide,
    some_gpus,
    started,
)


def test_nothing_asked_nothing_in_the_way() -> None:
    assert gate(a_request(), NOW_US, {}) == []


def test_the_earliest_start_holds_until_its_moment() -> None:
    request = a_request(not_before_us=NOW_US + HOUR_US)
    (blocker,) = gate(request, NOW_US, {})
    assert (blocker.code, blocker.data) == ("not_before", {"not_before_us": NOW_US + HOUR_US})
    assert gate(request, NOW_US + HOUR_US, {}) == []


def test_dependencies_are_counted_and_the_first_named() -> None:
    request = a_request(depends_on=tuple("abcdefg"))
    (blocker,) = gate(request, NOW_US, {})
    assert blocker.code == "dependency"
    assert blocker.data == {"workload_ids": ["a", "b", "c", "d", "e"], "count": 7}


def test_an_array_runs_so_many_members_at_once() -> None:
    request = a_request(array_id="sweep", array_cap=2)
    running = tuple(a_request(f"m{number}", array_id="sweep") for number in range(2))
    (blocker,) = gate(request, NOW_US, arrays_running(Snapshot(placed=running)))
    assert (blocker.code, blocker.data["cap"], blocker.data["running"]) == ("array_cap", 2, 2)
    assert gate(request, NOW_US, arrays_running(Snapshot(placed=running[1:]))) == []


def test_all_gates_are_listed_together() -> None:
    request = a_request(not_before_us=NOW_US + 1, depends_on=("a",), array_id="sweep", array_cap=1)
    found = gate(request, NOW_US, {"sweep": 1})
    assert [blocker.code for blocker in found] == ["not_before", "dependency", "array_cap"]
    assert [sentence(blocker, {"a": "prepare-data"}) for blocker in found] == [
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
