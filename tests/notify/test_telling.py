"""From news to mails: told once, as each person wants it, together where much comes at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core import mail
from django.db import transaction

from gpuyard.audit.models import Event
from gpuyard.core.errors import Invalid
from gpuyard.notify.models import Message, Notification, Pace, Rhythm
from gpuyard.notify.routing import moment_due
from gpuyard.notify.selectors import notification_list, unread_count
from gpuyard.notify.sending import MAILS_AN_HOUR, deliver_all
from gpuyard.notify.services import about_settle, choices_set, notices_record, notifications_read, notify
from tests import factories
from tests.notify.telling import EVENT, FIXED, URGENT, messages, notice, person, tell

pytestmark = pytest.mark.django_db


def _choose(reader: Any, *, pace: str = "now", hour: int = 8, zone: str = "UTC", **events: Any) -> None:
    choices = {EVENT.key: events} if events else {}
    choices_set(actor=reader, pace=pace, hour=hour, time_zone=zone, choices=choices)


def test_the_same_is_told_once_however_often_it_is_found() -> None:
    reader = person()
    for _turn in range(3):
        tell(reader, dedupe_key="the-same")
    deliver_all()
    deliver_all()
    assert unread_count(reader) == 1
    assert len(mail.outbox) == 1


def test_many_are_told_with_one_statement(django_assert_num_queries: Any) -> None:
    people = [person() for _number in range(20)]
    with transaction.atomic(), django_assert_num_queries(1):
        notices_record([notice(*people) for _number in range(10)])
    assert Notification.objects.count() == 200


def test_news_outside_of_the_acts_transaction_is_refused(transactional_db: None) -> None:
    with pytest.raises(transaction.TransactionManagementError):
        notify([], EVENT.key, "Nothing", dedupe_key="x")


def test_an_act_that_is_rolled_back_tells_nobody() -> None:
    reader = person()
    with transaction.atomic():
        notify([reader], EVENT.key, "Never", dedupe_key="x")
        transaction.set_rollback(True)
    assert deliver_all() == 0
    assert unread_count(reader) == 0


def test_a_mail_has_its_facts_and_a_link_and_no_line_break_in_its_subject(settings: Any) -> None:
    settings.GPUYARD_URL = "https://yard.example"
    reader = person()
    tell(reader, subject="one\nBcc: all", facts=(("Why", "<b>2 & 2</b>"),), url="/workloads/w-1")
    deliver_all()
    (sent,) = mail.outbox
    assert sent.subject == "[GPU Yard] one Bcc: all"
    assert "Why: <b>2 & 2</b>" in sent.body
    assert "https://yard.example/workloads/w-1" in sent.body
    html = str(sent.alternatives[0][0])  # type: ignore[attr-defined] # of a mail with alternatives
    assert "Why: &lt;b&gt;2 &amp; 2&lt;/b&gt;" in html


def test_whoever_has_no_address_or_left_is_mailed_nothing() -> None:
    tell(factories.user(), person(is_active=False))
    assert deliver_all() == 0
    assert mail.outbox == []


def test_what_is_switched_off_is_neither_shown_nor_mailed() -> None:
    reader = person()
    _choose(reader, app=False, email=False)
    tell(reader)
    deliver_all()
    assert (unread_count(reader), mail.outbox) == (0, [])


def test_some_news_cannot_be_switched_off() -> None:
    reader = person()
    choices: dict[str, dict[str, bool]] = {FIXED.key: {"app": False}}
    with pytest.raises(Invalid, match="always shown"):
        choices_set(actor=reader, pace="now", hour=8, time_zone="UTC", choices=choices)
    tell(reader, event=FIXED)
    deliver_all()
    assert unread_count(reader) == 1


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"pace": "never"}, "pace"),
        ({"hour": 24}, "hour"),
        ({"time_zone": "Europe/Atlantis"}, "time_zone"),
        ({"choices": {"no.such": {"app": True}}}, "events.no.such"),
        ({"choices": {EVENT.key: {"pigeon": True}}}, f"events.{EVENT.key}.pigeon"),
    ],
)
def test_a_choice_that_is_none_names_its_field(given: dict[str, Any], field: str) -> None:
    whole = {"pace": "now", "hour": 8, "time_zone": "UTC", "choices": {}}
    with pytest.raises(Invalid) as refused:
        choices_set(actor=person(), **{**whole, **given})
    assert [one.field for one in refused.value.errors] == [field]
    assert all(one.remedy for one in refused.value.errors)


def test_a_choice_is_in_the_log_with_what_changed() -> None:
    reader = person()
    _choose(reader, pace="daily", email=False)
    event = Event.objects.get(action="notify.choose")
    assert event.old == {"pace": "now", "events": {EVENT.key: {"app": True, "email": True, "hook": True}}}
    assert event.new == {"pace": "daily", "events": {EVENT.key: {"app": True, "email": False, "hook": True}}}


# --- Digests and storms --------------------------------------------------------------------------------------


def test_what_is_due_together_is_one_mail_and_the_same_thing_one_line() -> None:
    reader = person()
    for number in range(3):
        tell(reader, subject=f"Try {number} failed", about="workload:1")
    tell(reader, subject="Another", about="workload:2")
    deliver_all()
    (sent,) = mail.outbox
    assert sent.subject == "[GPU Yard] 2 notices"
    assert "Try 2 failed (×3)" in sent.body
    assert "Try 1 failed" not in sent.body


def test_a_digest_waits_for_its_hour_and_urgent_news_does_not(advance_clock: Callable[[float], None]) -> None:
    reader = person()
    _choose(reader, pace="hourly")
    tell(reader, subject="Can wait")
    tell(reader, subject="Cannot", event=URGENT)
    deliver_all()
    assert [sent.subject for sent in mail.outbox] == ["[GPU Yard] Cannot"]
    advance_clock(3600)
    deliver_all()
    assert [sent.subject for sent in mail.outbox][1:] == ["[GPU Yard] Can wait"]


def test_changing_the_pace_moves_what_waits() -> None:
    reader = person()
    _choose(reader, pace="daily")
    tell(reader)
    assert deliver_all() == 0
    _choose(reader, pace="now")
    assert deliver_all() == 1


@pytest.mark.parametrize(
    ("now", "due"),
    [
        ("2026-03-27T09:00", "2026-03-28T07:00"),  # 8:00 in winter …
        ("2026-03-28T09:00", "2026-03-29T06:00"),  # … and in summer: the clocks went on in the night
        ("2026-10-24T12:00", "2026-10-25T07:00"),
        ("2026-07-01T05:59", "2026-07-01T06:00"),
    ],
)
def test_a_daily_digest_comes_at_the_same_hour_of_the_day_all_year(now: str, due: str) -> None:
    rhythm = Rhythm(pace=Pace.DAILY, hour=8, time_zone="Europe/Berlin")
    at = datetime.fromisoformat(now).replace(tzinfo=UTC)
    assert moment_due(rhythm, at) == datetime.fromisoformat(due).replace(tzinfo=UTC)


def test_a_storm_is_a_few_mails_and_then_one_with_the_rest(advance_clock: Callable[[float], None]) -> None:
    reader = person()
    for number in range(MAILS_AN_HOUR):
        tell(reader, subject=f"Number {number}")
        deliver_all()
    for number in range(100):
        tell(reader, subject=f"Storm {number}")
        if number % 25 == 0:
            deliver_all()
    deliver_all()
    assert len(mail.outbox) == MAILS_AN_HOUR
    advance_clock(3601)
    deliver_all()
    assert len(mail.outbox) == MAILS_AN_HOUR + 1
    assert mail.outbox[-1].subject == "[GPU Yard] 100 notices"
    assert "80 more: " in mail.outbox[-1].body


def test_what_is_settled_is_read_and_not_sent_any_more() -> None:
    reader = person()
    _choose(reader, pace="hourly")
    tell(reader, about="case:1")
    deliver_all()
    about_settle("case:1")
    assert unread_count(reader) == 0
    assert not Notification.objects.get().deliveries.exists()


# --- Reading -------------------------------------------------------------------------------------------------


def test_one_reads_ones_own_only() -> None:
    reader, other = person(), person()
    tell(reader, other)
    tell(reader)
    theirs = notification_list(other).get()
    assert notifications_read(actor=reader, ids=[theirs.pk]) == 0
    assert notifications_read(actor=reader) == 2
    assert (unread_count(reader), unread_count(other)) == (0, 1)


def test_a_mail_server_that_is_down_is_tried_again(
    settings: Any, advance_clock: Callable[[float], None]
) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 1
    tell(person())
    assert deliver_all() == 1
    (message,) = messages()
    assert (message.state, message.attempts.get().error) == ("queued", "ConnectionRefusedError")
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    assert deliver_all() == 0
    advance_clock(31)
    assert deliver_all() == 1
    assert Message.objects.get().state == "sent"
