"""Sending back, answering, amending, approving less, stages with several people, many at once."""

from __future__ import annotations

from typing import Any

import pytest

from gpuyard.audit.models import Event
from gpuyard.core.errors import Conflict, Forbidden, Invalid
from gpuyard.core.models import User
from tenants import inbox, services
from tenants.models import ApproverGroup, Case, CaseMessage, Membership, Team
from tests import factories as make
from tests.tenants import things

pytestmark = pytest.mark.django_db

SMALL_AUTO = {
    "rules": [
        {"name": "one", "when": {"gpu_count": {"max": 1}}, "then": {"auto": True}},
        {
            "name": "the rest",
            "then": {"steps": [{"role": "manager"}, {"role": "finance", "level": "ancestor"}]},
        },
    ]
}


def _stage(needs: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"rules": [{"name": "stage", "then": {"stages": [{"needs": needs, "steps": list(steps)}]}}]}


class Asked:
    """A team of a company with a manager each and a finance person; its member has asked."""

    def __init__(self, document: dict[str, Any] = SMALL_AUTO, **values: Any) -> None:
        self.company = make.company()
        self.team: Team = make.team(self.company)
        make.approval_policy(self.company, document)
        self.member = make.user("member", self.team)
        self.manager = make.user("manager", self.team)
        self.finance = make.user("finance", self.company)
        self.case: Case = things.ask(self.team, self.member, **values)

    def decide(self, who: User, approve: bool = True, **more: Any) -> Case:
        return services.case_decide(
            actor=who, case_public_id=self.case.public_id, approve=approve, reason="because", **more
        )

    def amend(self, **changes: Any) -> Case:
        return services.case_amend(actor=self.member, case_public_id=self.case.public_id, changes=changes)

    def send_back(self, who: User) -> Case:
        return services.case_send_back(actor=who, case_public_id=self.case.public_id, question="Why two?")

    def answer(self) -> Case:
        return services.case_answer(
            actor=self.member, case_public_id=self.case.public_id, answer="Both hands."
        )


def _states(case: Case) -> list[tuple[int, str]]:
    return [(step.round, step.state) for step in case.steps.all()]


# --- Back and forth --------------------------------------------------------------------------------------------


def test_a_question_waits_for_its_answer() -> None:
    asked = Asked()

    assert asked.send_back(asked.manager).state == "sent_back"
    assert not inbox.cases_to_decide(asked.manager).exists()
    with pytest.raises(Conflict) as refused:
        asked.decide(asked.manager)
    assert refused.value.code == "case_sent_back"
    assert asked.answer().state == "open"
    assert inbox.may_decide(asked.manager, asked.case)
    thread = [(one.act, one.text, one.author) for one in CaseMessage.objects.all()]
    assert thread == [("send_back", "Why two?", asked.manager), ("answer", "Both hands.", asked.member)]


def test_only_the_requester_answers_and_only_a_question() -> None:
    asked = Asked()

    with pytest.raises(Conflict) as refused:
        asked.answer()
    assert refused.value.code == "case_not_sent_back"
    asked.send_back(asked.manager)
    with pytest.raises(Forbidden):
        services.case_answer(actor=asked.manager, case_public_id=asked.case.public_id, answer="I say so")


def test_who_asks_must_be_the_one_who_decides() -> None:
    asked = Asked()

    with pytest.raises(Forbidden):
        asked.send_back(asked.finance)
    with pytest.raises(Forbidden):
        asked.send_back(asked.member)
    with pytest.raises(Invalid):
        services.case_send_back(actor=asked.manager, case_public_id=asked.case.public_id, question=" ")


# --- Amending --------------------------------------------------------------------------------------------------


def test_what_does_not_matter_leaves_approvals_as_they_are() -> None:
    asked = Asked()
    asked.decide(asked.manager)

    case = asked.amend(colour="blue")

    assert (case.round, _states(case)) == (1, [(1, "approved"), (1, "pending")])
    assert things.thing_of(case)["colour"] == "blue"


