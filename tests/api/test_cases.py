from typing import Any

import pytest

from gpuyard.core.models import User
from scheduling.models import Workload
from tenants.models import Case, Team
from tests import factories
from tests.api.calls import Caller
from tests.api.conftest import counted

pytestmark = pytest.mark.django_db


@pytest.fixture
def manager(company: Team, team: Team) -> User:
    company.approval_policies.update(document=factories.MANAGER)
    factories.node(factories.tier("h100-80g"), gpus=8)
    return factories.user("manager", team)


def ask(member: User, team: Team) -> Any:
    body = {
        "team": team.public_id,
        "name": "train",
        "kind": "training",
        "justification": "for the release",
        "spec": factories.spec_document("h100-80g", gpus=2),
    }
    return Caller(member).post("workloads", body, status=201)


def test_a_manager_finds_the_case_with_its_facts(manager: User, member: User, team: Team) -> None:
    made = ask(member, team)
    (row,) = Caller(manager).get("cases", to_decide="true")["results"]
    subject = {"type": "workload", "id": made["id"], "label": "train: 2 × h100-80g"}
    assert (row["id"], row["subject"], row["justification"]) == (
        made["case"]["id"],
        subject,
        "for the release",
    )
    case = Caller(manager).get(f"cases/{row['id']}")
    assert (case["may_decide"], case["facts"]["gpu_count"]) == (True, 2)
    assert {"asked", "time_limit", "free"} <= {fact["code"] for fact in case["card"]}
    (step,) = case["steps"]
    assert (step["role"], step["state"], step["team"]["id"]) == ("manager", "pending", team.public_id)


def test_who_asked_finds_nothing_to_decide(manager: User, member: User, team: Team) -> None:
    made = ask(member, team)
    assert Caller(member).get("cases", to_decide="true")["results"] == []
    assert [row["id"] for row in Caller(member).get("cases", mine="true")["results"]] == [made["case"]["id"]]
    assert Caller(manager).get("cases", mine="true")["results"] == []
    assert Caller(manager).get("cases", state="approved")["results"] == []


@pytest.mark.parametrize(
    ("approve", "case_state", "workload_state"),
    [(True, "approved", "waiting"), (False, "rejected", "rejected")],
)
def test_a_decision_moves_the_workload(
    manager: User, member: User, team: Team, approve: bool, case_state: str, workload_state: str
) -> None:
    made = ask(member, team)
    decision = {"approve": approve, "reason": "as agreed"}
    case = Caller(manager).post(f"cases/{made['case']['id']}/decision", decision)
    assert case["state"] == case_state
    assert (case["steps"][0]["decided_by"]["username"], case["steps"][0]["reason"]) == (
        manager.username,
        "as agreed",
    )
    assert Workload.objects.get().state == workload_state


def test_a_decision_is_made_once(manager: User, member: User, team: Team) -> None:
    path = f"cases/{ask(member, team)['case']['id']}/decision"
    Caller(manager).post(path, {"approve": True})
    assert Caller(manager).post(path, {"approve": True}, status=409)["code"] == "case_decided"


def test_a_repeated_decision_with_a_key_is_answered_alike(manager: User, member: User, team: Team) -> None:
    path, key = f"cases/{ask(member, team)['case']['id']}/decision", {"Idempotency-Key": "d-1"}
    first = Caller(manager).post(path, {"approve": True}, headers=key)
    assert Caller(manager).post(path, {"approve": True}, headers=key) == first


def test_nobody_decides_on_their_own_request(manager: User, team: Team) -> None:
    made = ask(manager, team)
    problem = Caller(manager).post(f"cases/{made['case']['id']}/decision", {"approve": True}, status=403)
    assert problem["code"] == "own_request"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "approve"),
        ({"approve": "yes"}, "approve"),
        ({"approve": None}, "approve"),
        ({"approve": False}, "reason"),
        ({"approve": True, "reason": "x" * 3000}, "reason"),
        ({"approve": True, "because": "?"}, "because"),
    ],
)
def test_an_unclear_decision_is_none(
    manager: User, member: User, team: Team, body: dict[str, Any], field: str
) -> None:
    made = ask(member, team)
    problem = Caller(manager).post(f"cases/{made['case']['id']}/decision", body, status=400)
    assert (problem["errors"][0]["field"], bool(problem["errors"][0]["remedy"])) == (field, True)
    assert Case.objects.get().state == "open"


def test_a_request_is_withdrawn(manager: User, member: User, team: Team) -> None:
    made = ask(member, team)
    case = Caller(member).post(f"cases/{made['case']['id']}/withdraw", {"reason": "no need"})
    assert case["state"] == "withdrawn"
    assert Workload.objects.get().state == "cancelled"


def test_a_list_of_cases_costs_the_same_whatever_its_length(manager: User, member: User, team: Team) -> None:
    ask(member, team)
    caller = Caller(manager)
    caller.get("cases")
    with counted() as few:
        caller.get("cases")
    for _number in range(5):
        ask(member, team)
    with counted() as many:
        assert len(caller.get("cases")["results"]) == 6
    assert len(many) == len(few) <= 10
