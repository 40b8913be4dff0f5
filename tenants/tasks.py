"""What runs by itself for tenants."""

from __future__ import annotations

from celery import shared_task

from tenants.deadlines import cases_tick
from tenants.grant_news import grants_remind
from tenants.lockout import guesses_purge


@shared_task
def cases_due() -> None:
    """Reminders, escalations, notices and expiry of cases."""
    cases_tick()


@shared_task
def guesses_forget() -> None:
    """Tries to sign in that lock nothing any more."""
    guesses_purge()


@shared_task
def grants_due() -> None:
    """Reminders of grants that end soon."""
    grants_remind()
