"""How a reserved start clears: which GPUs, who must leave them and when; of other teams only that they are there."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse

from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.fleet.models import Node
from scheduling.models import Verdict, Workload
from scheduling.passes import pass_once
from scheduling.reservations import ReservedStarts, reserved_starts
from tests import factories as make
from tests.web.test_scheduler_pages import browse, see

pytestmark = pytest.mark.django_db
HOUR = 3600


def _world() -> tuple[User, Workload, Node]:
    """One node: 2 GPUs are the team's own for an hour, 1 another's for two, 1 free. The head needs all four."""
    team, tier = make.team(make.company(), "vision"), make.tier("h100-80g")
    node = make.node(tier, 4, name="node-a")
    gpus = list(node.gpus.order_by("index"))
    member = make.user("member", team)
    own = make.workload(team, tier, name="own-train", gpus=2, time_limit_s=HOUR)
    make.placed(own, gpus[:2], running=True)
    rival = make.workload(None, tier, name="rival-secret", gpus=1, time_limit_s=2 * HOUR)
    make.placed(rival, gpus[2:3], running=True)
    head = make.workload(team, tier, owner=member, name="head", gpus=4, time_limit_s=HOUR)
    pass_once()
    return member, head, node


def _starts(reader: User, *waiting: Workload, most_nodes: int = 9) -> ReservedStarts:
    found = Workload.objects.filter(pk__in=[one.pk for one in waiting]).select_related("verdict", "spec")
    return reserved_starts(reader, found, most_nodes=most_nodes)


def test_a_verdict_keeps_the_nodes_of_its_reserved_start() -> None:
    _member, head, node = _world()
    tier = node.gpus.all()[0].tier_id
    assert Verdict.objects.get(workload=head).reserved == {"tier": str(tier), "nodes": [[str(node.pk), 1]]}


def test_what_has_no_reserved_start_has_no_nodes() -> None:
    waits = make.workload(None, make.tier(), gpus=9)
    pass_once()
    assert Verdict.objects.get(workload=waits).reserved is None
    assert _starts(make.admin(), waits).lanes == ()


def test_each_group_of_gpus_has_its_holder_and_then_the_reserved_start() -> None:
    member, head, _node = _world()
    lanes = _starts(member, head).lanes
    assert [(lane.gpus, lane.count) for lane in lanes] == [((0, 1), 2), ((2,), 1), ((3,), 1)]
    named = [[stay.workload.name if stay.workload else None for stay in lane.stays] for lane in lanes]
    assert named == [["own-train", "head"], [None, "head"], ["head"]]
    last = lanes[1].stays
    assert last[0].until is not None
    assert abs(last[0].until - clock.now() - timedelta(hours=2)) < timedelta(minutes=2)
    assert last[1].since == Verdict.objects.get(workload=head).eta


def test_gpus_that_are_not_needed_are_left_out() -> None:
    member, head, node = _world()
    small = make.workload(head.team, node.gpus.all()[0].tier, owner=member, gpus=3, time_limit_s=HOUR)
    Workload.objects.filter(pk=head.pk).update(state="cancelled")
    pass_once()
    assert sum(lane.count for lane in _starts(member, small).lanes) == 3


def test_the_page_draws_it_and_says_whom_it_waits_for() -> None:
    member, head, _node = _world()
    page = see(member, "workload", head.public_id)
    assert "How it clears" in page
    assert "The last to leave is another team on node-a, 1 GPU by" in page
    assert "own-train" in page
    assert "rival-secret" not in page
    assert "The same as a table" in page


def test_the_queue_shows_reserved_starts_of_the_reader_only() -> None:
    member, _head, _node = _world()
    assert "Reserved starts" in see(member, "queue")
    assert "Reserved starts" not in see(make.user("member", make.team()), "queue")
    assert "rival-secret" in see(make.admin(), "queue")


def test_a_strangers_reserved_start_on_the_same_gpus_is_another_teams() -> None:
    _member, head, node = _world()
    behind_team = make.team(make.company(), "speech")
    reader = make.user("member", behind_team)
    behind = make.workload(behind_team, node.gpus.all()[0].tier, gpus=4, time_limit_s=HOUR)
    pass_once()
    lanes = _starts(reader, behind).lanes
    assert len(lanes) == 3
    assert all([stay.workload for stay in lane.stays][-2:] == [None, behind] for lane in lanes)
    page = see(reader, "workload", behind.public_id)
    assert head.public_id not in page
    assert "own-train" not in page


def test_work_without_a_limit_is_judged_by_its_usual_run_time() -> None:
    tier = make.tier("h100-80g")
    node = make.node(tier, 1)
    make.placed(make.workload(None, tier, time_limit_s=None), list(node.gpus.all()), running=True)
    head = make.workload(None, tier, time_limit_s=HOUR)
    pass_once()
    (lane,) = _starts(make.admin(), head).lanes
    assert lane.stays[0].is_estimate
    assert "by its usual run time" in see(make.admin(), "workload", head.public_id)


def test_shares_of_one_card_are_told_together() -> None:
    team, tier = make.team(), make.tier("h100-80g")
    node = make.node(tier, 1)
    for slots in ((0, 500), (500, 1000)):
        piece = make.workload(team, tier, time_limit_s=HOUR, request_fields={"share": 500})
        rank = make.replica(make.attempt(piece, tier, state="running"), node, state="running")
        make.allocation(rank, node.gpus.all()[0], shares=slots)
        Workload.objects.filter(pk=piece.pk).update(state="running")
    head = make.workload(team, tier, gpus=1, time_limit_s=HOUR)
    pass_once()
    assert "2 workloads that share it" in see(make.admin(), "workload", head.public_id)


def test_many_nodes_are_cut_short() -> None:
    tier = make.tier("h100-80g")
    for _ in range(3):
        node = make.node(tier, 1)
        make.placed(make.workload(None, tier), list(node.gpus.all()), running=True)
    head = make.workload(None, tier, gpus=1, replicas=3)
    pass_once()
    found = _starts(make.admin(), head, most_nodes=2)
    assert (len(found.lanes), found.more_nodes) == (2, 1)


@pytest.mark.parametrize("count", [1, 6])
def test_the_picture_takes_as_many_queries_for_six_as_for_one(
    count: int, django_assert_max_num_queries: Any
) -> None:
    for _ in range(count):
        tier = make.tier()
        node = make.node(tier, 1)
        make.placed(make.workload(None, tier), list(node.gpus.all()), running=True)
        make.workload(None, tier)
    pass_once()
    client = browse(make.admin())
    client.get(reverse("web:queue"))
    with django_assert_max_num_queries(34):
        client.get(reverse("web:queue"))
