"""The turns of the sealer, the notary and the verifier."""

import logging

from celery import shared_task

from gpuyard.audit import selectors
from gpuyard.audit.checkpoints import checkpoints_make
from gpuyard.audit.sealing import seal_all
from gpuyard.audit.services import denials_record
from gpuyard.audit.verification import chain_verify

logger = logging.getLogger(__name__)


@shared_task
def audit_seal() -> int:
    """Records the refused attempts of past minutes, and seals every company's new events. Safe to run twice."""
    denials_record()
    return seal_all()


@shared_task
def audit_checkpoint() -> int:
    """Signs where each chain ends. Safe to run twice and beside itself."""
    return len(checkpoints_make())


@shared_task
def audit_verify() -> int:
    """Recomputes every chain for the badge of the page; returns how many are broken. Safe to run twice."""
    reports = [chain_verify(company_id) for company_id in selectors.companies_all()]
    for report in reports:
        if report.findings:
            logger.error("chain %s: %s findings", report.company_id or "platform", len(report.findings))
    return sum(bool(report.findings) for report in reports)
