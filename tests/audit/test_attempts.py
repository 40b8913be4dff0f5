"""Sign-ins, refused attempts and downloads stand in the log, bounded, and without secrets."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django.http import StreamingHttpResponse
from django.test import Client
from rest_framework.test import APIClient

from gpuyard.api.attempts import _counted
from gpuyard.audit.models import Denial, Event
from gpuyard.audit.services import denials_record
from gpuyard.core.models import User
from scheduling.services import workload_submit
from tenants.models import ApiToken, Case, Team
from tests import factories as make
from tests.api.calls import token_for

pytestmark = pytest.mark.django_db


@pytest.fixture
def company() -> Team:
    return make.company("acme")


@pytest.fixture
def member(company: Team) -> User:
    return make.user("member", make.team(company), username="ada")


def browse(person: User) -> Client:
    client = Client()
    client.force_login(person)
    return client


def told(action: str) -> list[Any]:
    """The events of an action, once their minute is over."""
    Denial.objects.update(minute=F("minute") - timedelta(minutes=1))
    denials_record()
    return list(Event.objects.filter(action=action))


# --- Sign-ins ----------------------------------------------------------------------------------------------


def test_a_sign_in_and_its_end_are_recorded_in_the_persons_company(company: Team, member: User) -> None:
    client = Client()
    client.post("/sign-in", {"login": "ada", "password": "password"})
    client.post("/sign-out")
    begin, end = (told(action)[0] for action in ("sign_in.success", "sign_in.end"))
    assert (begin.company_id, begin.actor_label, begin.source) == (company.pk, "ada", "web")
    assert (begin.new, end.actor_id) == ({"address": "127.0.0.1"}, member.pk)


def test_an_admins_sign_in_stands_in_the_platforms_chain() -> None:
    browse(make.admin())
    assert [one.company_id for one in told("sign_in.success")] == [None]


def test_guesses_are_one_event_with_their_count(company: Team, member: User) -> None:
    for _ in range(5):
        Client().post("/sign-in", {"login": "ada", "password": "hunter2"})
    (event,) = told("sign_in.failure")
    assert (event.company_id, event.actor_label, event.new["count"]) == (company.pk, "ada", 5)


def test_an_unknown_name_is_not_stored_it_may_be_a_password() -> None:
    Client().post("/sign-in", {"login": "hunter2", "password": ""})
    Client().post("/sign-in", {"login": "hunter2", "password": "x"})
    (event,) = told("sign_in.failure")
    assert (event.actor_label, event.company_id) == ("anonymous", None)
    assert "hunter2" not in str(vars(event))


# --- Refused -----------------------------------------------------------------------------------------------


def test_a_scanner_writes_one_event_a_minute_and_route(company: Team, member: User) -> None:
    client = browse(member)
    for number in range(20):
        client.post(f"/workloads/w-{number}/stop")
    (event,) = told("access.denied")
    assert (event.company_id, event.actor_id, event.source) == (company.pk, member.pk, "web")
    assert event.subject_label == "POST /workloads/w-19/stop"
    assert (event.new["count"], event.new["status"]) == (20, 404)
    assert event.new["route"] == "workloads/<str:public_id>/stop"


def test_what_lacks_a_role_is_recorded_on_reading_too(member: User) -> None:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token_for(member)}")
    assert client.get("/api/v1/passes").status_code == 403
    assert client.get("/api/v1/workloads/w-nothere").status_code == 404
    (event,) = told("access.denied")
    assert (event.actor_label, event.source, event.new["status"]) == ("ada", "api", 403)


def test_a_refusal_told_on_a_page_is_recorded(company: Team, member: User) -> None:
    make.approval_policy(company, make.MANAGER)
    tier = make.tier()
    team = Team.objects.get(memberships__user=member)
    make.user("manager", team)
    asked = make.spec_document(tier)
    workload_submit(actor=member, team=team, name="w", kind="training", spec=asked)
    case = Case.objects.get()
    answer = browse(member).post(f"/approvals/{case.public_id}/decide", {"decision": "approve"})
    assert answer.status_code == 302
    (event,) = told("access.denied")
    assert (event.subject_label, event.new["status"]) == (f"POST /approvals/{case.public_id}/decide", 403)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"revoked_at": "2026-01-01T00:00:00Z"}, "token_revoked"),
        ({"expires_at": "2026-01-01T00:00:00Z"}, "token_expired"),
    ],
)
def test_a_token_refused_is_its_owners(
    company: Team, member: User, change: dict[str, Any], code: str
) -> None:
    client = APIClient()
    secret = token_for(member)
    ApiToken.objects.update(**change)
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    assert client.get("/api/v1/me").status_code == 401
    (event,) = told("token.refused")
    assert (event.company_id, event.actor_label, event.new["code"]) == (company.pk, "ada", code)
    assert secret not in str(vars(event))


def test_an_unknown_token_is_nobodys() -> None:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION="Bearer gpy_guessed")
    client.get("/api/v1/me")
    (event,) = told("token.refused")
    assert (event.company_id, event.actor_label) == (None, "anonymous")
    assert "guessed" not in str(vars(event))


def test_nobody_signed_in_is_no_attempt() -> None:
    Client().get("/workloads")
    APIClient().get("/api/v1/me")
    assert not Denial.objects.exists()


def test_attempts_of_the_running_minute_wait(member: User) -> None:
    browse(member).post("/workloads/w-1/stop")
    assert denials_record() == 0
    assert Denial.objects.count() == 1


# --- Taken away --------------------------------------------------------------------------------------------


def test_a_download_is_recorded_with_its_filter_and_rows(company: Team, member: User) -> None:
    make.workload(Team.objects.get(memberships__user=member), owner=member)
    browse(member).get("/workloads.csv", {"state": "waiting"})
    (event,) = told("export.download")
    assert (event.company_id, event.actor_label, event.subject_label) == (company.pk, "ada", "/workloads.csv")
    assert event.new == {"filters": {"state": "waiting"}, "rows": 1}


def test_a_streamed_download_is_recorded_once_it_has_gone(member: User) -> None:
    answer = browse(member).get("/costs.csv")
    assert isinstance(answer, StreamingHttpResponse)
    assert told("export.download") == []
    assert len(list(answer.streaming_content)) == 1
    (event,) = told("export.download")
    assert (event.subject_label, event.new["rows"]) == ("/costs.csv", 0)


def test_a_download_broken_off_says_so() -> None:
    noted: list[tuple[int, bool]] = []
    record: Callable[[int, bool], None] = lambda rows, is_complete: noted.append((rows, is_complete))  # noqa: E731
    lines = _counted(iter([b"heading", b"1", b"2"]), record, -1)
    next(lines), next(lines)
    lines.close()  # type: ignore[attr-defined] # it is a generator
    assert noted == [(1, False)]
