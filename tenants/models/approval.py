"""Approval rules, and cases on their way through their steps."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from gpuyard.core import ids
from gpuyard.core.clock import YardNow
from tenants.models.teams import Team


class ApprovalPolicy(models.Model):
    """A version of a company's approval rules. The document is data (`tenants.policies.ApprovalDocument`).

    A new version replaces the active one; old versions stay, because cases point at them.
    """

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    company = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="approval_policies")
    version = models.PositiveIntegerField()
    document = models.JSONField()
    active = models.BooleanField(default=False)
    created_by = models.ForeignKey("core.User", on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["company", "version"], name="tenants_approvalpolicy_version"),
            models.UniqueConstraint(
                fields=["company"], condition=Q(active=True), name="tenants_approvalpolicy_one_active"
            ),
        ]

    def __str__(self) -> str:
        return f"approval policy v{self.version}"


class CaseState(models.TextChoices):
    """open → approved | rejected (by its steps) | withdrawn (by the requester) | expired (nobody decided)."""

    OPEN = "open", _("Open")
    APPROVED = "approved", _("Approved")
    REJECTED = "rejected", _("Rejected")
    WITHDRAWN = "withdrawn", _("Withdrawn")
    EXPIRED = "expired", _("Expired")


CASE_EDGES: dict[str, frozenset[str]] = {
    CaseState.OPEN: frozenset(
        {CaseState.APPROVED, CaseState.REJECTED, CaseState.WITHDRAWN, CaseState.EXPIRED}
    ),
    CaseState.APPROVED: frozenset(),
    CaseState.REJECTED: frozenset(),
    CaseState.WITHDRAWN: frozenset(),
    CaseState.EXPIRED: frozenset(),
}


class Case(models.Model):
    """A request going through its approval steps. The subject's app registers its handler in `core.hooks`."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    public_id = models.CharField(max_length=16, unique=True, default=ids.case_public_id, editable=False)
    company = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="cases")
    subject_type = models.CharField(max_length=40)
    subject_id = models.UUIDField()
    subject_label = models.CharField(max_length=200)
    requester = models.ForeignKey("core.User", on_delete=models.PROTECT, related_name="cases")
    justification = models.CharField(max_length=2000, blank=True, default="")
    policy = models.ForeignKey(ApprovalPolicy, on_delete=models.PROTECT, related_name="cases")
    rule = models.CharField(max_length=80)
    # what the rule saw when it decided: kind, tiers, gpu_count, hours, estimated cost …
    facts = models.JSONField()
    state = models.CharField(max_length=16, choices=CaseState.choices, default=CaseState.OPEN)
    opened_at = models.DateTimeField(db_default=YardNow(), editable=False)
    decided_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["opened_at"]
        indexes = [models.Index(fields=["company", "state", "opened_at"], name="tenants_case_inbox")]
        constraints = [
            models.UniqueConstraint(
                fields=["subject_type", "subject_id"], condition=Q(state="open"), name="tenants_case_one_open"
            ),
            models.CheckConstraint(
                condition=Q(state="open", decided_at__isnull=True)
                | ~Q(state="open") & Q(decided_at__isnull=False),
                name="tenants_case_decided",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.public_id} {self.subject_label}"


class StepState(models.TextChoices):
    """pending → approved | rejected | skipped (the case ended before its turn)."""

    PENDING = "pending", _("Pending")
    APPROVED = "approved", _("Approved")
    REJECTED = "rejected", _("Rejected")
    SKIPPED = "skipped", _("Skipped")


STEP_EDGES: dict[str, frozenset[str]] = {
    StepState.PENDING: frozenset({StepState.APPROVED, StepState.REJECTED, StepState.SKIPPED}),
    StepState.APPROVED: frozenset(),
    StepState.REJECTED: frozenset(),
    StepState.SKIPPED: frozenset(),
}


class CaseStep(models.Model):
    """One decision that a case needs: of somebody with `role` on `team` (no team: a platform admin).

    `requester` repeats the case's, so that the database itself refuses a decision on one's own request.
    """

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    case = models.ForeignKey(Case, on_delete=models.CASCADE, related_name="steps")
    order = models.PositiveSmallIntegerField()
    team = models.ForeignKey(Team, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    role = models.CharField(max_length=16)
    requester = models.ForeignKey("core.User", on_delete=models.PROTECT, related_name="+")
    state = models.CharField(max_length=16, choices=StepState.choices, default=StepState.PENDING)
    decided_by = models.ForeignKey(
        "core.User", on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    decided_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=2000, blank=True, default="")

    class Meta:
        ordering = ["order"]
        constraints = [
            models.UniqueConstraint(fields=["case", "order"], name="tenants_casestep_order"),
            models.CheckConstraint(
                condition=Q(decided_by__isnull=True) | ~Q(decided_by=F("requester")),
                name="tenants_casestep_not_own",
                violation_error_message=_("Nobody decides on their own request. Ask another manager."),
            ),
            models.CheckConstraint(
                condition=Q(state__in=["pending", "skipped"], decided_by__isnull=True)
                | Q(state__in=["approved", "rejected"], decided_by__isnull=False),
                name="tenants_casestep_decided",
            ),
        ]

    def __str__(self) -> str:
        return f"step {self.order} of {self.case_id}"
