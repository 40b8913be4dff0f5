"""What changes companies, teams, people, roles and quotas: who may, what is refused, what is recorded."""

from datetime import timedelta

import pytest

from gpuyard.audit.models import Event
from gpuyard.core.errors import Conflict, Forbidden, Invalid, NotFound
from gpuyard.core.money import UNITS_PER_GPU
from tenants import selectors, services, tokens
from tenants.models import ApiToken, ApprovalPolicy, Membership, Quota, Team
from tests import factories as make

pytestmark = pytest.mark.django_db


def test_a_company_begins_with_approval_rules_and_an_event() -> None:
    company = services.company_create(
        actor=make.admin(), name="Acme", currency="EUR", time_zone="Europe/Berlin"
    )

    assert selectors.policy_active(company.pk).version == 1
    assert Event.objects.get(subject_id=company.pk).action == "company.create"


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("currency", {"currency": "eur"}),
        ("currency", {"currency": "€€€"}),
        ("time_zone", {"time_zone": "Mars/Olympus"}),
        ("name", {"name": " "}),
        ("name", {"name": "a\x00b"}),
        ("name", {"name": "x" * 81}),
    ],
)
def test_a_company_needs_proper_values(field: str, changes: dict[str, str]) -> None:
    values = {"name": "Acme", "currency": "EUR", "time_zone": "UTC", **changes}

    with pytest.raises(Invalid) as refused:
        services.company_create(actor=make.admin(), **values)

    assert refused.value.errors[0].field == field
    assert refused.value.errors[0].remedy
    assert not Team.objects.exists()


def test_only_admins_create_companies_and_accounts() -> None:
    manager = make.user("manager", make.company())

    with pytest.raises(Forbidden):
        services.company_create(actor=manager, name="Acme", currency="EUR", time_zone="UTC")
    with pytest.raises(Forbidden):
        services.user_create(actor=manager, username="new")


def test_a_manager_creates_teams_below_and_a_name_is_used_once() -> None:
    parent = make.team()
    manager = make.user("manager", parent)

    team = services.team_create(actor=manager, parent=parent, name=" vision ")

    assert (team.name, team.path, team.company_id) == ("vision", [*parent.path, team.pk], parent.company_id)
    with pytest.raises(Conflict):
        services.team_create(actor=manager, parent=parent, name="vision")
    with pytest.raises(Forbidden):
        services.team_create(actor=make.user("member", parent), parent=parent, name="other")
    with pytest.raises(NotFound):
        services.team_create(actor=make.user("manager", make.team()), parent=parent, name="other")


def test_an_account_name_is_used_once_and_a_weak_password_refused() -> None:
    admin = make.admin()
    services.user_create(actor=admin, username="ada", password="correct horse battery")

    with pytest.raises(Conflict):
        services.user_create(actor=admin, username="ada")
    with pytest.raises(Invalid) as refused:
        services.user_create(actor=admin, username="bob", password="123")
    assert refused.value.errors[0].field == "password"


def test_managers_give_member_and_manager_but_not_the_roles_that_watch_them() -> None:
    team, person = make.team(), make.user()
    manager = make.user("manager", team)

    services.membership_add(actor=manager, team=team, user=person, role="member")
    services.membership_add(actor=manager, team=team, user=person, role="member")

    assert Membership.objects.filter(user=person).count() == 1
    assert Event.objects.filter(action="membership.add").count() == 1
    with pytest.raises(Forbidden):
        services.membership_add(actor=manager, team=team, user=person, role="auditor")
    with pytest.raises(Invalid):
        services.membership_add(actor=manager, team=team, user=person, role="king")


def test_a_role_taken_away_is_gone_at_once() -> None:
    team = make.team()
    person = make.user("member", team)

    services.membership_remove(actor=make.admin(), membership=Membership.objects.get(user=person))

    assert not selectors.teams_visible(person).exists()


