from dataclasses import replace

import pytest

from scheduling.engine.blockers import leaving_blocker
from scheduling.engine.decisions import BLOCKER_CODES
from scheduling.engine.explain import change_sentence, headline, sentence, start_reason
from scheduling.engine.plan import Blocker
from scheduling.engine.snapshot import Snapshot
from tests.engine.build import (
    A100,
    H100,
    HOUR_US,
    L4,
    NOW_US,
    TEAMS,
    a_node,
    a_request,
    a_world,
    decide,
    held,
    quota,
    some_gpus,
)
from tests.engine.test_blockers import MORE_REMEDIES, REMEDIES, everything_wrong, wrong_in_other_ways

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
    rules = {"not_preemptible", "lend_limit", "headroom", "reservation"}  # tests of their own
    rules |= {"array_cap", "sessions", "share", "leaving", *MORE_REMEDIES} - set(REMEDIES)
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


def test_a_start_for_which_others_leave_says_so() -> None:
    (start,) = decide(a_world(NODES, some_gpus("n1"), [a_request()])).starts
    taken = {"rule": "return", "evicted_units": 28_000, "candidates": 3, "lost_gpu_s": 7200}
    told = start_reason(replace(start, why_now={**start.why_now, "taken_back": taken}), NAMES)
    assert ". Others leave 4 GPUs to it; they lose 2 GPU-hours of work. On n1 " in told


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


@pytest.mark.parametrize("code", sorted(MORE_REMEDIES))
def test_the_other_blockers_have_sentences_too(code: str) -> None:
    blockers = {blocker.code: blocker for blocker in decide(wrong_in_other_ways()).verdicts[0].blockers}
    assert not sentence(blockers[code], {}).endswith(".")


def test_topology_in_words() -> None:
    nodes = [a_node(name, domains=(name[0],)) for name in ("r1", "r2", "s1")]
    gpus = [gpu for node in nodes for gpu in some_gpus(node.name, free=4 if node.name == "r1" else 8)]
    request = a_request(replicas=2, gpus=8, preferred_level="rack", level_wait_s=7200)
    world = replace(a_world(nodes, gpus, [request]), levels=("rack",))
    verdict = decide(world).verdicts[0]
    assert headline(verdict, NAMES) == (
        "Waiting: needs 2 replicas with 8 h100-80g each in one rack; the one with most room, r, has room for 1,"
        " all together for 2; from 2027-01-15 09:00 UTC on it takes less"
    )
    assert change_sentence(verdict.smallest_change, NAMES) == "Wherever there is room it would start now"
    assert verdict.eta_us == NOW_US + HOUR_US


def test_labels_and_shares_in_words() -> None:
    labels = a_request(node_labels=("disk=ssd",), not_labels=("old=yes",))
    assert first(a_world(NODES, some_gpus("n1"), [labels])) == (
        "Waiting: asks for nodes with disk=ssd and without old=yes; no node with h100-80g is such a node"
    )
    gpus = [replace(gpu, slots_free=300, shared_by="vision") for gpu in some_gpus("n1", 1, free=0)]
    world = a_world(NODES, gpus, [a_request(share=500)])
    assert first(world) == (
        "Waiting: needs 50 % of one h100-80g; the largest part that is free to it is 30 %"
    )
    assert change_sentence(decide(world).verdicts[0].smallest_change, NAMES) == (
        "With 30 % (23.89 GiB) of one h100-80g it would start now"
    )


def test_a_claim_waits_for_others_to_leave() -> None:
    assert sentence(leaving_blocker("h100", 8, 4.0, 2), NAMES) == (
        "its GPUs are chosen; it starts when 2 workloads on 4 of its 8 h100-80g have left"
    )


def test_a_start_says_which_domain_and_which_tier_by_value() -> None:
    nodes = [a_node(name, domains=("r",)) for name in ("r1", "r2")]
    gpus = [gpu for node in nodes for gpu in some_gpus(node.name)]
    world = replace(a_world(nodes, gpus, [a_request(replicas=2, gpus=8)]), levels=("rack",))
    (start,) = decide(world).starts
    assert "all replicas in rack r" in start_reason(start, NAMES)
    by_value = replace(start, why_here={**start.why_here, "tier_choices": 2, "by_value": True})
    assert "(h100-80g, the best result for its cost of 2 tiers that could start it)" in start_reason(
        by_value, NAMES
    )
