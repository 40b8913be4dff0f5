"""Wakes the pass after a commit.

A wake-up is a step of a sequence and a message to the `pass` queue. The sequence is what counts: a pass that sees
it move while it works runs again, so no wake-up is lost between its snapshot and its end. The message only saves
waiting for the next beat; without a broker it is dropped, and the beat (or the broker's return) makes up for it.
"""

from __future__ import annotations

import logging

from django.db import connection, transaction
from kombu.exceptions import OperationalError

logger = logging.getLogger(__name__)


def wake() -> None:
    """Asks for a pass once the current transaction has committed."""
    transaction.on_commit(_send)


def wake_count() -> int:
    """Returns how many wake-ups there have been."""
    with connection.cursor() as cursor:
        # before its first value, a sequence says 1 as well
        cursor.execute("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM scheduling_wake")
        (count,) = cursor.fetchone()
    return int(count)


def _send() -> None:
    from scheduling.tasks import pass_run  # tasks import the pass, which imports services that wake

    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('scheduling_wake')")
    try:
        pass_run.apply_async(retry=False, expires=10)
    except OperationalError as error:
        logger.warning("the broker did not take a wake-up, the next pass will find the work: %s", error)
