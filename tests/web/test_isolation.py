"""Each page in one table: what owner, team-mate, stranger and nobody get. A route missing here fails."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from django.test import Client
from django.urls import reverse

from gpuyard.core.models import User
from gpuyard.web.urls import urlpatterns
from scheduling.models import Workload
from scheduling.services import workload_submit
from tenants.models import Case, Team
from tests import factories as make

pytestmark = pytest.mark.django_db
SIGN_IN = 302


class Row(NamedTuple):
    method: str
    owner: int
    mate: int
    stranger: int
    subject: str = ""  # the path's id: of a workload, or of a case


# A decision on one's own request, or by a member, is refused with a message on the inbox: a redirect too.
TABLE: dict[str, Row] = {
    "home": Row("get", 200, 200, 200),
    "search": Row("get", 200, 200, 200),
    "workloads": Row("get", 200, 200, 200),
    "workloads_csv": Row("get", 200, 200, 200),
    "request": Row("get", 200, 200, 200),
    "workload": Row("get", 200, 200, 404, "workload"),
    "workload_log": Row("get", 200, 200, 404, "workload"),
    "workload_stop": Row("post", 302, 403, 404, "workload"),
    "approvals": Row("get", 200, 200, 200),
    "case_decide": Row("post", 302, 302, 404, "case"),
    "queue": Row("get", 200, 200, 200),
    "queue_csv": Row("get", 200, 200, 200),
    "fleet": Row("get", 200, 200, 200),
    "fleet_csv": Row("get", 200, 200, 200),
    "costs": Row("get", 200, 200, 200),
    "costs_csv": Row("get", 200, 200, 200),
}
OPEN = {"sign_in", "sign_out"}


def test_every_route_stands_in_the_table() -> None:
    assert {pattern.name for pattern in urlpatterns} == TABLE.keys() | OPEN


class World:
    def __init__(self) -> None:
        company = make.company()
        team, other = make.team(company), make.team(company)
        make.approval_policy(company, make.MANAGER)
        self.people = {
            "owner": make.user("member", team),
            "mate": make.user("member", team),
            "stranger": make.user("member", other),
        }
        self.workload = _asked(self.people["owner"], team)

    def path(self, name: str) -> str:
        subject = TABLE[name].subject
        if not subject:
            return reverse(f"web:{name}")
        public_id = self.workload.public_id if subject == "workload" else Case.objects.get().public_id
        return reverse(f"web:{name}", args=[public_id])


def _asked(owner: User, team: Team) -> Workload:
    tier = make.tier()
    make.node(tier, 1)
    spec = {"command": ["true"], "request": {"gpus_per_replica": 1, "tiers": [tier.name]}}
    return workload_submit(actor=owner, team=team, name="secret-plan", kind="training", spec=spec)


@pytest.mark.parametrize("who", ["owner", "mate", "stranger"])
@pytest.mark.parametrize("name", TABLE)
def test_people_get_what_the_table_says(name: str, who: str) -> None:
    world = World()
    client = Client()
    client.force_login(world.people[who])
    row = TABLE[name]
    answer = getattr(client, row.method)(
        world.path(name), {"decision": "approve"} if name == "case_decide" else {}
    )
    assert answer.status_code == getattr(row, who)
    if who == "stranger" and answer.status_code == 200 and not answer.streaming:
        assert "secret-plan" not in answer.content.decode()


@pytest.mark.parametrize("name", TABLE)
def test_nobody_is_asked_to_sign_in(name: str) -> None:
    world = World()
    answer = getattr(Client(), TABLE[name].method)(world.path(name))
    assert answer.status_code == SIGN_IN
    assert answer["Location"].startswith("/sign-in")


def test_a_refused_decision_changes_nothing() -> None:
    world = World()
    for who in ("owner", "mate", "stranger"):
        client = Client()
        client.force_login(world.people[who])
        client.post(world.path("case_decide"), {"decision": "approve"})
    assert Case.objects.get().state == "open"
