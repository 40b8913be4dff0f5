"""Reminders: once for each moment, whenever the job runs, and many at once are one mail."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core import mail
from django.db import connections

from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.notify.models import Notification
from gpuyard.notify.reminders import Due, remind_once
from gpuyard.notify.sending import deliver_all
from tests.notify.telling import notice, person

pytestmark = pytest.mark.django_db


def _due(reader: User, number: int, due_at: datetime) -> Due:
    key = f"grant:{number}:week"
    return Due(
        key, due_at, lambda: notice(reader, subject=f"Grant {number} ends", dedupe_key=f"{key}:{due_at}")
    )


def test_a_day_on_which_the_job_was_down_is_made_up_for_once(advance_clock: Callable[[float], None]) -> None:
    reader, due_at = person(), clock.now() + timedelta(days=1)
    assert remind_once([_due(reader, 1, due_at)]) == 0
    advance_clock(3 * 86400)  # the worker was down that day, and the next
    assert remind_once([_due(reader, 1, due_at)]) == 1
    assert remind_once([_due(reader, 1, due_at)]) == 0
    deliver_all()
    assert len(mail.outbox) == 1


def test_forty_grants_that_end_in_one_week_are_one_mail(django_assert_max_num_queries: Any) -> None:
    reader, now = person(), clock.now()
    due = [_due(reader, number, now - timedelta(hours=number)) for number in range(40)]
    with django_assert_max_num_queries(5):  # the clock, a savepoint and its end, the claim, the news
        assert remind_once(due) == 40
    deliver_all()
    (sent,) = mail.outbox
    assert sent.subject == "[GPU Yard] 40 notices"


def test_a_moment_that_moved_is_reminded_of_again() -> None:
    reader, now = person(), clock.now()
    assert remind_once([_due(reader, 1, now - timedelta(days=9))]) == 1
    assert remind_once([_due(reader, 1, now)]) == 1


@pytest.mark.django_db(transaction=True)
def test_two_jobs_at_once_remind_once() -> None:
    reader, due_at = person(), clock.now()
    due = [_due(reader, number, due_at) for number in range(20)]

    def job(_number: int) -> int:
        try:
            return remind_once(due)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as jobs:
        assert sum(jobs.map(job, range(4))) == 20
    assert Notification.objects.count() == 20
