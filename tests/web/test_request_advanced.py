"""The advanced half of the request form: what is typed, what it becomes, what is refused, and the answer to it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from gpuyard.core.models import User
from gpuyard.fleet.models import Gpu, Node
from scheduling.models import BandGrant, Workload
from tenants.models import Team
from tests import factories as make
from tests.web.test_request_form import GOOD

pytestmark = pytest.mark.django_db


@pytest.fixture
def team() -> Team:
    company = make.company()
    make.approval_policy(company)
    return make.team(company)


@pytest.fixture
def node() -> Node:
    return make.node(make.tier("h100-80g", memory_mib=80_000), 2, name="node-1")


@pytest.fixture
def client(team: Team, node: Node) -> Client:
    browser = Client()
    browser.force_login(make.user("member", team, username="ada"))
    return browser


def _post(client: Client, team: Team, *, only: str = "", **typed: str) -> Any:
    address = reverse("web:request") + (f"?part={only}" if only else "")
    return client.post(address, GOOD | {"team": team.public_id} | typed)


def _request(client: Client, team: Team, **typed: str) -> dict[str, Any]:
    answer = _post(client, team, **typed)
    assert answer.status_code == 302, answer.content.decode()[-3000:]
    spec = Workload.objects.latest("created_at").spec
    assert spec is not None
    request: dict[str, Any] = spec.document["request"]
    return request


@pytest.mark.parametrize(
    ("typed", "share", "memory_mib"),
    [
        ("0.25", 250, None),
        (".5", 500, None),
        ("25 %", 250, None),
        ("10 GiB", None, 10_240),
        ("0.1, 512 MiB", 100, 512),
    ],
)
def test_a_part_of_a_gpu(
    client: Client, team: Team, typed: str, share: int | None, memory_mib: int | None
) -> None:
    request = _request(client, team, part=typed)
    assert (request["share"], request["gpu_memory_mib"], request["gpus_per_replica"]) == (
        share,
        memory_mib,
        1,
    )


@pytest.mark.parametrize("typed", ["0.25 and 0.5", "10 GiB, 20 GiB"])
def test_a_part_is_not_said_twice(client: Client, team: Team, typed: str) -> None:
    answer = _post(client, team, part=typed)
    assert answer.status_code == 422
    assert "This is no part of a GPU" in answer.content.decode()


def test_all_that_can_be_said(client: Client, team: Team) -> None:
    make.tier("a100-40g")
    make.domain("rack")
    earlier = make.workload(team, "h100-80g")

    request = _request(
        client,
        team,
        other_tiers="a100-40g",
        tier_choice="order",
        replicas="2",
        replicas_most="4",
        elastic="on",
        node_labels="zone=a, disk=nvme",
        not_labels="slow=yes",
        not_nodes="node-1",
        level_required="rack",
        level_preferred="node",
        level_wait="10 m",
        spread_level="node",
        not_before="2036-12-01T08:00",
        depends_on=earlier.public_id,
        array_count="3",
        array_parallel="2",
        min_run="30 m",
        restart_cost="5 m",
    )

    assert (request["tiers"], request["tier_choice"]) == (["h100-80g", "a100-40g"], "order")
    assert (request["replicas_min"], request["replicas_max"], request["elastic"]) == (2, 4, True)
    assert request["node_labels"] == ["zone=a", "disk=nvme"]
    assert (request["not_labels"], request["not_nodes"]) == (["slow=yes"], ["node-1"])
    assert request["topology"] == {"required": "rack", "preferred": "node", "wait_s": 600}
    assert request["not_before"].startswith("2036-12-01T08:00:00")
    assert (request["depends_on"], request["array"]) == ([earlier.public_id], {"count": 3, "parallel": 2})
    assert (request["min_run_s"], request["restart_cost_s"]) == (1800, 300)
    assert Workload.objects.exclude(pk=earlier.pk).count() == 3


EVERYTHING = {
    "reason": "for the paper",
    "time_limit": "1 d 3 h 46 m 40 s",
    "memory": "1000 MiB",
    "cpu": "12345.678",
    "part": "0.25, 10 GiB",
    "replicas": "2",
    "replicas_most": "3",
    "elastic": "on",
    "other_tiers": "a100-40g, l4-24g",
    "tier_choice": "order",
    "mix_tiers": "on",
    "node_labels": "zone=a, row=1",
    "not_labels": "zone=b, zone=c",
    "not_nodes": "node-1",
    "depends_on": "w-first, w-second",
    "level_required": "rack",
    "level_preferred": "node",
    "level_wait": "10 m",
    "spread_level": "node",
    "not_before": "2036-12-01T08:00",
    "array_count": "2",
    "array_parallel": "1",
    "min_run": "1 h 1 m 1 s",
    "restart_cost": "30 m",
    "env": "A=1\nB=x=y",
    "working_dir": "/work",
    "checkpoint_dir": "/ckpt",
    "image": "registry/train:1",
    "ports": "http /healthz\nmetrics",
    "priority": "-3",
    "preemptible": "no",
    "band": "2",
}


@pytest.mark.parametrize("of_any", [False, True])
def test_again_asks_for_all_of_it_again(client: Client, team: Team, of_any: bool) -> None:
    """Everything the form can say is sent, opened as “again”, and sent as it stands there."""
    make.domain("rack")
    BandGrant.objects.create(team=team, band=9, cap=70_000, reason="paper", granted_by=make.admin())
    for name in ("a100-40g", "l4-24g"):
        make.tier(name, memory_mib=40_000)
    owner = User.objects.get(username="ada")
    first, second = (make.workload(team, "h100-80g", owner=owner) for _ in range(2))
    typed = EVERYTHING | {"depends_on": f"{first.public_id}, {second.public_id}"}
    if of_any:
        typed |= {"tier": "any", "other_tiers": "", "least_memory": "10000 MiB"}
        typed |= {"least_architecture": "ampere", "capability_labels": ""}
    _request(client, team, **typed)
    (asked,) = _asked()

    form = client.get(reverse("web:request"), {"again": asked.public_id}).context["form"]
    filled = {name: "on" if value is True else value for name, value in form.initial.items() if value}
    assert set(EVERYTHING) - {"other_tiers"} <= set(filled)
    sent = client.post(reverse("web:request"), filled | {"idempotency_key": "web-2"})

    assert sent.status_code == 302, sent.context["form"].errors
    again = _asked()[1]
    assert (again.spec and again.spec.document) == (asked.spec and asked.spec.document)
    for name in ("name", "kind", "team_id", "priority", "preemptible", "band", "justification"):
        assert getattr(again, name) == getattr(asked, name)


def _asked() -> list[Workload]:
    found = Workload.objects.filter(array_index=0).order_by("created_at", "pk")
    return list(found.select_related("spec"))


def test_any_gpu_that_has_it(client: Client, team: Team) -> None:
    request = _request(
        client, team, tier="any", least_memory="40 GiB", least_architecture="ampere", capability_labels=""
    )
    assert request["tiers"] == []
    assert request["capabilities"] == {"memory_mib": 40_960, "architecture": "ampere", "labels": []}


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ({"part": "1.5"}, "no part of a GPU"),
        ({"part": "a bit"}, "no part of a GPU"),
        ({"part": "0.5", "gpus_per_replica": "2"}, "A part of a GPU is a part of one"),
        ({"tier": "any"}, "No capability is named"),
        ({"tier": "any", "least_memory": "lots"}, "no amount of memory"),
        ({"tier": "any", "least_memory": "9999 GiB"}, "No tier has that"),
        ({"least_memory": "40 GiB"}, "A GPU is named above"),
        ({"elastic": "on"}, "number of replicas is fixed"),
        ({"replicas": "3", "replicas_most": "2"}, "below replicas_min"),
        ({"node_labels": "zone"}, "no label"),
        ({"not_nodes": "nowhere"}, "There is no node nowhere"),
        ({"level_required": "row"}, "There is no such level"),
        ({"level_wait": "10 m"}, "No level is named"),
        ({"not_before": "soon"}, "no moment"),
        ({"depends_on": "w-00000000"}, "no such workload"),
        ({"array_count": "many"}, "no whole number"),
        ({"array_parallel": "2"}, "missing"),
        ({"min_run": "long"}, "90 m, 8 h or 2 d"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(
    client: Client, team: Team, typed: dict[str, str], told: str
) -> None:
    answer = _post(client, team, **typed)
    page = answer.content.decode()
    assert answer.status_code == 422
    assert told in page
    assert 'class="fold" open' in page
    assert not Workload.objects.exists()


# --- The answer -----------------------------------------------------------------------------------------------


def _headline(client: Client, team: Team, **typed: str) -> str:
    page: str = _post(client, team, only="answer", **typed).content.decode()
    return page.partition('<div class="ans-v">')[2].partition("</div>")[0]


def _hold_share(team: Team, gpu: Gpu, slots: int) -> None:
    workload = make.workload(team, gpu.tier)
    rank = make.replica(make.attempt(workload, gpu.tier), gpu.node)
    make.allocation(rank, gpu, shares=(0, slots))


def test_the_answer_knows_what_is_left_of_cards(client: Client, team: Team, node: Node) -> None:
    first, second = node.gpus.order_by("index")
    _hold_share(team, first, 700)
    make.placed(make.workload(make.team(), first.tier), [second])
    assert first.tier_id == second.tier_id

    def starts(part: str) -> str:
        return _headline(client, team, part=part)

    assert (starts("0.3"), starts("0.31"), starts("")) == ("now", "when GPUs are free", "when GPUs are free")
    assert starts("79 GiB") == "never, as asked"


def test_the_answer_looks_only_at_the_nodes_that_are_chosen(client: Client, team: Team, node: Node) -> None:
    assert _headline(client, team, node_labels="zone=a") == "never, as asked"
    Node.objects.filter(pk=node.pk).update(labels=["zone=a"])
    assert _headline(client, team, node_labels="zone=a") == "now"
    assert _headline(client, team, not_labels="zone=a") == "never, as asked"
    assert _headline(client, team, not_nodes="node-1") == "never, as asked"


def test_the_answer_minds_the_domain_that_is_required(client: Client, team: Team, node: Node) -> None:
    make.node(node.gpus.all()[0].tier, 2, name="node-2")
    assert _headline(client, team, gpus_per_replica="2", replicas="2") == "now"
    both = {"gpus_per_replica": "2", "replicas": "2", "level_required": "rack"}
    rack = make.domain("rack")
    assert _headline(client, team, **both) == "when GPUs are free"
    Node.objects.update(domain=rack)
    assert _headline(client, team, **both) == "now"
    assert _headline(client, team, **{**both, "level_required": "node"}) == "when GPUs are free"


def test_the_answer_says_what_comes_first(client: Client, team: Team) -> None:
    earlier = make.workload(team, "h100-80g")
    assert _headline(client, team, not_before="2036-12-01T08:00").startswith("not before")
    assert _headline(client, team, depends_on=earlier.public_id) == "after other work"


# --- Its pages ------------------------------------------------------------------------------------------------


def test_an_array_is_one_row_that_opens(client: Client, team: Team) -> None:
    _request(client, team, array_count="3", name="sweep")
    make.workload(team, "h100-80g", name="single")
    first = Workload.objects.get(array_index=0)
    Workload.objects.filter(array_index=1).update(state="failed")

    folded = client.get(reverse("web:workloads")).content.decode()
    opened = client.get(reverse("web:workloads"), {"array": first.public_id}).content.decode()

    assert (folded.count("array of 3"), folded.count("<tr id=")) == (1, 2)
    assert "2 waiting, 1 failed" in folded
    assert [f"array {number} of 3" in opened for number in (1, 2, 3)] == [True] * 3
    assert "single" not in opened


def test_the_page_shows_what_was_asked_and_its_array(client: Client, team: Team) -> None:
    earlier = make.workload(team, "h100-80g", name="prepare")
    _request(
        client,
        team,
        part="0.25",
        node_labels="zone=a",
        level_preferred="node",
        level_wait="10 m",
        depends_on=earlier.public_id,
        array_count="2",
    )
    first = Workload.objects.get(array_index=0)

    page = client.get(reverse("web:workload", args=[first.public_id])).content.decode()

    for words in (
        "array 1 of 2",
        "2 times 0.25 × h100-80g",
        "zone=a",
        "in one node if possible, for 10",
        "All 2 of",
    ):
        assert words in page, words
    assert f'<a href="{reverse("web:workload", args=[earlier.public_id])}">prepare</a>' in page


def test_the_whole_array_is_taken_back_from_the_page(client: Client, team: Team) -> None:
    _request(client, team, array_count="3")
    first = Workload.objects.get(array_index=0)

    answer = client.post(reverse("web:workload_stop", args=[first.public_id]), {"whole_array": "1"})

    assert answer["Location"].endswith(f"?array={first.public_id}")
    assert set(Workload.objects.values_list("state", flat=True)) == {"cancelled"}
