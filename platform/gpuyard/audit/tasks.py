"""The sealer's turn."""

from celery import shared_task

from gpuyard.audit.services import seal_all


@shared_task
def audit_seal() -> int:
    """Seals every company's new events. Safe to run twice and beside itself."""
    return seal_all()
