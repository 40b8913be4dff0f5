"""Shares and arrays over REST."""

from __future__ import annotations

import pytest

from gpuyard.core.models import User
from tenants.models import Team
from tests import factories
from tests.api.calls import Caller

pytestmark = pytest.mark.django_db


def test_an_array_of_shares_is_asked_for_listed_and_taken_back(member: User, team: Team) -> None:
    tier, caller = factories.tier("l4-24g"), Caller(member)
    request = {"share": 250, "tiers": [tier.name], "array": {"count": 3, "parallel": 2}}
    spec = {"command": ["true"], "request": request}

    made = caller.post(
        "workloads", {"team": team.public_id, "name": "sweep", "kind": "training", "spec": spec}, status=201
    )

    assert made["array"] == {"id": made["id"], "index": 0, "count": 3, "parallel": 2}
    assert (made["share"], made["gpus"], made["asked"]) == (250, 1, "3 times 0.25 × l4-24g")
    rows = caller.get("workloads", array=made["id"])["results"]
    assert {row["array"]["index"] for row in rows} == {0, 1, 2}
    last = next(row for row in rows if row["array"]["index"] == 2)
    assert caller.get(f"workloads/{last['id']}")["case"]["id"] == made["case"]["id"]

    caller.post(f"workloads/{last['id']}/stop", {"whole_array": True})

    assert {row["state"] for row in caller.get("workloads", array=made["id"])["results"]} == {"cancelled"}
