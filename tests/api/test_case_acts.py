"""What approvers and requesters do with cases over REST, and the rules, groups and delegations behind it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gpuyard.core import clock
from gpuyard.core.models import User
from scheduling.models import Workload
from tenants.models import Case, CaseMessage, Team
from tests import factories
from tests.api.calls import Caller

pytestmark = pytest.mark.django_db


@pytest.fixture
def manager(company: Team, team: Team) -> User:
    company.approval_policies.update(document=factories.MANAGER)
    factories.node(factories.tier("h100-80g"), gpus=8)
    return factories.user("manager", team)


def ask(member: User, team: Team, **spec: Any) -> str:
    body = {
        "team": team.public_id,
        "name": "train",
        "kind": "training",
        "spec": factories.spec_document("h100-80g", **{"gpus": 4, **spec}),
    }
    return str(Caller(member).post("workloads", body, status=201)["case"]["id"])


def test_a_question_and_its_answer(manager: User, member: User, team: Team) -> None:
    key = ask(member, team)

    asked = Caller(manager).post(f"cases/{key}/send-back", {"question": "Why four?"})
    assert (asked["state"], asked["messages"][0]["text"]) == ("sent_back", "Why four?")
    assert (
        Caller(manager).post(f"cases/{key}/decision", {"approve": True}, status=409)["code"]
        == "case_sent_back"
    )
    answered = Caller(member).post(f"cases/{key}/answer", {"answer": "Four seeds."})

    assert (answered["state"], answered["may_decide"], answered["is_mine"]) == ("open", False, True)
    assert [one["act"] for one in answered["messages"]] == ["send_back", "answer"]


def test_an_amendment_asks_anew_and_says_what_changed(manager: User, member: User, team: Team) -> None:
    key = ask(member, team)
    spec = factories.spec_document("h100-80g", gpus=2)

    case = Caller(member).post(f"cases/{key}/amend", {"spec": spec, "reason": "half will do"})

    assert (case["round"], case["facts"]["gpu_count"], case["subject"]["label"]) == (
        2,
        2,
        "train: 2 × h100-80g",
    )
    changed = {one["name"]: (one["old"], one["new"]) for one in case["messages"][0]["changes"]}
    assert changed["gpu_count"] == (4, 2)
    workload = Workload.objects.select_related("spec").get()
    assert workload.spec is not None
    assert workload.spec.revision == 2
    problem = Caller(manager).post(f"cases/{key}/decision", {"approve": True, "round": 1}, status=409)
    assert problem["code"] == "case_changed"
    Caller(manager).post(f"cases/{key}/decision", {"approve": True, "round": 2})
    assert Workload.objects.get().state == "waiting"


def test_another_command_is_no_material_change(manager: User, member: User, team: Team) -> None:
    key = ask(member, team)
    spec = factories.spec_document("h100-80g", gpus=4, command=["python3", "other.py"])

    assert Caller(member).post(f"cases/{key}/amend", {"spec": spec})["round"] == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"spec": {"command": []}}, "spec.request"),
        ({"priority": 5000}, "priority"),
        ({"name": "other"}, "name"),
    ],
)
def test_an_amendment_is_checked_like_a_request(
    manager: User, member: User, team: Team, body: dict[str, Any], field: str
) -> None:
    key = ask(member, team)
    problem = Caller(member).post(f"cases/{key}/amend", body, status=400)
    assert field in [one["field"] for one in problem["errors"]]
    assert not CaseMessage.objects.exists()


def test_less_is_approved_as_the_case_lists_it(manager: User, member: User, team: Team) -> None:
    key = ask(member, team, replicas=2)
    fields = {one["name"]: one for one in Caller(manager).get(f"cases/{key}")["less"]}
    assert (fields["gpus_per_replica"]["now"], fields["replicas"]["most"]) == (4, 2)
    assert Caller(member).get(f"cases/{key}")["less"] == []

    less = {"gpus_per_replica": 2, "time_limit_s": 60, "replicas": 1, "priority": -5}
    case = Caller(manager).post(f"cases/{key}/decision", {"approve": True, "less": less})

    assert (case["state"], case["facts"]["gpu_count"], case["granted"]["gpu_count"]) == ("approved", 8, 2)
    workload = Workload.objects.select_related("spec").get()
    assert workload.spec is not None
    asked = workload.spec.document
    assert (asked["time_limit_s"], asked["request"]["replicas_max"], workload.priority) == (60, 1, -5)


@pytest.mark.parametrize("less", [{"gpus_per_replica": 5}, {"gpus": 1}, {"time_limit_s": 0}])
def test_more_is_not_less(manager: User, member: User, team: Team, less: dict[str, int]) -> None:
    key = ask(member, team)
    problem = Caller(manager).post(f"cases/{key}/decision", {"approve": True, "less": less}, status=400)
    (name,) = less
    assert problem["errors"][0]["field"] == f"less.{name}"
    assert Case.objects.get().state == "open"


def test_many_decisions_have_an_outcome_each(manager: User, member: User, team: Team) -> None:
    first, second = ask(member, team), ask(member, team)
    Caller(member).post(f"cases/{second}/withdraw")

    found = Caller(manager).post("case-decisions", {"cases": [first, second, "c-nothing"], "approve": True})

    outcomes = found["outcomes"]
    assert [one["state"] for one in outcomes] == ["approved", None, None]
    assert [one["problem"]["code"] for one in outcomes[1:]] == ["case_decided", "case_unknown"]


def test_a_strangers_decision_among_many_changes_nothing(manager: User, member: User, team: Team) -> None:
    key = ask(member, team)
    stranger = factories.user("manager", factories.team())

    (outcome,) = Caller(stranger).post("case-decisions", {"cases": [key], "approve": True})["outcomes"]

    assert (outcome["state"], outcome["problem"]["code"]) == (None, "case_unknown")
    assert Case.objects.get().state == "open"


def test_the_list_is_filtered(manager: User, member: User, team: Team) -> None:
    key = ask(member, team)
    caller = Caller(manager)

    def found(**filters: Any) -> list[str]:
        return [row["id"] for row in caller.get("cases", **filters)["results"]]

    assert found(team=team.public_id, kind="training", requester=member.public_id, state="open") == [key]
    assert found(kind="inference") == found(requester=manager.public_id) == found(state="sent_back") == []
    caller.get("cases", status=404, team="t-unknown")


# --- Delegation and groups ------------------------------------------------------------------------------------


def test_a_delegate_decides_by_name(manager: User, member: User, team: Team, company: Team) -> None:
    key, stand_in = ask(member, team), factories.user("member", factories.team(company))
    now = clock.now()
    body = {
        "company": company.public_id,
        "delegate": stand_in.public_id,
        "starts_at": now.isoformat(),
        "ends_at": (now + timedelta(days=7)).isoformat(),
        "kinds": ["training"],
        "teams": [team.public_id],
        "reason": "on leave",
    }
    made = Caller(manager).post("delegations", body, status=201)
    assert (made["person"]["username"], made["teams"][0]["id"]) == (manager.username, team.public_id)

    step = Caller(stand_in).post(f"cases/{key}/decision", {"approve": True})["steps"][0]
    assert (step["decided_by"]["id"], step["on_behalf_of"]["id"]) == (stand_in.public_id, manager.public_id)
    ended = Caller(stand_in).post(f"delegations/{made['id']}/revoke")
    assert ended["revoked_at"] is not None
    assert Caller(member).get("delegations")["results"] == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"delegate": "u-unknown"}, "delegate"),
        ({"kinds": ["dancing"]}, "kinds"),
        ({"ends_at": "2001-01-01T00:00:00Z"}, "ends_at"),
        ({"starts_at": "soon"}, "starts_at"),
    ],
)
def test_a_delegation_is_checked(
    manager: User, member: User, company: Team, change: dict[str, Any], field: str
) -> None:
    now = clock.now()
    dates = {"starts_at": now.isoformat(), "ends_at": (now + timedelta(days=1)).isoformat()}
    body = {"company": company.public_id, "delegate": member.public_id, **dates, **change}
    problem = Caller(manager).post("delegations", body, status=400)
    assert (problem["errors"][0]["field"], bool(problem["errors"][0]["remedy"])) == (field, True)


def test_a_group_is_made_named_by_a_rule_and_kept_while_it_is(company: Team, member: User) -> None:
    admin = Caller(factories.admin())
    body = {"company": company.public_id, "name": "board", "people": [member.public_id]}
    group = admin.post("approver-groups", body, status=201)
    assert admin.post("approver-groups", body, status=409)["code"] == "name_taken"
    rule = {"name": "all", "then": {"stages": [{"steps": [{"level": "group", "group": "board"}]}]}}
    rules = f"approval-rules/{company.public_id}/versions"
    change = {"based_on": 1, "document": {"rules": [rule]}, "reason": "the board decides"}
    assert admin.post(rules, change, status=201)["version"] == 2
    assert admin.delete(f"approver-groups/{group['id']}", status=409)["code"] == "group_in_use"
    assert admin.post(f"{rules}/1/rollback", {"based_on": 2, "reason": "no"}, status=201)["version"] == 3
    admin.delete(f"approver-groups/{group['id']}")
    assert Caller(member).get("approver-groups", company=company.public_id)["results"] == []


# --- Rules -------------------------------------------------------------------------------------------------------


def test_a_draft_shows_which_open_cases_it_would_decide_otherwise(
    manager: User, member: User, team: Team, company: Team
) -> None:
    key = ask(member, team)
    admin = Caller(factories.admin())
    path = f"approval-rules/{company.public_id}/preview"
    small = {"name": "small", "when": {"gpu_count": {"max": 4}}, "then": {"auto": True}}

    preview = admin.post(path, {"document": {"rules": [small, *factories.MANAGER["rules"]]}})

    assert [(one["case"], one["old_rule"], one["new_rule"]) for one in preview["cases"]] == [
        (key, "ask the manager", "small")
    ]
    assert [(one["name"], one["old"]) for one in preview["changes"]] == [("small", None)]
    same = admin.post(path, {"document": factories.MANAGER})
    assert (same["cases"], same["changes"], same["open_cases"]) == ([], [], 1)


def test_rules_are_changed_from_the_version_in_force_only(manager: User, company: Team) -> None:
    admin, path = Caller(factories.admin()), f"approval-rules/{company.public_id}/versions"
    change = {"based_on": 1, "document": factories.AUTO, "reason": "open up"}

    assert admin.post(path, change, status=201)["is_active"]
    assert admin.post(path, change, status=409)["code"] == "policy_changed_meanwhile"
    assert admin.post(path, {**change, "based_on": 2}, status=400)["code"] == "policy_unchanged"
    assert [one["version"] for one in Caller(manager).get(path)["results"]] == [2, 1]


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ({"name": "a", "when": {"kinds": ["dancing"]}, "then": {"auto": True}}, "when.kinds"),
        ({"name": "a", "when": {"teams": ["t-x"]}, "then": {"auto": True}}, "when.teams"),
        ({"name": "a", "then": {"steps": [{"level": "group", "group": "none"}]}}, "then.stages"),
    ],
)
def test_rules_name_only_what_there_is(company: Team, rule: dict[str, Any], field: str) -> None:
    document = {"rules": [rule, *factories.AUTO["rules"]]}
    body = {"based_on": 1, "document": document, "reason": "try"}
    path = f"approval-rules/{company.public_id}/versions"
    problem = Caller(factories.admin()).post(path, body, status=400)
    assert problem["errors"][0]["field"] == f"document.rules.0.{field}"


def test_which_rule_would_match(manager: User, member: User, team: Team, company: Team) -> None:
    weekend = {
        "name": "vision",
        "when": {"teams": [company.public_id], "hours": {"max": 8}, "budget_left": {"min": 100}},
        "then": {"auto": True},
    }
    company.approval_policies.update(document={"rules": [weekend, *factories.MANAGER["rules"]]})
    path, facts = f"approval-rules/{company.public_id}/match", {"team": team.public_id, "kind": "training"}

    short = Caller(member).post(path, {**facts, "hours": "4", "budget_left": "100.00"})
    long = Caller(member).post(path, {**facts, "hours": "9"})

    assert (short["rule"], short["auto"], short["stages"]) == ("vision", True, [])
    assert long["stages"][0]["approvers"][0]["people"] == [manager.username]
