"""Metering and the check of the books, as tasks. Both are safe to run twice and beside themselves."""

import logging

from celery import shared_task

from billing.metering import meter as meter_now
from billing.verify import books_verify as verify_now

logger = logging.getLogger(__name__)


@shared_task
def meter() -> int:
    """Meters what has become final; returns the number of new lines."""
    return meter_now().lines


@shared_task
def books_verify() -> bool:
    """Recomputes the books; what is wrong goes to the log, one line each."""
    report = verify_now()
    for problem in report.problems:
        logger.error("books: %s", problem)
    return report.conserved
