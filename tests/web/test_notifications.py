"""The bell, the list, the settings, webhooks and the log of sendings."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse

from gpuyard.core.models import User
from gpuyard.notify.models import Endpoint, Message, Rhythm
from gpuyard.notify.selectors import unread_count
from gpuyard.notify.services import choices_describe
from tests import factories as make

pytestmark = pytest.mark.django_db


def _browser(person: User) -> Client:
    client = Client()
    client.force_login(person)
    return client


def _page(person: User, name: str, **query: str) -> str:
    answer = _browser(person).get(reverse(f"web:{name}"), query)
    assert answer.status_code == 200
    return answer.content.decode()


def test_the_bell_counts_what_is_unread_on_every_page() -> None:
    reader = make.user("member", make.team())
    assert 'aria-label="Notifications"' in _page(reader, "home")
    for number in range(3):
        make.notification(reader, f"News {number}")
    assert 'aria-label="Notifications, 3 unread"' in _page(reader, "home")


def test_one_or_all_are_marked_as_read() -> None:
    reader, other = make.user(), make.user()
    first, _second = make.notification(reader, "First"), make.notification(reader, "Second")
    theirs = make.notification(other, "Theirs")
    client = _browser(reader)
    for wanted, left in ((str(theirs.pk), 2), ("nonsense", 2), (str(first.pk), 1), ("", 0)):
        answer = client.post(reverse("web:notifications_read"), {"id": wanted} if wanted else {})
        assert (answer.status_code, unread_count(reader)) == (302, left)
    assert unread_count(other) == 1


def test_the_list_is_filtered_by_event_and_by_unread() -> None:
    reader = make.user()
    make.notification(reader, "It failed", event="workload.failed")
    make.notification(reader, "It ended", event="workload.ended")
    page = _page(reader, "notifications", event="workload.ended", show="unread")
    assert "It ended" in page
    assert "It failed" not in page


def test_the_settings_come_back_as_they_were_sent() -> None:
    reader = make.user(email="reader@example.com", time_zone="Asia/Tokyo")
    client = _browser(reader)
    form = {"pace": "daily", "hour": "7", "workload.failed.app": "on", "workload.started.email": "on"}
    assert client.post(reverse("web:notification_settings"), form).status_code == 302
    chosen = choices_describe(reader)
    assert chosen["events"]["workload.failed"] == {"app": True, "email": False, "hook": False}
    assert chosen["events"]["workload.started"] == {"app": False, "email": True, "hook": False}
    rhythm = Rhythm.objects.get(user=reader)
    assert (rhythm.pace, rhythm.hour, rhythm.time_zone) == ("daily", 7, "Asia/Tokyo")
    assert "Asia/Tokyo" in _page(reader, "notification_settings")


def test_a_secret_is_on_the_answer_that_made_it_and_nowhere_else() -> None:
    person = make.user()
    client = _browser(person)
    form = {"kind": "webhook", "name": "ci", "url": "https://93.184.216.34/very-secret"}
    answer = client.post(reverse("web:webhooks"), form)
    found = re.search(r"whsec_[\w-]+", answer.content.decode())
    assert found
    assert "no-store" in answer["Cache-Control"]
    page = _page(person, "webhooks")
    assert "ci" in page
    assert found[0] not in page
    assert "very-secret" not in page


def test_a_refused_address_says_so_and_keeps_what_was_typed() -> None:
    form = {"kind": "webhook", "name": "mine", "url": "https://10.0.0.1/"}
    answer = _browser(make.user()).post(reverse("web:webhooks"), form)
    page = answer.content.decode()
    assert answer.status_code == 422
    assert "private network" in page
    assert 'value="mine"' in page
    assert not Endpoint.objects.exists()


def test_the_log_shows_each_try_and_sends_again_what_failed() -> None:
    team = make.team()
    manager, auditor = make.user("manager", team), make.user("auditor", team)
    message = make.message(make.endpoint("build hook", team=team), title="News of the team")
    again = reverse("web:delivery_again", args=[message.pk])
    for person, may in ((manager, True), (auditor, False)):
        page = _page(person, "deliveries")
        assert "answered 503, 12 ms" in page
        assert (again in page) is may
    assert _browser(auditor).post(again).status_code == 403
    assert _browser(manager).post(again).status_code == 302
    assert Message.objects.get().state == "queued"
    assert "answered" not in _page(make.user("member", team), "deliveries")
