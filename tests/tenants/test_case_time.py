"""Reminders, escalation, notice and expiry, also after a time without workers; and people who are away."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from gpuyard.audit.models import Event
from gpuyard.core import clock
from gpuyard.core.errors import Conflict, Forbidden, Invalid
from gpuyard.core.models import User
from tenants import inbox, services
from tenants.deadlines import cases_tick
from tenants.delegations import delegation_create, delegation_revoke
from tenants.models import ApproverGroup, Case, CaseStep, Delegation, Membership
from tests import factories as make
from tests.tenants import things

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def _rules(to: str = "ancestor", **escalate: str) -> dict[str, Any]:
    stage = {"steps": [{}], "deadline_h": 24, "escalate": {"to": to, **escalate}}
    return {"rules": [{"name": "timed", "then": {"stages": [stage], "expires_h": 96}}]}


class Asked:
    def __init__(self, document: dict[str, Any] | None = None) -> None:
        self.company = make.company()
        self.team = make.team(self.company)
        make.approval_policy(self.company, document or _rules())
        self.member = make.user("member", self.team)
        self.manager = make.user("manager", self.team)
        self.case = things.ask(self.team, self.member)

    def later(self, hours: float) -> Case:
        """As if the case had been asked that much earlier; then time does its work."""
        moved = timedelta(hours=hours)
        times = ("opened_at", "remind_at", "due_at", "notice_at", "noticed_at", "expires_at")
        found = Case.objects.get(pk=self.case.pk)
        values = {one: getattr(found, one) - moved for one in times if getattr(found, one) is not None}
        Case.objects.filter(pk=found.pk).update(**values)
        cases_tick()
        return Case.objects.get(pk=found.pk)


def _told(action: str) -> list[list[str]]:
    found = Event.objects.filter(action=action).order_by("created_at", "id")
    return [list((event.new or {})["told"]) for event in found]


# --- Time ----------------------------------------------------------------------------------------------------------


def test_approvers_are_reminded_once_at_half_time() -> None:
    asked = Asked()

    asked.later(11)
    assert _told("case.remind") == []
    asked.later(2)
    cases_tick()
    assert _told("case.remind") == [[asked.manager.username]]


def test_past_the_deadline_those_above_may_decide_as_well() -> None:
    asked = Asked()
    head = make.user("manager", asked.company)

    case = asked.later(25)

    assert case.escalated_at is not None
    assert _told("case.escalate") == [sorted([asked.manager.username, head.username])]
    assert inbox.may_decide(asked.manager, case)
    assert _told("case.remind") == []  # there is no use in it any more
    assert services.case_decide(actor=head, case_public_id=case.public_id, approve=True).state == "approved"


def test_it_escalates_to_a_group_and_without_anybody_above_to_the_admins() -> None:
    grouped, alone = Asked(_rules("group", group="board")), Asked()
    group = ApproverGroup.objects.create(company=grouped.company, name="board")
    chair = make.user("member", make.team(grouped.company))
    group.people.add(chair)
    admin = make.admin()
    assert not inbox.may_decide(chair, grouped.case)
    assert not inbox.may_decide(admin, alone.case)

    grouped.later(25)
    alone.later(25)

    assert inbox.may_decide(chair, grouped.case)
    assert inbox.may_decide(admin, alone.case)
    assert CaseStep.objects.get(case=alone.case).up_role == "admin"


def test_a_question_stops_the_deadline_and_the_answer_starts_it_anew() -> None:
    asked = Asked()
    services.case_send_back(actor=asked.manager, case_public_id=asked.case.public_id, question="Why?")
    assert asked.later(30).escalated_at is None

    services.case_answer(actor=asked.member, case_public_id=asked.case.public_id, answer="So.")

    case = Case.objects.get(pk=asked.case.pk)
    assert case.due_at is not None
    assert abs(case.due_at - clock.now() - 24 * HOUR) < timedelta(minutes=1)


def test_an_undecided_case_expires_after_its_notice() -> None:
    asked = Asked()

    noticed = asked.later(73)
    assert (noticed.state, noticed.noticed_at is not None) == ("open", True)
    expired = asked.later(24)

    assert expired.state == "expired"
    assert things.THINGS.told[asked.case.subject_id] == [("expired", None, "")]
    assert things.thing_of(asked.case)["state"] == "expired"
    with pytest.raises(Conflict):
        services.case_decide(actor=asked.manager, case_public_id=asked.case.public_id, approve=True)


def test_after_a_long_down_time_it_is_announced_before_it_ends() -> None:
    asked = Asked()

    first = asked.later(500)

    assert first.state == "open"
    assert first.expires_at is not None
    assert first.expires_at > clock.now() + 23 * HOUR
    assert len(_told("case.notice")) == 2  # to those who are to decide, and to the requester
    assert asked.later(12).state == "open"
    assert asked.later(13).state == "expired"
    assert len(_told("case.escalate")) == len(_told("case.notice")) - 1 == 1


def test_what_has_ended_is_left_alone() -> None:
    asked = Asked()
    services.case_withdraw(actor=asked.member, case_public_id=asked.case.public_id)
    before = Event.objects.count()

    asked.case.refresh_from_db()
    assert cases_tick() == 0
    assert Event.objects.count() == before


# --- Away ----------------------------------------------------------------------------------------------------------


def _away(asked: Asked, delegate: User, **more: Any) -> Delegation:
    now = clock.now()
    dates = {"starts_at": now - HOUR, "ends_at": now + 24 * HOUR, **more}
    return delegation_create(actor=asked.manager, company=asked.company, delegate=delegate, **dates)


def test_a_delegate_decides_on_open_cases_in_the_others_name() -> None:
    asked = Asked()
    stand_in = make.user("member", make.team(asked.company))
    assert not inbox.cases_to_decide(stand_in).exists()

    _away(asked, stand_in)

    assert list(inbox.cases_to_decide(stand_in)) == [asked.case]
    services.case_decide(actor=stand_in, case_public_id=asked.case.public_id, approve=True)
    step = CaseStep.objects.get(case=asked.case)
    assert (step.decided_by, step.on_behalf_of) == (stand_in, asked.manager)
    event = Event.objects.get(action="case.step")
    assert (event.actor_label, event.on_behalf_of_label) == (stand_in.username, asked.manager.username)
    assert inbox.case_get(stand_in, asked.case.public_id).state == "approved"


def test_a_delegate_never_decides_on_the_own_request() -> None:
    asked = Asked()
    _away(asked, asked.member)

    assert not inbox.cases_to_decide(asked.member).exists()
    with pytest.raises(Forbidden) as refused:
        services.case_decide(actor=asked.member, case_public_id=asked.case.public_id, approve=True)
    assert refused.value.code == "own_request"


def test_nor_for_somebody_whose_request_it_is() -> None:
    asked = Asked()
    make.user("manager", asked.company)
    own = things.ask(asked.team, asked.manager)
    stand_in = make.user("member", asked.team)
    _away(asked, stand_in)

    assert not inbox.may_decide(stand_in, own)


@pytest.mark.parametrize("change", ["revoked", "over", "kind", "team", "left", "person left"])
def test_what_ends_a_delegation(change: str) -> None:
    asked = Asked()
    stand_in = make.user("member", make.team(asked.company))
    more: dict[str, Any] = {}
    if change == "kind":
        more["kinds"] = ["training"]
    if change == "team":
        more["teams"] = [make.team(asked.company)]
    made = _away(asked, stand_in, **more)
    if change == "revoked":
        delegation_revoke(actor=asked.manager, delegation_id=made.pk)
    if change == "over":
        now = clock.now()
        Delegation.objects.update(span=DateTimeTZRange(now - 3 * HOUR, now - HOUR))
    if change in ("left", "person left"):
        Membership.objects.filter(user=stand_in if change == "left" else asked.manager).delete()

    assert not inbox.may_decide(stand_in, asked.case)


def test_what_was_handed_over_to_somebody_is_not_handed_on() -> None:
    asked = Asked()
    second, third = make.user("member", asked.team), make.user("member", asked.team)
    _away(asked, second)
    now = clock.now()
    delegation_create(
        actor=second, company=asked.company, delegate=third, starts_at=now - HOUR, ends_at=now + HOUR
    )

    assert inbox.may_decide(second, asked.case)
    assert not inbox.may_decide(third, asked.case)


def test_one_stands_in_at_a_time() -> None:
    asked = Asked()
    _away(asked, make.user("member", asked.team))

    with pytest.raises(Conflict) as refused:
        _away(asked, make.user("member", asked.team))
    assert refused.value.code == "delegated_already"


def test_a_delegate_is_of_the_company_and_somebody_else() -> None:
    asked = Asked()

    for delegate in (make.user("member", make.team()), asked.manager):
        with pytest.raises(Invalid) as refused:
            _away(asked, delegate)
        assert refused.value.errors[0].field == "delegate"
    with pytest.raises(Forbidden):
        delegation_create(
            actor=asked.member,
            person=asked.manager,
            company=asked.company,
            delegate=asked.member,
            starts_at=clock.now(),
            ends_at=clock.now() + HOUR,
        )


def test_the_database_refuses_a_decision_for_the_requester() -> None:
    asked = Asked()
    statement = (
        "UPDATE tenants_casestep SET state = 'approved', decided_by_id = %s, on_behalf_of_id = %s,"
        " decided_at = now() WHERE case_id = %s"
    )
    with connection.cursor() as cursor, pytest.raises(Exception, match="tenants_casestep_not_for_own"):
        cursor.execute(statement, [asked.manager.pk, asked.member.pk, asked.case.pk])
