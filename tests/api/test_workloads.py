from typing import Any

import pytest

from gpuyard.core.models import User
from tenants.models import Team
from tests import factories
from tests.api.calls import Caller

pytestmark = pytest.mark.django_db


@pytest.fixture
def company() -> Team:
    made = factories.company()
    factories.approval_policy(made)
    return made


@pytest.fixture
def team(company: Team) -> Team:
    return factories.team(company)


@pytest.fixture
def member(team: Team) -> User:
    return factories.user("member", team)


def asked(team: Team, **fields: Any) -> dict[str, Any]:
    spec = factories.spec_document("h100-80g", gpus=4)
    return {"team": team.public_id, "name": "train", "kind": "training", "spec": spec, **fields}


def test_a_request_is_stored_and_shown(team: Team, member: User) -> None:
    factories.tier("h100-80g")
    made = Caller(member).post("workloads", asked(team), status=201)
    assert (made["state"], made["gpus"], made["approved_by_rule"]) == ("waiting", 4, "everything")
    assert made["team"] == {"id": team.public_id, "name": team.name}
    assert made["case"]["state"] == "approved"
    assert made["cost"]["charged"] == "0.00"
    assert Caller(member).get(f"workloads/{made['id']}")["spec"]["command"] == ["python3", "-u", "train.py"]
