"""Housekeeping of the core."""

from celery import shared_task

from gpuyard.core.idempotency import idempotency_purge


@shared_task
def idempotency_purge_old() -> int:
    """Drops idempotency keys that are past their retention. Safe to run twice."""
    return idempotency_purge()
