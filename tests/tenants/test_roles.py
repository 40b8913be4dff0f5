"""Who sees what: a role counts on its team and below it, and nowhere else."""

import pytest

from gpuyard.core.errors import Forbidden, NotFound
from tenants import selectors
from tests import factories as make

pytestmark = pytest.mark.django_db


def test_a_role_is_inherited_downwards_only() -> None:
    company = make.company()
    department = make.team(company)
    project = make.team(department)
    manager = make.user("manager", department)

    assert selectors.roles_on(manager, project) == {"manager"}
    assert selectors.roles_on(manager, department) == {"manager"}
    assert selectors.roles_on(manager, company) == frozenset()


def test_an_admin_has_admin_everywhere_and_no_other_role() -> None:
    assert selectors.roles_on(make.admin(), make.team()) == {"admin"}


def test_teams_visible_are_the_subtrees_of_ones_roles() -> None:
    company = make.company()
    mine, sister = make.team(company), make.team(company)
    below = make.team(mine)
    make.team(sister)

    assert list(selectors.teams_visible(make.user("member", mine))) == [mine, below]


def test_a_person_without_roles_sees_nothing_and_an_admin_all() -> None:
    team = make.team()

    assert not selectors.teams_visible(make.user()).exists()
    assert selectors.teams_visible(make.admin()).filter(pk=team.pk).exists()


def test_team_ids_with_names_only_the_teams_of_that_role() -> None:
    company = make.company()
    managed, watched = make.team(company), make.team(company)
    below = make.team(managed)
    person = make.user("manager", managed)
    make.membership(person, watched, "auditor")

    assert set(selectors.team_ids_with(person, "manager")) == {managed.pk, below.pk}
    assert set(selectors.team_ids_with(person, "auditor", "manager")) == {managed.pk, below.pk, watched.pk}
    assert selectors.team_ids_with(person, "admin") == []


@pytest.mark.parametrize("public_id", ["t-00000000", "", "\x00", "\ud800", "x" * 100_000])
def test_an_unknown_team_is_not_found(public_id: str) -> None:
    with pytest.raises(NotFound):
        selectors.team_get(make.user("member", make.team()), public_id)


def test_a_strangers_team_is_not_found_and_a_missing_role_forbidden() -> None:
    team = make.team()

    with pytest.raises(NotFound):
        selectors.team_get(make.user("manager", make.team()), team.public_id)
    with pytest.raises(Forbidden):
        selectors.team_get(make.user("member", team), team.public_id, roles=["manager"])
    assert selectors.team_get(make.user("manager", team), team.public_id, roles=["manager"]) == team


def test_member_list_is_closed_to_strangers() -> None:
    team = make.team()
    member = make.user("member", team)

    assert [row.user for row in selectors.member_list(member, team)] == [member]
    with pytest.raises(NotFound):
        selectors.member_list(make.user("member", make.team()), team)


def test_pools_dedicated_to_others_are_closed() -> None:
    company = make.company()
    mine, other = make.team(company), make.team(company)
    make.pool()
    make.pool(only_for=mine)
    closed = make.pool(only_for=other)

    assert selectors.pools_closed_to(make.team(mine)) == {closed.pk}
