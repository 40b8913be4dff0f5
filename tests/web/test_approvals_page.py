"""The approvals pages: acting on cases with forms, being away, and editing the rules."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from gpuyard.core import clock
from gpuyard.core.models import User
from scheduling.models import Workload
from scheduling.services import workload_submit
from tenants.models import Case, CaseStep, Delegation, Team
from tests import factories as make

pytestmark = pytest.mark.django_db


class Desk:
    """A team whose member asks for eight GPUs."""

    def __init__(self) -> None:
        self.company: Team = make.company()
        self.team: Team = make.team(self.company, "vision")
        make.approval_policy(self.company, make.MANAGER)
        self.tier = make.tier("h100-80g")
        make.node(self.tier, 8)
        self.member, self.manager = make.user("member", self.team), make.user("manager", self.team)

    def ask(self, name: str = "train") -> Case:
        document = make.spec_document(self.tier, gpus=8)
        made = workload_submit(actor=self.member, team=self.team, name=name, kind="training", spec=document)
        return Case.objects.get(subject_id=made.pk)


def browse(person: User) -> Client:
    client = Client()
    client.force_login(person)
    return client


def post(person: User, name: str, sent: dict[str, Any], *args: Any, status: int = 200) -> str:
    answer = browse(person).post(reverse(f"web:{name}", args=args), sent, follow=True)
    assert answer.status_code == status
    return answer.content.decode()


def card(person: User, case: Case) -> str:
    answer = browse(person).get(reverse("web:approvals"), {"case": case.public_id})
    assert answer.status_code == 200
    return answer.content.decode()


def test_sent_back_answered_and_approved() -> None:
    desk = Desk()
    case = desk.ask()

    post(desk.manager, "case_decide", {"decision": "send_back", "reason": "Why eight?"}, case.public_id)
    page = card(desk.member, case)
    assert "Why eight?" in page
    assert 'name="answer"' in page
    assert 'name="answer"' not in card(desk.manager, case)
    post(desk.member, "case_answer", {"answer": "One node."}, case.public_id)
    assert "One node." in card(desk.manager, case)
    post(desk.manager, "case_decide", {"decision": "approve", "round": "1"}, case.public_id)

    case.refresh_from_db()
    assert case.state == "approved"
    assert 'value="approve"' not in card(desk.manager, case)  # nothing dead is offered


def test_a_question_needs_its_words() -> None:
    desk = Desk()
    case = desk.ask()

    page = post(desk.manager, "case_decide", {"decision": "send_back"}, case.public_id, status=422)

    assert 'id="f-reason-error"' in page


def test_an_amendment_is_told_and_voids_the_old_look() -> None:
    desk = Desk()
    case = desk.ask()
    assert 'name="round" value="1"' in card(desk.manager, case)

    post(desk.member, "case_amend", {"gpus": "4", "replicas": "1", "time_limit": "1 h"}, case.public_id)

    page = card(desk.manager, case)
    assert "GPUs: from 8 to 4" in page
    assert 'name="round" value="2"' in page
    told = post(desk.manager, "case_decide", {"decision": "approve", "round": "1"}, case.public_id)
    assert "has changed what is asked for since you looked" in told


@pytest.mark.parametrize("sent", [{"gpus": "many"}, {"time_limit": "soon"}, {"priority": "9999"}])
def test_what_cannot_be_read_changes_nothing(sent: dict[str, str]) -> None:
    desk = Desk()
    case = desk.ask()

    page = post(desk.member, "case_amend", sent, case.public_id, status=422)

    assert 'role="alert"' in page
    assert Case.objects.get().round == 1


def test_less_is_granted_by_numbers() -> None:
    desk = Desk()
    case = desk.ask()
    sent = {"decision": "approve", "less-gpus_per_replica": "2", "less-time_limit_s": ""}
    assert 'name="less-gpus_per_replica"' in card(desk.manager, case)

    post(desk.manager, "case_decide", {**sent, "less-gpus_per_replica": "9"}, case.public_id, status=422)
    post(desk.manager, "case_decide", sent, case.public_id)

    workload = Workload.objects.select_related("spec").get()
    assert workload.spec is not None
    assert (workload.state, workload.spec.document["request"]["gpus_per_replica"]) == ("waiting", 2)
    assert "GPUs: from 8 to 2" in card(desk.member, case)


def test_ticked_requests_are_decided_at_once_and_refusals_are_told() -> None:
    desk = Desk()
    first, second = desk.ask("one"), desk.ask("two")
    page = browse(desk.manager).get(reverse("web:approvals")).content.decode()
    assert page.count('form="bulk"') == 2

    sent = {"case": [first.public_id, second.public_id, "c-nothing"], "decision": "approve"}
    page = post(desk.manager, "cases_decide", sent)

    assert "2 requests approved." in page
    assert "c-nothing" in page
    assert set(Case.objects.values_list("state", flat=True)) == {"approved"}


def test_filters_stand_in_the_address() -> None:
    desk = Desk()
    case = desk.ask()
    client = browse(desk.member)

    assert case.public_id not in client.get(reverse("web:approvals")).content.decode()
    mine = client.get(reverse("web:approvals"), {"show": "mine", "kind": "training"}).content.decode()
    assert f"show=mine&amp;kind=training&amp;case={case.public_id}" in mine
    other = client.get(reverse("web:approvals"), {"show": "mine", "kind": "inference"}).content.decode()
    assert case.public_id not in other


def test_a_late_request_says_so() -> None:
    desk = Desk()
    case = desk.ask()
    Case.objects.filter(pk=case.pk).update(due_at=clock.now() - timedelta(hours=3))

    page = card(desk.manager, case)

    assert "t-fault" in page
    assert "3 h late" in page.replace("\u202f", " ").replace("\xa0", " ")


# --- Away ----------------------------------------------------------------------------------------------------------


def test_who_is_away_hands_over_and_takes_back() -> None:
    desk = Desk()
    case = desk.ask()
    stand_in = make.user("member", make.team(desk.company))
    now = clock.now()
    sent = {
        "company": desk.company.public_id,
        "delegate": stand_in.public_id,
        "starts_at": f"{now - timedelta(days=1):%Y-%m-%dT%H:%M}",
        "ends_at": f"{now + timedelta(days=3):%Y-%m-%dT%H:%M}",
        "reason": "on leave",
    }

    assert stand_in.username in post(desk.manager, "away", sent)
    page = card(stand_in, case)
    assert 'value="approve"' in page
    assert reverse("web:workload", args=[Workload.objects.get().public_id]) not in page
    post(stand_in, "case_decide", {"decision": "approve"}, case.public_id)
    assert CaseStep.objects.get().on_behalf_of == desk.manager
    assert f"{stand_in.username} for {desk.manager.username}" in card(desk.member, case)
    post(desk.manager, "away_end", {}, Delegation.objects.get().pk)
    assert Delegation.objects.get().revoked_at is not None


def test_dates_that_are_none_are_told() -> None:
    desk = Desk()
    sent = {
        "company": desk.company.public_id,
        "delegate": desk.member.public_id,
        "starts_at": "2030-02-31T00:00",
        "ends_at": "",
    }
    assert 'role="alert"' in post(desk.manager, "away", sent, status=422)
    assert not Delegation.objects.exists()


# --- Rules -----------------------------------------------------------------------------------------------------------


def test_an_admin_sees_what_new_rules_do_before_they_count() -> None:
    desk = Desk()
    case = desk.ask()
    admin = make.admin()
    draft = {"company": desk.company.public_id, "document": json.dumps(make.AUTO)}

    page = post(admin, "rules", draft)
    assert case.public_id in page
    assert "1 of 1 open requests would be decided otherwise" in page
    assert desk.company.approval_policies.count() == 1
    post(admin, "rules_apply", {**draft, "based_on": "1", "reason": "open up"})
    assert desk.company.approval_policies.get(active=True).version == 2
    again = post(admin, "rules_apply", {**draft, "based_on": "1", "reason": "late"}, status=409)
    assert "has changed meanwhile" in again
    back = browse(admin).get(reverse("web:rules"), {"company": desk.company.public_id, "restore": "1"})
    assert 'name="restores" value="1"' in back.content.decode()
    post(admin, "rules_apply", {**draft, "based_on": "2", "restores": "1", "reason": "back"})
    assert desk.company.approval_policies.get(active=True).version == 3


@pytest.mark.parametrize("text", ["{", "[1]", '{"rules": []}', json.dumps(make.MANAGER)])
def test_rules_that_are_none_are_told(text: str) -> None:
    desk = Desk()
    sent = {"company": desk.company.public_id, "document": text}
    assert 'role="alert"' in post(make.admin(), "rules", sent, status=422)
    assert desk.company.approval_policies.count() == 1


def test_others_read_the_rules() -> None:
    desk = Desk()
    page = browse(desk.member).get(reverse("web:rules")).content.decode()
    assert "ask the manager" in page
    assert "See what it would do" not in page
