"""Every page for people with different roles, over real rows."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from django.db.models import F
from django.test import Client
from django.urls import reverse

from gpuyard.core.models import User
from gpuyard.fleet.models import Tier
from scheduling.models import Workload
from scheduling.passes import pass_once
from scheduling.services import workload_stop, workload_submit
from tenants.models import Case, Quota, Team
from tests import factories as make

pytestmark = pytest.mark.django_db


@dataclass
class World:
    company: Team
    vision: Team
    tier: Tier
    member: User
    manager: User
    stranger: User
    admin: User


@pytest.fixture
def world() -> World:
    company = make.company("acme")
    vision, nlp = make.team(company, "vision"), make.team(company, "nlp")
    tier = make.tier("h100-80g")
    make.node(tier, 8, name="node-h100")
    make.approval_policy(
        company,
        {
            "rules": [
                {"name": "small", "when": {"gpu_count": {"max": 4}}, "then": {"auto": True}},
                {"name": "large", "when": {}, "then": {"steps": [{"role": "manager", "level": "team"}]}},
            ]
        },
    )
    make.quota(company, tier, guaranteed_gpus=8)
    make.quota(vision, tier, guaranteed_gpus=4, limit_gpus=8)
    return World(
        company=company,
        vision=vision,
        tier=tier,
        member=make.user("member", vision, username="vision-member"),
        manager=make.user("manager", vision, username="vision-manager"),
        stranger=make.user("member", nlp, username="nlp-member"),
        admin=make.admin(username="admin"),
    )


def browse(person: User) -> Client:
    client = Client()
    client.force_login(person)
    return client


def ask(world: World, *, gpus: int = 1, replicas: int = 1, name: str = "train") -> Workload:
    spec = {
        "command": ["python3", "train.py"],
        "time_limit_s": 3600,
        "request": {"gpus_per_replica": gpus, "replicas_min": replicas, "tiers": ["h100-80g"], "cpu_m": 100},
    }
    return workload_submit(actor=world.member, team=world.vision, name=name, kind="training", spec=spec)


PAGES = ["home", "workloads", "request", "approvals", "queue", "fleet", "costs", "search"]
FILES = ["workloads_csv", "queue_csv", "fleet_csv", "costs_csv"]


@pytest.mark.parametrize("who", ["member", "manager", "stranger", "admin"])
@pytest.mark.parametrize("name", PAGES + FILES)
def test_every_page_opens_for_everybody_signed_in(world: World, who: str, name: str) -> None:
    ask(world)
    ask(world, gpus=8, name="large")
    pass_once()
    assert browse(getattr(world, who)).get(reverse(f"web:{name}")).status_code == 200


@pytest.mark.parametrize("name", PAGES + FILES)
def test_nobody_unknown_sees_a_page(world: World, name: str) -> None:
    answer = Client().get(reverse(f"web:{name}"))
    assert answer.status_code == 302
    assert answer["Location"].startswith("/sign-in?next=")


@pytest.mark.parametrize("tab", ["overview", "log", "decisions", "cost", "events", "nonsense"])
@pytest.mark.parametrize("kind", ["running", "waiting", "pending"])
def test_every_tab_of_a_workload_opens(world: World, tab: str, kind: str) -> None:
    workload = {
        "running": lambda: ask(world, gpus=4),
        "waiting": lambda: ask(world, gpus=3, replicas=1),
        "pending": lambda: ask(world, gpus=8),
    }[kind]()
    if kind != "waiting":
        pass_once()
    answer = browse(world.member).get(reverse("web:workload", args=[workload.public_id]), {"tab": tab})
    assert answer.status_code == 200
    assert "train" in answer.content.decode()


def test_a_strangers_workload_is_not_there(world: World) -> None:
    workload = ask(world)
    client = browse(world.stranger)
    assert client.get(reverse("web:workload", args=[workload.public_id])).status_code == 404
    assert client.get(reverse("web:workload_log", args=[workload.public_id])).status_code == 404
    assert client.post(reverse("web:workload_stop", args=[workload.public_id])).status_code == 404
    assert workload.public_id not in client.get(reverse("web:workloads")).content.decode()


def test_a_strangers_team_is_not_there(world: World) -> None:
    answer = browse(world.stranger).get(reverse("web:workloads"), {"team": world.vision.public_id})
    assert answer.status_code == 404


def test_why_it_waits_is_said_with_all_reasons(world: World) -> None:
    workload = ask(world, gpus=64)
    Workload.objects.filter(pk=workload.pk, state="pending_approval").update(
        state="waiting", queued_at=workload.created_at
    )
    pass_once()
    page = browse(world.member).get(reverse("web:workload", args=[workload.public_id])).content.decode()
    assert "never, as asked" in page
    assert "never_fits_node" in page
    assert "the largest node, node-h100, has 8" in page


def test_a_live_part_is_204_until_something_changes(world: World) -> None:
    client = browse(world.member)
    ask(world)
    address = reverse("web:workloads")
    part = client.get(address, {"part": "live"}, headers={"HX-Request": "true"})
    version = part.content.decode().split('name="v" value="')[1].split('"')[0]
    again = client.get(address, {"part": "live", "v": version}, headers={"HX-Request": "true"})
    assert again.status_code == 204
    assert again["Yard-As-Of"]
    ask(world, name="another")
    changed = client.get(address, {"part": "live", "v": version}, headers={"HX-Request": "true"})
    assert changed.status_code == 200


def test_a_poll_after_the_session_ended_reloads_the_page(world: World) -> None:
    answer = Client().get(reverse("web:home"), {"part": "live"}, headers={"HX-Request": "true"})
    assert answer.status_code == 401
    assert answer["HX-Refresh"] == "true"


def test_a_name_that_is_a_formula_stays_text_in_the_csv(world: World) -> None:
    ask(world, name="=cmd()")
    text = browse(world.member).get(reverse("web:workloads_csv")).content.decode()
    assert ",'=cmd()," in text


def test_a_decision_that_is_not_theirs_changes_nothing(world: World) -> None:
    ask(world, gpus=8)
    case = Case.objects.get(state="open")
    for person, status in ((world.member, 302), (world.stranger, 404)):
        answer = browse(person).post(
            reverse("web:case_decide", args=[case.public_id]), {"decision": "approve"}
        )
        assert answer.status_code == status
    case.refresh_from_db()
    assert case.state == "open"


def test_a_rejection_without_a_reason_comes_back_with_the_remedy(world: World) -> None:
    ask(world, gpus=8)
    case = Case.objects.get(state="open")
    client = browse(world.manager)
    answer = client.post(reverse("web:case_decide", args=[case.public_id]), {"decision": "reject"})
    assert answer.status_code == 422
    assert "A rejection needs a reason." in answer.content.decode()


def test_withdrawing_says_so_and_frees_the_place(world: World) -> None:
    workload = ask(world, gpus=8)
    client = browse(world.member)
    page = client.post(reverse("web:workload_stop", args=[workload.public_id]), follow=True).content.decode()
    assert "train is withdrawn." in page
    workload.refresh_from_db()
    assert workload.state == "cancelled"


def test_it_says_who_stopped_it_and_keeps_the_reason_theirs(world: World) -> None:
    workload = ask(world, gpus=8)
    workload_stop(actor=world.manager, workload=workload, reason="Seen")
    page = browse(world.member).get(reverse("web:workload", args=[workload.public_id])).text
    assert "Cancelled: withdrawn by vision-manager before it started: Seen." in page


def test_a_pending_request_names_who_may_decide(world: World) -> None:
    workload = ask(world, gpus=8)
    page = browse(world.member).get(reverse("web:workload", args=[workload.public_id])).text
    assert "May decide</dt><dd>vision-manager</dd>" in page


def test_what_never_starts_has_no_place_in_line(world: World) -> None:
    workload = ask(world, gpus=16)
    Workload.objects.filter(pk=workload.pk).update(state="waiting", queued_at=workload.created_at)
    pass_once()
    page = browse(world.member).get(reverse("web:workload", args=[workload.public_id])).text
    assert "never, as asked" in page
    assert "Place in line" not in page


def test_equal_limits_of_a_team_and_its_company_are_one_reason(world: World) -> None:
    Quota.objects.filter(team=world.company).update(limit=F("guaranteed"))
    workload = ask(world, gpus=16)
    Workload.objects.filter(pk=workload.pk).update(state="waiting", queued_at=workload.created_at)
    pass_once()
    page = browse(world.member).get(reverse("web:workload", args=[workload.public_id])).text
    assert re.search("Teams (acme and vision|vision and acme) each use 0 of their 8 h100-80g", page)


def test_nodes_stand_in_the_order_of_the_tiers_beside_them(world: World) -> None:
    cheap = make.tier("a10-24g", cost_rank=1)
    Tier.objects.filter(pk=world.tier.pk).update(cost_rank=9)
    make.node(cheap, 1, name="a-node")
    page = browse(world.member).get(reverse("web:fleet")).text
    assert page.index('id="node-h100"') < page.index('id="a-node"')
    assert page.index('id="free-h100-80g"') < page.index('id="free-a10-24g"')


def test_finance_sees_what_teams_were_charged(world: World) -> None:
    finance = make.user("finance", world.company, username="finance")
    page = browse(finance).get(reverse("web:home")).text
    assert "Nothing charged yet this month" in page
    assert reverse("web:costs_csv") in page
    assert "Nothing running, nothing waiting" not in page
    assert "GPUs in use" not in page
    assert "Charged in" not in browse(world.member).get(reverse("web:home")).text


def test_passes_are_about_all_companies_and_shown_to_admins_only(world: World) -> None:
    ask(world, gpus=16)
    pass_once()
    assert "Last passes" in browse(world.admin).get(reverse("web:queue")).text
    text = browse(world.member).get(reverse("web:queue")).text
    assert "Last passes" not in text
    assert "last pass" in text
