from __future__ import annotations

import pytest
from rest_framework.test import APIClient

from gpuyard.audit.models import Event
from gpuyard.core.models import User
from tenants.models import ApiToken, ServiceAccount, Team
from tests import factories
from tests.api.calls import Caller

pytestmark = pytest.mark.django_db


@pytest.fixture
def manager(team: Team) -> User:
    return factories.user("manager", team)


def _created(manager: User, team: Team, **asked: str) -> tuple[Caller, str]:
    caller = Caller(manager)
    sent = {"team": team.public_id, "name": "ci", **asked}
    return caller, caller.post("service-accounts", sent, status=201)["id"]


def _program(caller: Caller, account: str, scopes: list[str]) -> Caller:
    asked = {"name": "runner", "scopes": scopes}
    secret = caller.post(f"service-accounts/{account}/tokens", asked, status=201)["secret"]
    program = Caller(None)
    program.client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return program


def test_a_manager_makes_an_account_and_its_token_works(manager: User, team: Team) -> None:
    caller, account = _created(manager, team)
    program = _program(caller, account, ["read"])
    me = program.get("me")
    assert me["username"] == f"ci@{account}"
    assert [one["roles"] for one in me["teams"]] == [["member"]]
    (listed,) = caller.get("service-accounts")["results"]
    assert (listed["name"], listed["team"]) == ("ci", team.public_id)
    (shown,) = caller.get(f"service-accounts/{account}/tokens")["results"]
    assert "secret" not in shown
    assert shown["last_used_from"] == "127.0.0.1"


def test_a_closed_account_is_out_at_once(manager: User, team: Team) -> None:
    caller, account = _created(manager, team)
    program = _program(caller, account, ["read", "write"])
    caller.delete(f"service-accounts/{account}")
    assert program.get("me", status=401)["code"] == "token_unknown"
    assert caller.get("service-accounts")["results"] == []
    made = ServiceAccount.objects.get()
    assert (made.user.is_active, made.user.memberships.count()) == (False, 0)
    assert not ApiToken.objects.filter(user=made.user, revoked_at=None).exists()
    answer = caller.post(f"service-accounts/{account}/tokens", {"name": "x", "scopes": ["read"]}, status=400)
    assert answer["code"] == "account_disabled"
    _created(manager, team)  # the name is free again


def test_a_manager_revokes_a_token_of_the_account(manager: User, team: Team, member: User) -> None:
    caller, account = _created(manager, team)
    program = _program(caller, account, ["read"])
    token = ApiToken.objects.get(name="runner")
    Caller(member).delete(f"tokens/{token.pk}", status=404)
    caller.delete(f"tokens/{token.pk}")
    assert program.get("me", status=401)["code"] == "token_revoked"
    actions = list(Event.objects.filter(company_id=team.company_id).values_list("action", flat=True))
    assert {"service_account.create", "membership.add", "token.create", "token.revoke"} <= set(actions)


@pytest.mark.parametrize("role", ["finance", "auditor"])
def test_a_manager_gives_a_program_no_role_that_watches_managers(
    manager: User, team: Team, role: str
) -> None:
    answer = Caller(manager).post(
        "service-accounts", {"team": team.public_id, "name": "ci", "role": role}, status=403
    )
    assert answer["code"] == "role_missing"
    assert not ServiceAccount.objects.exists()


def test_a_name_is_taken_once_in_a_team(manager: User, team: Team) -> None:
    caller, _account = _created(manager, team)
    answer = caller.post("service-accounts", {"team": team.public_id, "name": "ci"}, status=409)
    assert answer["code"] == "name_taken"


def test_a_program_signs_in_with_no_password(team: Team) -> None:
    account = factories.service_account(team)
    assert not APIClient().login(username=account.user.username, password="password")
