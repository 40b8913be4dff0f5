"""The policy page: trying a change, putting it in force, going back, and rights to bands."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from django.test import Client

from gpuyard.core.models import User
from scheduling.models import BandGrant, SchedulingPolicyVersion
from scheduling.policies import policy_current, policy_set
from scheduling.policy_document import FIELDS
from tests import factories as make

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin() -> User:
    return make.admin(username="root")


@pytest.fixture
def client(admin: User) -> Client:
    browser = Client()
    browser.force_login(admin)
    return browser


def _text(answer: Any) -> str:
    return html.unescape(answer.content.decode())


def _fields(page: str) -> dict[str, str]:
    """What a browser would send of the first rule form, unchanged."""
    sent = {
        name: html.unescape(value)
        for name, value in re.findall(r'id="p-(\w+)" name="\w+" value="([^"]*)"', page)
    }
    flags = {one.name for one in FIELDS if one.kind == "flag"}
    on = set(re.findall(r'name="(\w+)" value="on"[^>]*\bchecked', page))
    chosen = {
        name: value
        for name, body in re.findall(r'<select[^>]*name="(\w+)"[^>]*>(.*?)</select>', page)
        for value in re.findall(r'value="([^"]*)" selected', body)
        if name not in ("team", "band")
    }
    return {
        **{name: value for name, value in sent.items() if name not in flags},
        **dict.fromkeys(on, "on"),
        **chosen,
        "based_on": re.findall(r'name="based_on" value="(\d+)"', page)[0],
    }


def test_an_untouched_form_changes_nothing(client: Client) -> None:
    sent = _fields(_text(client.get("/policy")))
    assert len(sent) > 10
    answer = client.post("/policy", sent)
    assert answer.status_code == 422
    assert "Nothing is changed yet" in _text(answer)


def test_a_change_is_seen_before_it_counts(client: Client) -> None:
    sent = _fields(_text(client.get("/policy"))) | {"reservations": "7"}
    shown = _text(client.post("/policy", sent))
    assert "What this change would do" in shown
    assert not SchedulingPolicyVersion.objects.exists()
    (changes,) = re.findall(r'name="changes" value="([^"]*)"', shown) or [""]
    assert "reservations" in changes or '{"' in shown
    apply = {"based_on": "0", "changes": '{"reservations": 7}', "reason": "fewer"}
    assert client.post("/policy/apply", apply).status_code == 302
    assert policy_current().reservations == 7
    page = _text(client.get("/policy"))
    assert "Version 1 is in force" in page
    assert "fewer" in page


@pytest.mark.parametrize("typed", ["many", "-1", "", "1e3", "9" * 40])
def test_a_wrong_number_is_told_beside_its_field(client: Client, typed: str) -> None:
    sent = _fields(_text(client.get("/policy"))) | {"reservations": typed}
    answer = client.post("/policy", sent)
    assert answer.status_code == 422
    assert 'id="p-reservations-error"' in _text(answer)
    assert f'name="reservations" value="{typed}"' in _text(answer)


def test_without_a_reason_the_preview_stays(client: Client) -> None:
    apply = {"based_on": "0", "changes": '{"reservations": 7}', "reason": ""}
    answer = client.post("/policy/apply", apply)
    assert answer.status_code == 422
    assert 'id="f-reason-error"' in _text(answer)
    assert not SchedulingPolicyVersion.objects.exists()


def test_who_was_slower_is_told(client: Client, admin: User) -> None:
    policy_set(actor=admin, changes={"ageing_s": 60}, based_on=0, reason="first")
    apply = {"based_on": "0", "changes": '{"reservations": 7}', "reason": "second"}
    answer = client.post("/policy/apply", apply)
    assert answer.status_code == 409
    assert "changed meanwhile" in _text(answer)


@pytest.mark.parametrize("changes", ["", "[]", "{", "7", '{"nonsense": 1}', "[" * 5000])
def test_forged_changes_break_nothing(client: Client, changes: str) -> None:
    answer = client.post("/policy/apply", {"based_on": "0", "changes": changes, "reason": "x"})
    assert answer.status_code in (302, 422)
    assert not SchedulingPolicyVersion.objects.exists()


def test_going_back_is_seen_first(client: Client, admin: User) -> None:
    policy_set(actor=admin, changes={"reservations": 7}, based_on=0, reason="first")
    assert "What going back to version 0 would do" in _text(client.get("/policy?restore=0"))
    assert client.get("/policy?restore=9").status_code == 404
    answer = client.post("/policy/restore", {"based_on": "1", "number": "0", "reason": "as it was"})
    assert answer.status_code == 302
    assert policy_current().reservations == 50


def test_auditors_read_and_cannot_change() -> None:
    browser = Client()
    browser.force_login(make.user("auditor", make.company()))
    page = _text(browser.get("/policy"))
    assert "See what it would do" not in page
    assert "Give the right" not in page
    assert browser.post("/policy", {"based_on": "0"}).status_code == 403


def test_a_right_is_given_and_taken_back(client: Client) -> None:
    team = make.team(name="vision")
    sent = {"team": team.public_id, "band": "2", "gpus": "1.5", "days": "7", "reason": "the release"}
    assert client.post("/policy/bands", sent).status_code == 302
    grant = BandGrant.objects.get()
    assert (grant.team, grant.band, grant.cap) == (team, 2, 10_500)
    assert grant.expires_at is not None
    assert "the release" in _text(client.get("/policy"))
    assert client.post(f"/policy/bands/{grant.pk}/revoke", {"reason": "done"}).status_code == 302
    grant.refresh_from_db()
    assert grant.revoked_at is not None


@pytest.mark.parametrize(
    "wrong",
    [
        {"gpus": "many"},
        {"gpus": "0"},
        {"gpus": "NaN"},
        {"gpus": "1e99"},
        {"days": "-1"},
        {"days": "99999999999"},
        {"days": "003650999999999"},
        {"band": "10"},
        {"band": "x"},
        {"reason": ""},
        {"team": "t-nobody"},
    ],
)
def test_a_wrong_right_is_refused_with_a_remedy(client: Client, wrong: dict[str, str]) -> None:
    team = make.team()
    sent = {"team": team.public_id, "band": "2", "gpus": "8", "days": "", "reason": "x", **wrong}
    answer = client.post("/policy/bands", sent)
    assert answer.status_code == 422
    assert 'role="alert"' in _text(answer)
    assert not BandGrant.objects.exists()


def test_numbers_by_name_are_typed_as_a_list(client: Client) -> None:
    make.tier("h100-80g")
    sent = _fields(_text(client.get("/policy")))
    wrong = _text(client.post("/policy", {**sent, "inference_headroom_tiers": "h100-80g much"}))
    assert "each name once" in wrong
    assert "h100-80g much" in wrong
    answer = _text(client.post("/policy", {**sent, "inference_headroom_tiers": "h100-80g 250"}))
    assert "Head-room for services by tier" in answer
