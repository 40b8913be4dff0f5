"""Passes that really take back and grow work, as the pages tell them afterwards: what the pass did, why, to whom."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.core.management import call_command
from django.urls import reverse

from gpuyard.core.models import User
from gpuyard.fleet.inventory import inventory_apply
from gpuyard.fleet.models import Condition, Node
from gpuyard.fleet.reports import Inventory
from scheduling.models import Eviction, Replica, Workload
from scheduling.passes import pass_once
from tests import factories as make
from tests.scheduling.speaking import exited, gpu_report, inventory, report, speaker
from tests.web.test_scheduler_pages import browse, see

pytestmark = pytest.mark.django_db
HOUR = 3600


@dataclass(frozen=True)
class Taken:
    """A pass that took `loser` back for `winner`; `stranger` is the loser's team-mate, of another company."""

    number: int
    node: Node
    loser: Workload
    winner: Workload
    stranger: User
    gainer: User


@pytest.fixture
def taken(advance_clock: Callable[[float], None]) -> Taken:
    tier = make.tier("h100-80g")
    node = make.node(tier, 4, name="node-a")
    company = make.company("acme")
    owner, other = make.team(company, "vision"), make.team(make.company(), "speech")
    for team in (company, owner):
        make.quota(team, tier, guaranteed_gpus=4)
    fields: dict[str, Any] = {"restart_cost_s": 60}
    for name in ("borrower-1", "borrower-2"):
        make.workload(other, tier, name=name, gpus=2, time_limit_s=100 * HOUR, request_fields=fields)
    assert len(pass_once().started) == 2
    speaker(node).sync(*(report(one, "running") for one in Replica.objects.all()))
    advance_clock(HOUR)
    winner = make.workload(owner, tier, name="secret-winner", gpus=2, time_limit_s=HOUR)
    done = pass_once()
    assert (done.claimed, len(done.stopped)) == ([winner.pk], 1)
    victim = Workload.objects.get(pk=done.stopped[0])
    return Taken(
        done.pass_number, node, victim, winner, make.user("member", other), make.user("member", owner)
    )


def test_the_pass_tells_the_claim_the_stop_and_for_whom(taken: Taken) -> None:
    page = see(make.admin(), "pass", taken.number)
    assert "1 promised, 1 taken back" in page
    assert f"{taken.loser.name}</a>" in page
    assert "secret-winner</a>" in page
    assert "Promised, once others have left" in page
    assert "h100-80g on node-a" in page
    assert "Taken back because it was borrowed and team vision needs its guarantee" in page
    assert "1 taken back" in see(make.admin(), "passes", show="stops")


def test_the_pass_says_what_was_lost_why_this_one_and_at_what_rate(taken: Taken) -> None:
    for page in (
        see(make.admin(), "pass", taken.number),
        see(taken.stranger, "workload", taken.loser.public_id),
    ):
        assert "Lost: 2 GPU-hours of work since its start, and 2 GPU-minutes to start again." in page
        assert "Chosen among 2 because least work is lost" in page
        assert "In all 2 GPUs taken back for 2 asked for (1.00 for each)." in page


def test_strangers_do_not_learn_who_gained(taken: Taken) -> None:
    page = see(taken.stranger, "workload", taken.loser.public_id)
    assert "another team needs its guarantee" in page
    for secret in ("secret-winner", "vision", taken.winner.public_id, str(taken.winner.pk)):
        assert secret not in page
    decisions = browse(taken.stranger).get(
        reverse("web:workload", args=[taken.loser.public_id]), {"tab": "decisions"}
    )
    assert "Taken back" in decisions.text
    assert "secret-winner" not in decisions.text


def test_who_gains_sees_what_it_waits_for_and_not_of_whom(taken: Taken) -> None:
    page = see(taken.gainer, "workload", taken.winner.public_id)
    assert "its GPUs are chosen" in page or "Its GPUs are chosen" in page
    assert taken.loser.name not in page
    assert "speech" not in page


def test_the_pass_is_replayed_to_the_same_plan(taken: Taken) -> None:
    page = browse(make.admin()).post(reverse("web:pass_replay", args=[taken.number]), follow=True).text
    assert f"Pass {taken.number} again: the same plan, 1 claim, 1 stop" in page
    out = io.StringIO()
    call_command("replay_pass", taken.number, stdout=out)
    assert out.getvalue().startswith(f"Pass {taken.number}: the same plan, 1 claim, 1 stop")


def test_what_was_taken_back_starts_later_and_the_pass_still_tells_it(taken: Taken) -> None:
    agent = speaker(taken.node)
    agent.seq = 10
    agent.sync(exited(Replica.objects.get(attempt__workload=taken.loser), exit_reason="stopped"))
    assert pass_once().started == [taken.winner.pk]
    page = see(make.admin(), "pass", taken.number)
    assert "Taken back because it was borrowed" in page
    assert "secret-winner</a>" in page


@pytest.mark.parametrize("count", [1, 4])
def test_a_pass_with_stops_takes_as_many_queries_for_four_as_for_one(
    taken: Taken, count: int, django_assert_max_num_queries: Any
) -> None:
    first = Eviction.objects.get()
    for _ in range(count - 1):
        gainer = make.workload(make.team(), "h100-80g")
        Eviction.objects.create(
            company_id=first.company_id,
            team=first.team,
            workload=first.workload,
            attempt=first.attempt,
            pass_number=taken.number,
            reason="return",
            gained_by=gainer,
            units=7000,
            why=first.why,
        )
    client = browse(make.admin())
    client.get(reverse("web:pass", args=[taken.number]))
    with django_assert_max_num_queries(22):
        client.get(reverse("web:pass", args=[taken.number]))


# --- Growth, and what is not counted ---------------------------------------------------------------------------


def test_growth_is_told_with_its_reason() -> None:
    team, tier = make.team(make.company(), "vision"), make.tier("h100-80g")
    member, node = make.user("member", team), make.node(tier, 3)
    asked = make.workload(
        team, tier, kind="inference", owner=member, replicas_max=3, request_fields={"elastic": True}
    )
    make.placed(asked, [node.gpus.all()[0]], running=True)
    number = pass_once().pass_number
    assert "1 grown" in see(make.admin(), "pass", number)
    for tab in ("decisions", "events"):
        page = browse(member).get(reverse("web:workload", args=[asked.public_id]), {"tab": tab}).text
        assert "Grew by 2 replicas (2 GPUs) into GPUs that nobody waits for." in page


def test_gpus_that_are_out_of_service_are_counted_out_with_the_reason() -> None:
    tier = make.tier("h100-80g")
    node = make.node(tier, 1)
    for index, condition in enumerate((Condition.DOWN, Condition.CORDONED, Condition.CORDONED), start=1):
        make.gpu(node, tier, index=index, condition=condition)
    assert "3 not counted: 2 cordoned, 1 down" in see(make.user(), "free_space")


def test_gpus_without_a_tier_are_told_to_those_who_can_give_them_one() -> None:
    node = make.node(make.tier(), 1, name="node-a")
    found = Inventory.model_validate(inventory(gpu_report(0, model="Mystery")))
    inventory_apply(node=node, inventory=found)
    told = "1 GPU of node-a (Mystery) is not counted: "
    assert told in see(make.admin(), "fleet")
    assert told not in see(make.user(), "fleet")
