"""The request form: bad input is refused beside its field, the same form twice is one workload."""

from __future__ import annotations

import time

import pytest
from django.test import Client
from django.urls import reverse

from gpuyard.web.forms import RequestForm, request_initial
from scheduling.models import BandGrant, Workload
from tenants.models import Team
from tests import factories as make

pytestmark = pytest.mark.django_db
GOOD = {
    "name": "train",
    "kind": "training",
    "tier": "h100-80g",
    "gpus_per_replica": "1",
    "replicas": "1",
    "time_limit": "1 h",
    "command": "python3 -u train.py --name 'a b'",
    "cpu": "4",
    "memory": "16 GiB",
    "idempotency_key": "web-1",
}


@pytest.fixture
def team() -> Team:
    company = make.company()
    make.approval_policy(company)
    make.node(make.tier("h100-80g"), 8)
    return make.team(company)


@pytest.fixture
def client(team: Team) -> Client:
    browser = Client()
    browser.force_login(make.user("member", team, username="ada"))
    return browser


def test_what_is_typed_becomes_the_spec(client: Client, team: Team) -> None:
    data = GOOD | {"team": team.public_id, "env": "A=1\nB=x=y", "ports": "http /healthz\nmetrics"}
    answer = client.post(reverse("web:request"), data)
    workload = Workload.objects.get()
    assert answer["Location"] == reverse("web:workload", args=[workload.public_id])
    assert workload.spec is not None
    document = workload.spec.document
    assert document["command"] == ["python3", "-u", "train.py", "--name", "a b"]
    assert document["env"] == {"A": "1", "B": "x=y"}
    assert document["ports"] == [
        {"name": "http", "health_path": "/healthz"},
        {"name": "metrics", "health_path": None},
    ]
    assert document["time_limit_s"] == 3600
    assert document["request"]["memory_mib"] == 16384


@pytest.mark.parametrize(
    ("field", "typed", "told"),
    [
        ("gpus_per_replica", "0", "from 1 to 1024"),
        ("gpus_per_replica", "-1", "from 1 to 1024"),
        ("gpus_per_replica", str(2**31), "from 1 to 1024"),
        ("gpus_per_replica", "0.333", "whole number"),
        ("gpus_per_replica", "", "This is empty"),
        ("replicas", "0", "from 1 to 1024"),
        ("tier", "b200-180g", "Choose from: h100-80g"),
        ("command", "", "This is empty"),
        ("command", "echo 'open", "quotation mark"),
        ("command", "a\0b", "ull characters"),
        ("command", "x" * 1_000_000, "at most"),
        ("name", "n" * 500, "at most 120"),
        ("time_limit", "soon", "90 m, 8 h or 2 d"),
        ("cpu", "many", "no number"),
        ("memory", "lots", "16 GiB"),
        ("env", "NO EQUALS", "NAME=value"),
        ("env", "RANK=1", "GPU Yard sets this variable itself"),
        ("ports", "/x", "a name on each line"),
        ("ports", "http /x more", "a name on each line"),
        ("priority", "9999", "no priority"),
        ("priority", "high", "no priority"),
        ("team", "t-strangers", "Choose one from the list"),
        ("kind", "mining", "not one of the available"),
    ],
)
def test_bad_input_is_refused_beside_its_field(
    client: Client, team: Team, field: str, typed: str, told: str
) -> None:
    answer = client.post(reverse("web:request"), GOOD | {"team": team.public_id} | {field: typed})
    assert answer.status_code == 422
    assert told in answer.content.decode()
    assert not Workload.objects.exists()


def test_a_form_sent_twice_is_one_workload(client: Client, team: Team) -> None:
    for _turn in range(2):
        client.post(reverse("web:request"), GOOD | {"team": team.public_id})
    assert Workload.objects.count() == 1


def test_the_answer_says_start_quota_approval_and_stores_nothing(client: Client, team: Team) -> None:
    answer = client.post(f"{reverse('web:request')}?part=answer", GOOD | {"team": team.public_id})
    panel = answer.content.decode()
    assert "Needs no approval" in panel
    assert "8 of 8 h100-80g free now" in panel
    assert not Workload.objects.exists()


def test_the_answer_comes_before_name_and_command(client: Client, team: Team) -> None:
    data = GOOD | {"team": team.public_id, "name": "", "command": ""}
    assert "Needs no approval" in client.post(f"{reverse('web:request')}?part=answer", data).content.decode()


def test_more_than_any_node_has_is_answered_with_never(client: Client, team: Team) -> None:
    data = GOOD | {"team": team.public_id, "gpus_per_replica": "64"}
    panel = client.post(f"{reverse('web:request')}?part=answer", data).content.decode()
    assert "never, as asked" in panel
    assert "The largest h100-80g node has 8 GPUs" in panel


def test_again_fills_the_form_with_what_was_asked(client: Client, team: Team) -> None:
    client.post(reverse("web:request"), GOOD | {"team": team.public_id})
    workload = Workload.objects.get()
    page = client.get(reverse("web:request"), {"again": workload.public_id}).content.decode()
    assert 'value="16 GiB"' in page
    assert "--name &#x27;a b&#x27;" in page


def test_a_spec_survives_the_way_through_the_form(client: Client, team: Team) -> None:
    client.post(reverse("web:request"), GOOD | {"team": team.public_id, "env": "A=1"})
    spec = Workload.objects.get().spec
    assert spec is not None
    data = request_initial(spec.document, name="x", kind="training", team=team.public_id)
    form = RequestForm(data, teams=[(team.public_id, "x")])
    assert form.is_valid(), form.errors
    assert form.spec is not None
    assert form.spec.as_json() == spec.document


@pytest.mark.parametrize(
    ("field", "text"),
    [
        *(("cpu", text) for text in ("1e999999999", "1e999990", "-1e5000", "NaN", "Infinity", "9" * 60_000)),
        *(("time_limit", text) for text in ("9" * 60_000, "9" * 60_000 + " h", "1 h " * 15_000)),
        *(("memory", text) for text in ("9" * 60_000, "1e999990")),
        *((field, "9" * 60_000) for field in ("gpus_per_replica", "replicas")),
    ],
    ids=lambda text: text[:20],
)
def test_a_number_without_end_is_refused_at_once(client: Client, team: Team, field: str, text: str) -> None:
    began = time.perf_counter()
    answer = client.post(reverse("web:request"), GOOD | {"team": team.public_id, field: text})
    assert answer.status_code == 422
    assert time.perf_counter() - began < 5


def test_a_band_is_asked_only_where_the_team_has_the_right(client: Client, team: Team) -> None:
    url, sent = reverse("web:request"), GOOD | {"team": team.public_id, "band": "2"}
    assert 'name="band"' not in client.get(url).content.decode()
    refused = client.post(url, sent)
    assert refused.status_code == 422
    assert "has no right to band 2" in refused.content.decode()
    BandGrant.objects.create(team=team, band=2, cap=7000, reason="x", granted_by=make.admin())
    assert 'name="band"' in client.get(url).content.decode()
    assert client.post(url, sent).status_code == 302
    assert Workload.objects.get().band == 2