def test_sub_quotas_are_set_by_the_manager_above() -> None:
    company, tier = make.company(), make.tier()
    team = make.team(company)
    make.quota(company, tier, guaranteed_gpus=8)
    manager = make.user("manager", company)

    quota = services.quota_set(
        actor=manager, team=team, tier=tier, guaranteed=8 * UNITS_PER_GPU, limit=9 * UNITS_PER_GPU
    )

    assert quota.limit == 9 * UNITS_PER_GPU
    with pytest.raises(Forbidden):
        services.quota_set(actor=make.user("manager", team), team=team, tier=tier, guaranteed=0, limit=None)
    with pytest.raises(Forbidden):
        services.quota_set(actor=manager, team=company, tier=tier, guaranteed=0, limit=None)


def test_guarantees_beyond_the_parents_are_refused_and_nothing_is_stored() -> None:
    company, tier = make.company(), make.tier()
    team = make.team(company)
    make.quota(company, tier, guaranteed_gpus=1)

    with pytest.raises(Conflict) as refused:
        services.quota_set(actor=make.admin(), team=team, tier=tier, guaranteed=2 * UNITS_PER_GPU, limit=None)

    assert refused.value.code == "guarantees_exceed_parent"
    assert not Quota.objects.filter(team=team).exists()


@pytest.mark.parametrize(
    ("guaranteed", "limit", "field"), [(-1, None, "guaranteed"), (5, 4, "limit"), (2**63, None, "guaranteed")]
)
def test_a_quota_needs_proper_numbers(guaranteed: int, limit: int | None, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        services.quota_set(
            actor=make.admin(), team=make.company(), tier=make.tier(), guaranteed=guaranteed, limit=limit
        )
    assert refused.value.errors[0].field == field


def test_over_all_tiers_there_is_a_limit_only() -> None:
    company, admin = make.company(), make.admin()

    services.quota_set(actor=admin, team=company, tier=None, guaranteed=0, limit=UNITS_PER_GPU)
    services.quota_set(actor=admin, team=company, tier=None, guaranteed=0, limit=2 * UNITS_PER_GPU)

    assert Quota.objects.in_force().get(team=company).limit == 2 * UNITS_PER_GPU
    with pytest.raises(Invalid):
        services.quota_set(actor=admin, team=company, tier=None, guaranteed=1, limit=None)


def test_a_tokens_secret_is_not_stored_and_only_its_owner_revokes_it() -> None:
    person, other = make.user(), make.user()

    token, secret = tokens.token_create(actor=person, name="ci", scopes=["read"], lifetime=timedelta(days=1))

    assert secret not in str(ApiToken.objects.values().get())
    assert secret not in str(list(Event.objects.values()))
    assert list(selectors.token_list(other)) == []
    with pytest.raises(NotFound):
        tokens.token_revoke(actor=other, token_id=token.pk)
    assert tokens.token_revoke(actor=person, token_id=token.pk).revoked_at


@pytest.mark.parametrize(
    ("scopes", "days", "field"),
    [(["all"], 1, "scopes"), ([], 1, "scopes"), (["read"], 0, "lifetime"), (["read"], 999, "lifetime")],
)
def test_a_token_needs_a_scope_and_an_end(scopes: list[str], days: int, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        tokens.token_create(actor=make.user(), name="ci", scopes=scopes, lifetime=timedelta(days=days))
    assert refused.value.errors[0].field == field


def test_activating_rules_keeps_the_old_version() -> None:
    company, admin = make.company(), make.admin()
    make.approval_policy(company)

    policy = services.approval_policy_activate(actor=admin, company=company, document=make.MANAGER)

    assert (policy.version, policy.active) == (2, True)
    assert not ApprovalPolicy.objects.get(company=company, version=1).active
    with pytest.raises(Invalid) as refused:
        services.approval_policy_activate(actor=admin, company=company, document={"rules": []})
    assert refused.value.errors[0].field == "document.rules"
