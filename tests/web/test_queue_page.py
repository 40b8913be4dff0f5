"""The queue: whose turn it is, why not yet, what changed, and nothing of other people's work but how much."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from gpuyard.core.models import User
from gpuyard.web.pages.why import blocker_label
from scheduling.engine.decisions import BLOCKER_CODES
from scheduling.models import Eviction, SchedulerState, Workload
from scheduling.passes import pass_once
from tenants.models import Team
from tests import factories as make
from tests.web.test_scheduler_pages import browse, see

pytestmark = pytest.mark.django_db


def _team() -> tuple[Team, User]:
    company = make.company("acme")
    team = make.team(company, "vision")
    return team, make.user("member", team, username="vision-member")


def test_each_tier_has_its_line_and_others_are_only_counted() -> None:
    team, member = _team()
    dear, cheap = make.tier("h100-80g", cost_rank=9), make.tier("a10-24g", cost_rank=1)
    make.workload(team, cheap, owner=member, name="small", gpus=1)
    make.workload(team, dear, owner=member, name="large", gpus=1)
    make.workload(None, dear, name="rival-secret", gpus=1)
    pass_once()
    page = see(member, "queue")
    assert page.index("large</a>") < page.index("small</a>")
    assert "2 wait, 1 of them of other teams" in page
    assert "rival-secret" not in page
    assert "small</a>" not in see(member, "queue", tier="h100-80g")


def test_the_tier_filter_finds_all_that_would_take_it() -> None:
    team, member = _team()
    make.tier("h100-80g", memory_mib=81_920, architecture="hopper")
    make.tier("l4-24g", memory_mib=24_576, architecture="ada")
    make.tier("a100-40g", memory_mib=40_960, architecture="ampere")
    make.workload(team, "h100-80g", owner=member, name="by-name", gpus=9)
    make.workload(team, "l4-24g", "h100-80g", owner=member, name="second", gpus=9)
    for name, wanted in (
        ("by-memory", {"memory_mib": 40_000, "architecture": None, "labels": []}),
        ("by-age", {"memory_mib": None, "architecture": "hopper", "labels": []}),
        ("by-label", {"memory_mib": None, "architecture": None, "labels": ["nothing-has-it"]}),
    ):
        fields: dict[str, Any] = {"tiers": [], "capabilities": wanted}
        make.workload(team, owner=member, name=name, gpus=9, request_fields=fields)
    for tier, names in {
        "h100-80g": {"by-name", "second", "by-memory", "by-age"},
        "a100-40g": {"by-memory"},
        "l4-24g": {"second"},
    }.items():
        rows = list(csv.DictReader(io.StringIO(see(member, "queue_csv", tier=tier))))
        assert {row["name"] for row in rows} == names
        assert f'{tier} <span class="mut tn">{len(names)}</span>' in see(member, "queue")


def test_a_team_sees_use_guarantee_and_fair_share() -> None:
    team, member = _team()
    tier = make.tier("h100-80g")
    make.node(tier, 4)
    make.quota(team.parent or team, tier, guaranteed_gpus=2)
    make.quota(team, tier, guaranteed_gpus=2, limit_gpus=4)
    for _ in range(2):
        make.workload(team, tier, owner=member, gpus=3)
    pass_once()
    page = see(member, "queue")
    assert 'aria-label="h100-80g: 3 in use, 2 guaranteed, fair share 4, limit 4"' in page
    assert "1 borrowed beyond the guarantee of 2. Fair share now: 4." in page


def test_a_team_without_a_quota_has_its_fair_share_too() -> None:
    team, member = _team()
    tier = make.tier("h100-80g")
    make.node(tier, 4)
    make.workload(team, tier, owner=member, gpus=8)
    make.workload(team, tier, owner=member, gpus=4)
    pass_once()
    assert "fair share 4, no limit" in see(member, "queue")


def test_what_changed_is_said() -> None:
    team, member = _team()
    tier = make.tier("h100-80g")
    node = make.node(tier, 2)
    make.placed(make.workload(team, tier, gpus=2), list(node.gpus.all()))
    first = make.workload(team, tier, owner=member, name="first", gpus=2)
    make.workload(team, tier, owner=member, name="second", gpus=2)
    pass_once()
    make.quota(team, tier, limit_gpus=2)
    Workload.objects.filter(pk=first.pk).update(state="cancelled")
    pass_once()
    page = see(member, "queue")
    assert "was place 2" in page
    assert "new: team limit" in page


def test_the_csv_has_the_rows_of_the_page() -> None:
    team, member = _team()
    tier, other = make.tier("h100-80g"), make.tier("a10-24g")
    make.workload(team, tier, owner=member, name="one", gpus=1)
    make.workload(team, other, owner=member, name="two", gpus=1)
    pass_once()
    rows = list(csv.DictReader(io.StringIO(see(member, "queue_csv", tier="h100-80g"))))
    assert [(row["place"], row["name"], row["tier"]) for row in rows] == [("1", "one", "h100-80g")]
    assert rows[0]["reason"]


@pytest.mark.parametrize("count", [1, 8])
def test_the_queue_takes_as_many_queries_for_eight_as_for_one(
    count: int, django_assert_max_num_queries: Any
) -> None:
    team, member = _team()
    for _ in range(count):
        tier = make.tier()
        make.workload(team, tier, owner=member, gpus=1)
    pass_once()
    client = browse(member)
    client.get(reverse("web:queue"))
    with django_assert_max_num_queries(24):
        client.get(reverse("web:queue"))


def test_shares_of_strangers_are_not_told() -> None:
    member = _team()[1]
    rival, tier = make.team(make.company(), "rival-lab"), make.tier("h100-80g")
    make.node(tier, 1)
    for _ in range(2):
        make.workload(rival, tier, gpus=1)
    pass_once()
    assert SchedulerState.objects.get().shares
    assert "rival-lab" not in see(member, "queue")


# --- Why, on the workload's page -------------------------------------------------------------------------------


def test_limits_are_drawn_and_the_change_is_a_link() -> None:
    team, member = _team()
    make.approval_policy(team)
    tier = make.tier("h100-80g")
    make.node(tier, 4)
    make.quota(team, tier, limit_gpus=2)
    wants = make.workload(team, tier, owner=member, gpus=4)
    pass_once()
    page = see(member, "workload", wants.public_id)
    assert 'aria-label="0 in use, 4 more asked for, 2 allowed"' in page
    assert f"again={wants.public_id}&amp;gpus=2" in page
    form = browse(member).get(reverse("web:request"), {"again": wants.public_id, "gpus": "2"}).text
    assert 'name="gpus_per_replica" value="2"' in form


def test_a_member_reads_which_pass_judged_and_since_when_it_is_so() -> None:
    team, member = _team()
    wants = make.workload(team, make.tier("h100-80g"), owner=member, gpus=4)
    first, last = pass_once().pass_number, pass_once().pass_number
    page = see(member, "workload", wants.public_id)
    assert f"judged in pass {last}, " in page
    assert f"the same since pass {first}, " in page
    assert "/passes/" not in page


def test_the_places_are_compared_by_their_costs() -> None:
    team, member = _team()
    tier = make.tier("h100-80g")
    make.node(tier, 4, name="node-a")
    make.node(tier, 8, name="node-b")
    started = make.workload(team, tier, owner=member, gpus=4)
    number = pass_once().pass_number
    page = see(member, "workload", started.public_id)
    assert "How the places compare" in page
    assert "Open this pass" not in page
    assert reverse("web:pass", args=[number]) in see(make.admin(), "workload", started.public_id)


@pytest.mark.parametrize("gainer", ["sister", "rival"])
def test_who_gained_is_named_inside_the_company_only(gainer: str) -> None:
    team, member = _team()
    tier = make.tier("h100-80g")
    node = make.node(tier, 1)
    loser = make.workload(team, tier, owner=member)
    attempt = make.placed(loser, list(node.gpus.all()))
    home = team.parent if gainer == "sister" else None
    winner = make.workload(make.team(home, "speech"), tier, name="secret-project")
    Eviction.objects.create(
        company_id=loser.company_id,
        team=team,
        workload=loser,
        attempt=attempt,
        pass_number=1,
        reason="return",
        gained_by=winner,
        units=7000,
        lost_gpu_s=600,
        why={
            "rule": "return",
            "gained_by_team": str(winner.team_id),
            "gained_by_workload": str(winner.pk),
            "lost_gpu_s": 600,
            "candidates": 3,
        },
    )
    page = see(member, "workload", loser.public_id)
    assert "Lost: 10 GPU-minutes of work since its start." in page
    assert ("team speech needs its guarantee" in page) == (gainer == "sister")
    assert "secret-project" not in page
    assert str(winner.pk) not in page


def test_an_anonymous_reader_sees_none_of_it() -> None:
    for name in ("queue", "free_space", "passes"):
        assert Client().get(reverse(f"web:{name}")).status_code == 302


def test_every_blocker_has_a_short_label() -> None:
    for code in set(BLOCKER_CODES) - {"cpu", "memory", "budget"}:  # these are called what they are
        assert blocker_label(code) != code.replace("_", " ")
