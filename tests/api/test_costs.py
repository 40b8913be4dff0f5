import csv
import io
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from rest_framework.test import APIClient

from billing.services import meter
from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.fleet.models import Node
from tenants.models import Team
from tests import factories
from tests.api.calls import Caller, token_for

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def usage(team: Team, company: Team) -> None:
    """Two teams held GPUs over midnight and have been metered."""
    tier, since = factories.tier("h100-80g"), clock.now() - timedelta(hours=30)
    factories.rates(company, tier, cost="1.50", price="2.33")
    node = factories.node(tier, gpus=3, since=since - timedelta(hours=1))
    gpus = list(node.gpus.order_by("index"))
    for owner, held in ((team, gpus[:2]), (factories.team(company, "sister"), gpus[2:])):
        made = factories.workload(owner, tier, gpus=len(held))
        factories.placed(made, held, running=True, since=since)
    Node.objects.update(last_sync_at=clock.now())
    meter()


def csv_rows(user: User, **params: Any) -> list[dict[str, str]]:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token_for(user)}")
    answer = client.get("/api/v1/costs.csv", params, headers={"Accept": "text/csv"})
    assert (answer.status_code, answer["Content-Type"]) == (200, "text/csv; charset=utf-8")
    text = b"".join(answer.streaming_content).decode()  # type: ignore[attr-defined] # it is streamed
    return list(csv.DictReader(io.StringIO(text)))


def test_rows_add_up_to_the_totals(member: User, team: Team) -> None:
    costs = Caller(member).get("costs")
    (total,) = costs["totals"]
    assert {row["team"]["id"] for row in costs["rows"]} == {team.public_id}
    assert sum(Decimal(row["price"]) for row in costs["rows"]) == Decimal(total["price"]) > 100
    assert len({row["day"] for row in costs["rows"]}) >= 2
    assert (total["currency"], total["cost"]) == ("EUR", None)


def test_finance_sees_what_it_costs(company: Team) -> None:
    costs = Caller(factories.user("finance", company)).get("costs")
    (total,) = costs["totals"]
    assert sum(Decimal(row["cost"]) for row in costs["rows"]) == Decimal(total["cost"]) > 0
    assert costs["metered_until"] <= costs["as_of"]


def test_the_file_has_exactly_the_rows_of_the_answer(company: Team) -> None:
    finance = factories.user("finance", company)
    rows = Caller(finance).get("costs")["rows"]
    wanted = [
        {
            "day": row["day"],
            "team": row["team"]["name"],
            "team_id": row["team"]["id"],
            "tier": row["tier"],
            "kind": row["kind"],
            "gpu_hours": row["gpu_hours"],
            "price": row["price"],
            "currency": row["currency"],
            "cost": row["cost"],
        }
        for row in rows
    ]
    found = csv_rows(finance)
    assert [{name: row[name] for name in wanted[0]} for row in found] == wanted


def test_days_tier_and_team_filter_both(company: Team, team: Team) -> None:
    finance = factories.user("finance", company)
    rows = Caller(finance).get("costs")["rows"]
    day = rows[-1]["day"]
    params = {"from": day, "to": day, "team": team.public_id, "tier": "h100-80g"}
    (row,) = Caller(finance).get("costs", **params)["rows"]
    assert (row["day"], row["team"]["id"]) == (day, team.public_id)
    assert [found["price"] for found in csv_rows(finance, **params)] == [row["price"]]
    assert Caller(finance).get("costs", tier="l4-24g")["rows"] == []


@pytest.mark.parametrize("path", ["costs", "costs.csv"])
@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"from": "yesterday"}, "from"),
        ({"from": "2026-02-30"}, "from"),
        ({"from": "2026-02-02", "to": "2026-02-01"}, "from"),
        ({"kind": "mining"}, "kind"),
        ({"day": "2026-02-01"}, "day"),
    ],
)
def test_a_bad_filter_is_a_problem_in_json(
    member: User, path: str, params: dict[str, str], field: str
) -> None:
    problem = Caller(member).get(path, status=400, **params)
    assert [(error["field"], bool(error["remedy"])) for error in problem["errors"]] == [(field, True)]
