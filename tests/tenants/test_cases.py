"""Cases: who decides, once, and never on their own request."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from django.db import connection

from gpuyard.audit.models import Event
from gpuyard.core.errors import DomainError, Forbidden, Invalid, NotFound, StaleState
from gpuyard.core.models import User
from tenants import inbox, services
from tenants.inbox import CaseFilters
from tenants.models import Case, CaseStep, Membership, Team
from tests import factories as make
from tests.tenants import things

TWO_STEPS = {
    "rules": [
        {
            "name": "both",
            "then": {"steps": [{"role": "manager"}, {"role": "finance", "level": "ancestor"}]},
        }
    ]
}


def _asked(document: dict[str, Any] = make.MANAGER) -> tuple[Team, User, User, Case]:
    """(team, its member who asked, its manager, the open case)."""
    team = make.team()
    make.approval_policy(team, document)
    member, manager = make.user("member", team), make.user("manager", team)
    return team, member, manager, things.ask(team, member)


@pytest.mark.django_db
def test_a_rule_that_says_auto_approves_at_once() -> None:
    team = make.team()
    make.approval_policy(team, make.AUTO)

    case = things.ask(team, make.user("member", team))

    assert (case.state, case.rule) == ("approved", "everything")
    assert things.THINGS.told[case.subject_id] == [("approved", None, "")]


@pytest.mark.django_db
def test_the_managers_approval_ends_the_case() -> None:
    _team, _member, manager, case = _asked()
    assert list(inbox.cases_to_decide(manager)) == [case]

    decided = services.case_decide(actor=manager, case_public_id=case.public_id, approve=True, reason="fine")

    assert decided.state == "approved"
    assert things.THINGS.told[case.subject_id] == [("approved", manager, "fine")]
    assert not inbox.cases_to_decide(manager).exists()
    actions = Event.objects.filter(subject_id=case.pk).order_by("id").values_list("action", flat=True)
    assert list(actions) == ["case.open", "case.step", "case.state"]


@pytest.mark.django_db
def test_a_rejection_needs_a_reason_and_tells_the_handler() -> None:
    _team, _member, manager, case = _asked()

    with pytest.raises(Invalid) as refused:
        services.case_decide(actor=manager, case_public_id=case.public_id, approve=False, reason="  ")
    services.case_decide(actor=manager, case_public_id=case.public_id, approve=False, reason="too much")

    assert refused.value.errors[0].field == "reason"
    assert things.THINGS.told[case.subject_id] == [("rejected", manager, "too much")]


@pytest.mark.django_db
def test_a_decided_case_is_not_decided_again() -> None:
    _team, _member, manager, case = _asked()
    services.case_decide(actor=manager, case_public_id=case.public_id, approve=True)

    with pytest.raises(StaleState):
        services.case_decide(actor=manager, case_public_id=case.public_id, approve=False, reason="no")


@pytest.mark.django_db
@pytest.mark.parametrize("reason", ["a\x00b", "x" * 1_000_000, "\ud800"])
def test_a_reason_that_cannot_be_stored_is_refused(reason: str) -> None:
    _team, _member, manager, case = _asked()

    with pytest.raises(Invalid):
        services.case_decide(actor=manager, case_public_id=case.public_id, approve=True, reason=reason)
    assert not CaseStep.objects.exclude(state="pending").exists()


@pytest.mark.django_db
def test_nobody_decides_on_their_own_request() -> None:
    team = make.team()
    make.approval_policy(team, make.MANAGER)
    manager = make.user("manager", team, is_platform_admin=True)

    case = things.ask(team, manager)

    assert not inbox.cases_to_decide(manager).exists()
    with pytest.raises(Forbidden) as refused:
        services.case_decide(actor=manager, case_public_id=case.public_id, approve=True)
    assert refused.value.code == "own_request"


@pytest.mark.django_db
def test_a_managers_own_request_goes_to_the_nearest_manager_above() -> None:
    company = make.company()
    department = make.team(company)
    team = make.team(department)
    make.approval_policy(company, make.MANAGER)
    head, manager = make.user("manager", company), make.user("manager", team)

    case = things.ask(team, manager)

    assert case.steps.get().team == company
    assert list(inbox.cases_to_decide(head)) == [case]


@pytest.mark.django_db
def test_without_any_manager_the_admins_decide() -> None:
    team = make.team()
    make.approval_policy(team, make.MANAGER)

    case = things.ask(team, make.user("member", team))

    step = case.steps.get()
    assert (step.team, step.role) == (None, "admin")
    assert list(inbox.cases_to_decide(make.admin())) == [case]


@pytest.mark.django_db
def test_admins_stand_in_only_when_the_last_manager_has_left() -> None:
    _team, _member, manager, case = _asked()
    admin = make.admin()

    assert not inbox.may_decide(admin, case)
    Membership.objects.filter(user=manager).delete()
    assert inbox.may_decide(admin, case)


@pytest.mark.django_db
def test_steps_are_decided_in_their_order() -> None:
    company = make.company()
    team = make.team(company)
    make.approval_policy(company, TWO_STEPS)
    manager, finance = make.user("manager", team), make.user("finance", company)
    case = things.ask(team, make.user("member", team))

    with pytest.raises(Forbidden):
        services.case_decide(actor=finance, case_public_id=case.public_id, approve=True)
    half = services.case_decide(actor=manager, case_public_id=case.public_id, approve=True)
    assert half.state == "open"
    assert case.subject_id not in things.THINGS.told
    done = services.case_decide(actor=finance, case_public_id=case.public_id, approve=True)

    assert done.state == "approved"


@pytest.mark.django_db
def test_a_rejection_skips_the_steps_behind_it() -> None:
    company = make.company()
    team = make.team(company)
    make.approval_policy(company, TWO_STEPS)
    manager = make.user("manager", team)
    case = things.ask(team, make.user("member", team))

    services.case_decide(actor=manager, case_public_id=case.public_id, approve=False, reason="no")

    assert [step.state for step in case.steps.all()] == ["rejected", "skipped"]


@pytest.mark.django_db
def test_a_team_mate_sees_the_case_but_cannot_decide_and_a_stranger_finds_nothing() -> None:
    team, member, _manager, case = _asked()
    mate, stranger = make.user("member", team), make.user("manager", make.team())

    assert inbox.case_get(mate, case.public_id) == case
    with pytest.raises(Forbidden):
        services.case_decide(actor=mate, case_public_id=case.public_id, approve=True)
    with pytest.raises(NotFound):
        services.case_decide(actor=stranger, case_public_id=case.public_id, approve=True)
    assert list(inbox.case_list(stranger)) == []
    assert list(inbox.case_list(make.admin())) == [case]
    assert list(inbox.case_list(member, CaseFilters(mine=True, state="open"))) == [case]
    assert list(inbox.case_list(mate, CaseFilters(mine=True))) == []


@pytest.mark.django_db
def test_the_requester_withdraws() -> None:
    team, member, manager, case = _asked()

    with pytest.raises(Forbidden):
        services.case_withdraw(actor=make.user("member", team), case_public_id=case.public_id)
    assert services.case_withdraw(actor=member, case_public_id=case.public_id).state == "withdrawn"

    assert things.THINGS.told[case.subject_id] == [("withdrawn", member, "")]
    with pytest.raises(StaleState):
        services.case_decide(actor=manager, case_public_id=case.public_id, approve=True)


@pytest.mark.django_db
def test_the_database_refuses_a_decision_on_ones_own_request() -> None:
    _team, member, _manager, case = _asked()
    change = "state = 'approved', decided_by_id = %s, decided_at = now()"
    statement = f"UPDATE tenants_casestep SET {change} WHERE case_id = %s"

    with connection.cursor() as cursor, pytest.raises(Exception, match="tenants_casestep_not_own") as refused:
        cursor.execute(statement, [member.pk, case.pk])
    assert isinstance(refused.value.__cause__, psycopg.errors.CheckViolation)


@pytest.mark.django_db
@pytest.mark.parametrize("count", [1, 12])
def test_lists_of_cases_take_as_many_queries_for_twelve_as_for_one(
    count: int, django_assert_num_queries: Any
) -> None:
    team, member, manager, _case = _asked()
    for _ in range(count - 1):
        things.ask(team, member)

    with django_assert_num_queries(3):
        rows = list(inbox.cases_to_decide(manager))
        assert len([(row.team.name, [step.decided_by for step in row.steps.all()]) for row in rows]) == count


@pytest.mark.django_db(transaction=True)
def test_of_two_managers_who_decide_at_once_one_wins() -> None:
    team, _member, first, case = _asked()
    managers = [first, make.user("manager", team)]
    barrier = threading.Barrier(2)
    outcomes: list[str] = []

    def decide(manager: User, approve: bool) -> None:
        barrier.wait(5)
        try:
            services.case_decide(actor=manager, case_public_id=case.public_id, approve=approve, reason="mine")
            outcomes.append("won")
        except DomainError as error:
            outcomes.append(error.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=decide, args=(m, i == 0)) for i, m in enumerate(managers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert sorted(outcomes) == ["case_decided", "won"]
    assert len(things.THINGS.told[case.subject_id]) == 1
