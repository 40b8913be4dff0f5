"""Celery tasks of the scheduling app. Each takes ids at most, re-reads, and is safe to run twice."""

from __future__ import annotations

from celery import shared_task

from scheduling.losses import nodes_check as check
from scheduling.passes import pass_turns


@shared_task(name="scheduling.tasks.pass_run")
def pass_run() -> None:
    """Runs passes until nothing woke one; does nothing while another process is at it."""
    pass_turns()


@shared_task(name="scheduling.tasks.nodes_check")
def nodes_check() -> None:
    """Declares silent nodes lost, and requeues what ended itself when it was cut off."""
    check()