def test_a_material_change_asks_anew_and_voids_what_was_approved() -> None:
    asked = Asked()
    asked.decide(asked.manager)

    case = asked.amend(gpu_count=4)

    assert (case.round, case.state, case.facts["gpu_count"]) == (2, "open", 4)
    assert _states(case) == [(1, "void"), (1, "skipped"), (2, "pending"), (2, "pending")]
    message = CaseMessage.objects.get(act="amend")
    assert message.changes == [{"name": "gpu_count", "old": 2, "new": 4}]
    assert Event.objects.filter(action="case.step", new__state="void").count() == 1
    old = Event.objects.get(action="case.amend").old
    assert old is not None
    assert old["gpu_count"] == 2
    assert asked.decide(asked.manager).state == "open"
    assert asked.decide(asked.finance).state == "approved"


def test_amended_into_an_automatic_rule_it_goes_through() -> None:
    asked = Asked()

    case = asked.amend(gpu_count=1)

    assert (case.state, case.rule, case.round) == ("approved", "one", 2)
    assert things.THINGS.told[case.subject_id] == [("approved", None, "")]


def test_an_amendment_answers_a_question() -> None:
    asked = Asked()
    asked.send_back(asked.manager)

    assert asked.amend(gpu_count=3).state == "open"


def test_who_looked_before_the_amendment_does_not_decide_on_it() -> None:
    asked = Asked()
    asked.amend(gpu_count=8)

    with pytest.raises(Conflict) as refused:
        asked.decide(asked.manager, seen_round=1)
    assert refused.value.code == "case_changed"
    assert asked.decide(asked.manager, seen_round=2).state == "open"


def test_nobody_amends_anothers_request_or_an_ended_one() -> None:
    asked = Asked()

    with pytest.raises(Forbidden):
        services.case_amend(
            actor=asked.manager, case_public_id=asked.case.public_id, changes={"gpu_count": 1}
        )
    asked.decide(asked.manager, approve=False)
    with pytest.raises(Conflict):
        asked.amend(gpu_count=1)


# --- Less --------------------------------------------------------------------------------------------------------


def test_less_is_approved_and_applied_together() -> None:
    asked = Asked(make.MANAGER, gpu_count=8)

    case = asked.decide(asked.manager, less={"gpu_count": 3})

    assert case.granted is not None
    assert (case.state, case.facts["gpu_count"], case.granted["gpu_count"]) == ("approved", 8, 3)
    assert things.thing_of(case)["gpu_count"] == 3
    assert Event.objects.get(action="case.less").new == {"gpu_count": 3}


@pytest.mark.parametrize(
    ("less", "field"),
    [({"gpu_count": 9}, "less.gpu_count"), ({"gpu_count": 0}, "less.gpu_count"), ({"x": 1}, "less.x")],
)
def test_what_is_not_less_is_refused_and_nothing_decided(less: dict[str, int], field: str) -> None:
    asked = Asked(make.MANAGER, gpu_count=8)

    with pytest.raises(Invalid) as refused:
        asked.decide(asked.manager, less=less)
    assert refused.value.errors[0].field == field
    assert _states(inbox.case_get(asked.manager, asked.case.public_id)) == [(1, "pending")]


def test_the_next_stage_decides_on_what_is_left() -> None:
    asked = Asked(gpu_count=8)

    asked.decide(asked.manager, less={"gpu_count": 3})

    assert asked.decide(asked.finance).state == "approved"


# --- Stages ------------------------------------------------------------------------------------------------------


def test_any_one_of_a_stage_is_enough() -> None:
    asked = Asked(_stage("any", {"role": "manager"}, {"role": "finance"}))

    assert asked.decide(asked.finance).state == "approved"
    assert sorted(step.state for step in asked.case.steps.all()) == ["approved", "skipped"]


