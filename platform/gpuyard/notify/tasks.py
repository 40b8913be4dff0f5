"""Celery tasks of notify. Each is safe to run twice and beside itself."""

from __future__ import annotations

from datetime import timedelta

from celery import shared_task

from gpuyard.core import clock
from gpuyard.notify.following import follow
from gpuyard.notify.sending import deliver_all
from gpuyard.notify.services import notifications_purge

_KEPT = timedelta(days=180)


@shared_task
def deliver() -> int:
    """Tells of what the log says happened, and sends what is due."""
    follow()
    return deliver_all()


@shared_task
def purge() -> int:
    """Drops old news and their sendings."""
    return notifications_purge(clock.now() - _KEPT)
