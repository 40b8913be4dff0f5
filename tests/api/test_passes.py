"""Passes and free space over REST."""

from __future__ import annotations

import pytest

from scheduling.models import Eviction
from scheduling.passes import pass_once
from tests import factories as make
from tests.api.calls import Caller

pytestmark = pytest.mark.django_db


def test_an_admin_reads_a_pass_and_replays_it() -> None:
    tier = make.tier("h100-80g")
    make.node(tier, 4, name="node-a")
    started = make.workload(None, tier, gpus=4)
    number = pass_once().pass_number
    caller = Caller(make.admin())

    shown = caller.get(f"passes/{number}")
    (start,) = shown["starts"]
    assert (start["workload"]["id"], start["nodes"]) == (started.public_id, ["node-a"])
    assert "On node-a" in start["reason"]
    assert (shown["stops"], shown["claims"], shown["policy"]["reservations"]) == ([], [], 50)

    again = caller.get(f"passes/{number}/replay")
    assert (again["same"], again["starts"], again["digest"]) == (True, 1, shown["plan_digest"])


def test_passes_with_stops_only() -> None:
    make.workload()
    pass_once()
    caller = Caller(make.admin())
    assert len(caller.get("passes")["results"]) == 1
    assert caller.get("passes", with_stops="true")["results"] == []
    caller.get("passes/99", status=404)


def test_free_space_counts_nodes_islands_and_own_shares() -> None:
    tier = make.tier("h100-80g")
    node = make.node(tier, 4, name="node-a")
    make.placed(make.workload(None, tier), [node.gpus.all()[0]])
    (space,) = Caller(make.user()).get("free-space")["results"]
    assert (space["free"], space["total"], space["largest_on_node"], space["blocks"]) == (3, 4, 3, [3])
    assert [(one["gpus"], one["on_node"]) for one in space["sizes"]] == [(1, 3), (2, 1), (4, 0)]
    assert (space["too_small"], space["shared_cards"]) == (3, [])


def test_a_workload_tells_what_was_taken_back_of_it() -> None:
    tier = make.tier()
    loser = make.workload(None, tier)
    attempt = make.placed(loser, list(make.node(tier, 1).gpus.all()))
    same = {"company_id": loser.company_id, "team": loser.team, "workload": loser, "attempt": attempt}
    why = {"rule": "slack", "lost_gpu_s": 120}
    Eviction.objects.create(**same, pass_number=1, reason="preempt", units=7000, lost_gpu_s=120, why=why)
    (told,) = Caller(loser.owner).get(f"workloads/{loser.public_id}")["evictions"]
    assert (told["reason"], told["lost_gpu_s"], told["replicas"]) == ("preempt", 120, None)
    assert told["text"].startswith(
        "Taken back because it had grown into GPUs that another team waits for now."
    )


def test_quotas_tell_the_fair_share() -> None:
    tier = make.tier()
    team = make.team()
    make.node(tier, 2)
    make.quota(team, tier, limit_gpus=2)
    for _ in range(2):
        make.workload(team, tier, gpus=2)
    pass_once()
    (row,) = Caller(make.user("member", team)).get(f"teams/{team.public_id}/quotas")["results"]
    assert (row["fair_share_units"], row["used_units"]) == (14_000, 14_000)