def test_all_of_a_stage_decide_in_any_order_and_each_another_person() -> None:
    asked = Asked(_stage("all", {"role": "manager"}, {"role": "finance"}))
    make.membership(asked.finance, asked.team, "manager")

    assert asked.decide(asked.finance).state == "open"
    with pytest.raises(Forbidden) as refused:
        asked.decide(asked.finance)
    assert refused.value.code == "decided_before"
    assert asked.decide(asked.manager).state == "approved"


def test_admins_stand_in_where_the_same_person_would_decide_twice() -> None:
    asked = Asked(_stage("all", {"role": "manager"}, {"role": "manager"}))
    asked.decide(asked.manager)

    assert inbox.may_decide(make.admin(), asked.case)


def test_a_group_decides_and_sees_what_it_is_asked() -> None:
    company = make.company()
    team, other = make.team(company), make.team(company)
    group = ApproverGroup.objects.create(company=company, name="board")
    chair, gone, outsider = make.user("member", other), make.user("member", other), make.user()
    group.people.set([chair, gone, outsider])
    make.approval_policy(company, _stage("all", {"level": "group", "group": "board"}))
    case = things.ask(team, make.user("member", team))

    assert list(inbox.cases_to_decide(chair)) == [case]
    assert not inbox.may_decide(outsider, case)  # on the list, but not in the company
    Membership.objects.filter(user=gone).delete()
    assert not inbox.may_decide(gone, case)
    admin = make.admin()
    assert not inbox.may_decide(admin, case)
    group.people.remove(chair)
    assert inbox.may_decide(admin, case)


def test_ones_own_request_is_not_decided_by_group_or_after_changing_the_team() -> None:
    company = make.company()
    team = make.team(company)
    group = ApproverGroup.objects.create(company=company, name="board")
    asker = make.user("member", team)
    group.people.set([asker, make.user("member", team)])
    make.approval_policy(company, _stage("all", {"level": "group", "group": "board"}, {"role": "manager"}))
    case = things.ask(team, asker)
    Membership.objects.filter(user=asker).delete()
    make.membership(asker, company, "manager")

    with pytest.raises(Forbidden) as refused:
        services.case_decide(actor=asker, case_public_id=case.public_id, approve=True)
    assert refused.value.code == "own_request"


# --- Many at once --------------------------------------------------------------------------------------------------


def test_many_are_decided_each_for_itself() -> None:
    asked = Asked(make.MANAGER)
    second, own = things.ask(asked.team, asked.member), things.ask(asked.team, asked.manager)
    services.case_withdraw(actor=asked.member, case_public_id=second.public_id)

    found = services.cases_decide(
        actor=asked.manager,
        case_public_ids=[asked.case.public_id, second.public_id, own.public_id, "c-unknown"],
        approve=True,
    )

    assert [one.state for one in found] == ["approved", None, None, None]
    codes = [one.error.code for one in found if one.error]
    assert codes == ["case_decided", "own_request", "case_unknown"]


def test_too_many_at_once_are_refused() -> None:
    with pytest.raises(Invalid):
        services.cases_decide(actor=make.user(), case_public_ids=[f"c-{n}" for n in range(101)], approve=True)


# --- The subject -------------------------------------------------------------------------------------------------


def test_a_subject_that_is_gone_can_only_be_closed() -> None:
    asked = Asked()
    things.thing_remove(asked.case)

    with pytest.raises(Conflict) as refused:
        asked.decide(asked.manager)
    assert (refused.value.code, refused.value.status) == ("subject_gone", 409)
    assert asked.decide(asked.manager, approve=False).state == "rejected"


def test_a_subject_that_changed_otherwise_is_not_approved() -> None:
    asked = Asked()
    things.thing_change(asked.case.subject_id, gpu_count=64)

    with pytest.raises(Conflict) as refused:
        asked.decide(asked.manager)
    assert refused.value.code == "subject_changed"
    assert _states(inbox.case_get(asked.manager, asked.case.public_id))[0] == (1, "pending")
