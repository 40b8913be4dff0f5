from datetime import timedelta
from uuid import uuid4

import pytest

from gpuyard.api.authentication import token_digest
from gpuyard.audit.sealing import seal_all
from gpuyard.core import clock
from gpuyard.core.models import User
from tenants.models import ApiToken, Team
from tests import factories
from tests.api.calls import Caller
from tests.api.conftest import counted

pytestmark = pytest.mark.django_db


def test_one_learns_who_one_is(company: Team, team: Team) -> None:
    person = factories.user("manager", company)
    factories.membership(person, team, "member")
    me = Caller(person).get("me")
    assert (me["username"], me["public_id"], me["is_platform_admin"]) == (
        person.username,
        person.public_id,
        False,
    )
    above, below = me["teams"]
    assert (above["id"], above["path"], above["roles"], above["parent"]) == (
        company.public_id,
        [company.name],
        ["manager"],
        None,
    )
    assert (below["path"], below["roles"]) == ([company.name, team.name], ["manager", "member"])
    assert below["company"]["currency"] == "EUR"


def test_an_admin_sees_all_teams_and_belongs_to_none(team: Team) -> None:
    caller = Caller(factories.admin())
    assert caller.get("me")["teams"] == []
    listed = caller.get("teams")["results"]
    assert [row["id"] for row in listed] == [team.company.public_id, team.public_id]
    assert listed[1]["parent"] == team.company.public_id


def test_a_member_sees_their_own_team(member: User, team: Team, company: Team) -> None:
    factories.team(company)
    assert [row["id"] for row in Caller(member).get("teams")["results"]] == [team.public_id]
    assert Caller(member).get(f"teams/{team.public_id}")["roles"] == ["member"]
    assert Caller(member).get(f"teams/{company.public_id}", status=404)["code"] == "team_unknown"


def test_members_are_listed_with_their_roles(member: User, team: Team) -> None:
    (row,) = Caller(member).get(f"teams/{team.public_id}/members")["results"]
    assert (row["username"], row["public_id"], row["role"]) == (member.username, member.public_id, "member")


def test_a_list_of_teams_costs_the_same_whatever_its_length(company: Team) -> None:
    caller = Caller(factories.user("auditor", company))
    factories.team(company)
    caller.get("teams")
    with counted() as few:
        caller.get("teams")
    for _number in range(5):
        factories.team(company)
    with counted() as many:
        caller.get("teams")
    assert len(many) == len(few) <= 6


# --- Tokens ------------------------------------------------------------------------------------------------


def test_a_token_is_made_used_and_revoked(member: User) -> None:
    caller = Caller(member)
    made = caller.post("tokens", {"name": "ci", "scopes": ["read"], "lifetime_days": 7}, status=201)
    stored = ApiToken.objects.get(digest=token_digest(made["secret"]))
    assert timedelta(days=6) < stored.expires_at - clock.now() <= timedelta(days=7)
    assert made["secret"].startswith(made["prefix"])
    new = Caller(None)
    new.client.credentials(HTTP_AUTHORIZATION=f"Bearer {made['secret']}")
    assert new.get("me")["username"] == member.username
    assert new.post("tokens", {"name": "x", "scopes": ["read"]}, status=403)["code"] == "scope_missing"
    caller.delete(f"tokens/{made['id']}")
    caller.delete(f"tokens/{made['id']}")
    assert new.get("me", status=401)["code"] == "token_revoked"


def test_tokens_are_listed_without_their_secrets(member: User) -> None:
    made = Caller(member).post("tokens", {"name": "ci", "scopes": ["read", "write"]}, status=201)
    rows = Caller(member).get("tokens")["results"]
    assert rows[0]["scopes"] == ["read", "write"]
    assert all("secret" not in row for row in rows)
    assert made["secret"] not in str(rows)


def test_the_secret_of_a_token_is_not_kept_for_a_repeated_request(member: User) -> None:
    key = {"Idempotency-Key": "t-1"}
    secrets = {
        Caller(member).post("tokens", {"name": "ci", "scopes": ["read"]}, status=201, headers=key)["secret"]
        for _turn in range(2)
    }
    assert len(secrets) == 2


def test_the_token_of_another_is_not_found(member: User) -> None:
    Caller(factories.user())
    other = ApiToken.objects.get()
    for token_id in (other.pk, uuid4()):
        assert Caller(member).delete(f"tokens/{token_id}", status=404)["code"] == "token_unknown"


# --- The log -----------------------------------------------------------------------------------------------


def test_an_auditor_reads_the_log_of_their_company(company: Team, team: Team) -> None:
    auditor = factories.user("auditor", company)
    member = factories.user("member", team)
    factories.tier("h100-80g")
    body = {
        "team": team.public_id,
        "name": "train",
        "kind": "training",
        "spec": factories.spec_document("h100-80g"),
    }
    Caller(member).post("workloads", body, status=201)
    Caller(member).post("tokens", {"name": "ci", "scopes": ["read"]}, status=201)
    events = Caller(auditor).get("events")["results"]
    assert {event["actor"] for event in events} >= {member.username}
    assert "token.create" not in [event["action"] for event in events]  # the platform's chain
    (submitted,) = Caller(auditor).get("events", action="workload.submit")["results"]
    assert (submitted["new"]["team"], submitted["subject"]["type"]) == (team.public_id, "workload")
    assert len(Caller(auditor).get("events", action="workload")["results"]) == 2
    assert Caller(auditor).get("events", company=company.public_id)["results"] == events


def test_an_admin_reads_the_platforms_log(member: User) -> None:
    Caller(member).post("tokens", {"name": "ci", "scopes": ["read"]}, status=201)
    admin = Caller(factories.admin())
    assert [event["action"] for event in admin.get("events", company="platform")["results"]] == [
        "token.create"
    ]


def test_the_state_of_the_chain_is_told(company: Team) -> None:
    auditor = factories.user("auditor", company)
    admin = Caller(factories.admin())
    admin.post("tokens", {"name": "ci", "scopes": ["read"]}, status=201)
    (ours,) = Caller(auditor).get("events/chain")["chains"]
    assert (ours["company"]["id"], ours["unsealed"], ours["is_intact"]) == (company.public_id, 0, None)
    platform = admin.get("events/chain")["chains"][0]
    assert (platform["company"], platform["sealed_up_to"], platform["unsealed"]) == (None, 0, 1)
    seal_all()
    assert admin.get("events/chain")["chains"][0]["sealed_up_to"] == 1
