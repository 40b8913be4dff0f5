"""Addresses that nobody was given: typed, guessed or forged. None of them is a fault of ours."""

from __future__ import annotations

import pytest
from django.test import Client, override_settings
from django.urls import reverse

from gpuyard.core.models import User
from tests import factories as make

pytestmark = pytest.mark.django_db

LISTS = [
    "home",
    "workloads",
    "workloads_csv",
    "approvals",
    "queue",
    "queue_csv",
    "fleet",
    "fleet_csv",
    "search",
    "notifications",
    "deliveries",
    "webhooks",
]
NONSENSE = ["\x00", "a\x00b", "%", "9" * 30, "-1", "t-zzzzzzzz", "../..", "<script>"]
PARAMETERS = [
    "team",
    "q",
    "state",
    "kind",
    "owner",
    "sort",
    "page",
    "tier",
    "case",
    "rank",
    "part",
    "tab",
    "event",
]
DAYS = ["0001-01-01", "9999-12-31", "2000-01-01", "2999-01-01", "0000-00-00", "2026-W01-1", "x"]


def _browser(person: User) -> Client:
    client = Client()
    client.force_login(person)
    return client


@pytest.mark.parametrize("name", LISTS)
def test_nonsense_in_an_address_is_left_out_or_refused(name: str) -> None:
    client = _browser(make.user("member", make.team(make.company())))
    found = {
        (parameter, value): client.get(reverse(f"web:{name}"), {parameter: value}).status_code
        for parameter in PARAMETERS
        for value in NONSENSE
    }
    assert {asked: status for asked, status in found.items() if status not in (200, 302, 400, 404)} == {}


@pytest.mark.parametrize("name", ["web:costs", "web:costs_csv", "api-costs", "api-costs-csv"])
@pytest.mark.parametrize("is_admin", [False, True])
def test_any_day_may_be_asked_for(name: str, is_admin: bool) -> None:
    team = make.team(make.company())
    make.node(make.tier())
    client = _browser(make.admin() if is_admin else make.user("manager", team))
    for first in ["", *DAYS]:
        for last in ["", *DAYS]:
            days = {key: day for key, day in (("from", first), ("to", last)) if day}
            assert client.get(reverse(name), days).status_code in (200, 400), days


def test_a_first_day_to_come_shows_no_costs() -> None:
    answer = _browser(make.admin()).get(reverse("web:costs"), {"from": "2999-01-01"})
    assert answer.status_code == 200
    assert "2999-01-01" in answer.content.decode()


def test_another_name_of_this_machine_is_refused() -> None:
    with override_settings(ALLOWED_HOSTS=["localhost", "127.0.0.1", "[::1]"]):
        for host, status in (("127.0.0.1:8000", 200), ("localhost", 200), ("evil.example", 400)):
            assert Client(headers={"Host": host}).get("/sign-in").status_code == status, host


@pytest.mark.parametrize(
    "target", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"]
)
def test_signing_in_leads_nowhere_else(target: str) -> None:
    user = make.user("member", make.team(make.company()))
    user.set_password("a long enough one")
    user.save()
    answer = Client().post(
        f"/sign-in?next={target}",
        {"login": user.username, "password": "a long enough one", "next": target},
    )
    assert (answer.status_code, answer["Location"]) == (302, "/")
