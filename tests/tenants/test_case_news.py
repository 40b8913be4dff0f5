"""Who is told of a case, and what becomes of the news when nobody needs to decide any more."""

from __future__ import annotations

import pytest

from gpuyard.core.models import User
from gpuyard.notify.models import Notification
from gpuyard.notify.selectors import notification_list, unread_count
from tenants import services
from tenants.models import Team
from tests import factories as make
from tests.tenants.test_case_acts import Asked

pytestmark = pytest.mark.django_db


def _told(reader: User) -> list[str]:
    return [one.subject for one in reversed(notification_list(reader))]


def test_approvers_hear_once_of_each_stage_and_the_requester_of_the_end() -> None:
    asked = Asked()
    assert _told(asked.manager) == [f"{asked.member.username} asks: a thing"]
    assert (_told(asked.finance), _told(asked.member)) == ([], [])
    asked.decide(asked.manager)
    assert len(_told(asked.finance)) == 1
    asked.decide(asked.finance)
    assert _told(asked.member) == ["Approved: a thing"]
    told = Notification.objects.get(user=asked.member)
    assert told.facts == [["By", asked.finance.username], ["Reason", "because"]]
    assert told.url == f"/approvals?case={asked.case.public_id}"


def test_a_decided_case_asks_nobody_any_more() -> None:
    asked = Asked()
    other = make.user("manager", asked.team)
    services.case_withdraw(actor=asked.member, case_public_id=asked.case.public_id)
    assert unread_count(asked.manager) == 0
    assert unread_count(other) == 0
    assert _told(asked.member) == [], "nobody is told what they did themselves"


def test_a_question_goes_to_the_requester_and_the_answer_back() -> None:
    asked = Asked()
    asked.send_back(asked.manager)
    assert _told(asked.member) == ["A question about a thing"]
    assert unread_count(asked.manager) == 0
    asked.answer()
    assert unread_count(asked.manager) == 1
    newest = notification_list(asked.manager)[0]
    assert newest.facts[-1] == ["Answer", "Both hands."]


def test_an_amended_case_asks_anew() -> None:
    asked = Asked()
    asked.amend(gpu_count=3)
    assert _told(asked.manager) == [
        f"{asked.member.username} asks: {what}" for what in ("a thing", "3 things")
    ]
    assert unread_count(asked.manager) == 1


def test_what_a_team_is_told_reaches_its_endpoints() -> None:
    asked = Asked()
    row = Notification.objects.get(user=None)
    team: Team = asked.team
    assert (row.event, row.team_path) == ("case.asked", list(team.path))
