import pytest

from scheduling.engine.decisions import BLOCKER_CODES
from scheduling.engine.explain import change_sentence, headline, sentence, start_reason
from scheduling.engine.plan import Blocker
from scheduling.engine.snapshot import Snapshot
from tests.engine.build import (
    A100,
    H100,
    L4,
    TEAMS,
    a_node,
    a_request,
    a_world,
    decide,
    held,
    quota,
    some_gpus,
)
from tests.engine.test_blockers import REMEDIES, everything_wrong

NAMES = {thing.id: thing.name for thing in (H100, A100, L4, *TEAMS)}
NODES = (a_node("n1"), a_node("n2"))


def first(world: Snapshot) -> str:
    return headline(decide(world).verdicts[0], NAMES)


def test_quota_in_peoples_words() -> None:
    live = [held("old", 16, node_id="x")]
    world = a_world(NODES, some_gpus("n1"), [a_request(gpus=4)], [quota("vision", limit=16)], live)
    assert first(world) == "Waiting: team vision uses 16 of its 16 h100-80g; this asks for 4 more"


def test_free_but_not_on_one_node() -> None:
    gpus = [*some_gpus("n1", free=4), *some_gpus("n2", free=3)]
    live = [held("old", 4, node_id="n2"), held("other", 5, team_id="speech")]
    world = a_world(NODES, gpus, [a_request(gpus=5)], live=live)
    assert first(world) == (
        "Waiting: 7 h100-80g free, but at most 4 on one node; held by team speech 5, team vision 4"
    )


def test_never_fits_and_more_reasons() -> None:
    world = a_world(NODES, some_gpus("n1", free=0), [a_request(gpus=16)])
    assert first(world) == (
        "Waiting: asks for 16 h100-80g on one node; the largest node, n1, has 8, so it can never start as it is"
        " (and 1 more reason)"
    )


def test_cordon_with_its_reason() -> None:
    nodes = (a_node("n1", schedulable=False, reason_unschedulable="fan fault"),)
    world = a_world(nodes, some_gpus("n1"), [a_request()])
    assert first(world) == "Waiting: 1 node with 8 h100-80g is taken out of service: n1 (fan fault)"


@pytest.mark.parametrize("code", sorted(REMEDIES))
def test_every_blocker_has_a_sentence_without_names(code: str) -> None:
    blockers = {blocker.code: blocker for blocker in decide(everything_wrong()).verdicts[0].blockers}
    text = sentence(blockers[code], {})
    assert text
    assert "{" not in text
    assert not text.endswith(".")


def test_the_examples_leave_out_only_the_split_gang() -> None:
    rules = {"not_preemptible", "lend_limit", "reservation"}  # tests of their own
    rules |= {"not_before", "dependency", "array_cap", "node_selection", "topology", "share", "leaving"}
    assert set(BLOCKER_CODES) - set(REMEDIES) == {"gang_split", "tier_unknown"} | rules
    gpus = [*some_gpus("n1", free=5), *some_gpus("n2", free=3)]
    world = a_world(NODES, gpus, [a_request(replicas=2, gpus=4)])
    assert first(world) == (
        "Waiting: needs 2 replicas with 4 h100-80g each at once; 8 are free, but only 1 replica would fit"
    )
    assert sentence(Blocker("tier_unknown", {"tier_id": "v100"}), {}) == "there is no tier v100 any more"


def test_why_now_and_why_here() -> None:
    gpus = [*some_gpus("n1", free=4), *some_gpus("n2")]
    world = a_world(NODES, gpus, [a_request(gpus=2)], [quota("vision", guaranteed=8)])
    assert start_reason(decide(world).starts[0], NAMES) == (
        "Inside the guarantee of 8 GPUs: team vision used 0 and asked for 2. "
        "On n1 (h100-80g): of 2 nodes that could, it is left with 2 GPUs, all GPUs on one island; "
        "next best was n2 with 6 left."
    )


def test_borrowed_names_the_guarantee_that_it_is_beyond() -> None:
    reason = start_reason(decide(a_world(NODES, some_gpus("n1"), [a_request()])).starts[0], NAMES)
    assert reason.startswith("Borrowed: 1 beyond the guarantee of team vision, which used 0 of 0. ")


def test_changes_in_words() -> None:
    assert change_sentence(None, NAMES) == "No single change would start it now"
    change = {"kind": "quota", "units": 7000, "raise": [{"team_id": "lab", "tier_id": "h100", "units": 7000}]}
    assert (
        change_sentence(change, NAMES) == "It would start now with a limit higher by 1 h100-80g for team lab"
    )
    change = {"kind": "fewer_gpus", "gpus_per_replica": 8, "tier": "h100", "when": "later"}
    assert (
        change_sentence(change, NAMES)
        == "With 8 GPUs of h100-80g for each replica it would fit once they are free"
    )
