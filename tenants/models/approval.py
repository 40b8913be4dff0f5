"""Approval rules, and cases on their way through their steps."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from gpuyard.core import ids
from gpuyard.core.clock import YardNow
from tenants import casework
from tenants.models.approvers import ApproverGroup
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
    note = models.CharField(max_length=400, blank=True, default="", db_default="")
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)

    class Meta:
        ordering = ["-version"]
        constraints = [
            models.UniqueConstraint(fields=["company", "version"], name="tenants_approvalpolicy_version"),
            models.UniqueConstraint(
                fields=["company"], condition=Q(active=True), name="tenants_approvalpolicy_one_active"
            ),
        ]

    def __str__(self) -> str:
        return f"approval policy v{self.version}"


class CaseState(models.TextChoices):
    """Where a case stands; `tenants.casework.CASE_EDGES` says what may follow.

    open: somebody is to decide; sent_back: the requester is to answer; approved, rejected: by its steps; withdrawn: by
    the requester; expired: nobody decided in time.
    """

    OPEN = casework.OPEN, _("Open")
    SENT_BACK = casework.SENT_BACK, _("Sent back")
    APPROVED = casework.APPROVED, _("Approved")
    REJECTED = casework.REJECTED, _("Rejected")
    WITHDRAWN = casework.WITHDRAWN, _("Withdrawn")
    EXPIRED = casework.EXPIRED, _("Expired")


class Case(models.Model):
    """A request going through its approval steps. The subject's app registers its handler in `core.hooks`.

    A material amendment begins a new `round`, with steps of its own. `fingerprint` is the handler's, of what is
    asked for now; `granted` are the facts as they are after an approver approved less. The times below `opened_at`
    are those of `casework.Timer`.
    """

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
    granted = models.JSONField(null=True, blank=True)
    fingerprint = models.CharField(max_length=64, blank=True, default="", db_default="")
    round = models.PositiveSmallIntegerField(default=1, db_default=1)
    state = models.CharField(max_length=16, choices=CaseState.choices, default=CaseState.OPEN)
    opened_at = models.DateTimeField(db_default=YardNow(), editable=False)
    decided_at = models.DateTimeField(null=True, blank=True)
    remind_at = models.DateTimeField(null=True, blank=True)
    due_at = models.DateTimeField(null=True, blank=True)
    escalated_at = models.DateTimeField(null=True, blank=True)
    notice_at = models.DateTimeField(null=True, blank=True)
    noticed_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["opened_at"]
        indexes = [
            models.Index(fields=["company", "state", "opened_at"], name="tenants_case_inbox"),
            models.Index(fields=["subject_type", "subject_id"], name="tenants_case_subject"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["subject_type", "subject_id"],
                condition=Q(state__in=casework.LIVE),
                name="tenants_case_one_open",
            ),
            models.CheckConstraint(condition=Q(state__in=CaseState.values), name="tenants_case_state"),
            models.CheckConstraint(
                condition=Q(state__in=casework.LIVE, decided_at__isnull=True)
                | ~Q(state__in=casework.LIVE) & Q(decided_at__isnull=False),
                name="tenants_case_decided",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.public_id} {self.subject_label}"


class StepState(models.TextChoices):
    """pending → approved | rejected | skipped (no longer needed); approved → void (what is asked for has changed)."""

    PENDING = casework.PENDING, _("Pending")
    APPROVED = casework.APPROVED, _("Approved")
    REJECTED = casework.REJECTED, _("Rejected")
    SKIPPED = casework.SKIPPED, _("Skipped")
    VOID = casework.VOID, _("Void")


_UNDECIDED = (StepState.PENDING, StepState.SKIPPED)


class CaseStep(models.Model):
    """One decision that a case needs: of somebody with `role` on `team`, of one of `group`, or of a platform admin
    (neither). Steps of the same `order` are a stage, of which all or any are needed.

    `up_…` may decide as well since `escalated_at`. `requester` repeats the case's, so that the database itself refuses
    a decision on one's own request, in one's own name or in another's.
    """

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    case = models.ForeignKey(Case, on_delete=models.CASCADE, related_name="steps")
    round = models.PositiveSmallIntegerField(default=1, db_default=1)
    order = models.PositiveSmallIntegerField()
    position = models.PositiveSmallIntegerField(default=1, db_default=1)
    needs = models.CharField(max_length=3, default=casework.ALL, db_default=casework.ALL)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    role = models.CharField(max_length=16)
    group = models.ForeignKey(
        ApproverGroup, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    up_team = models.ForeignKey(Team, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    up_role = models.CharField(max_length=16, blank=True, default="", db_default="")
    up_group = models.ForeignKey(
        ApproverGroup, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    escalated_at = models.DateTimeField(null=True, blank=True)
    requester = models.ForeignKey("core.User", on_delete=models.PROTECT, related_name="+")
    state = models.CharField(max_length=16, choices=StepState.choices, default=StepState.PENDING)
    decided_by = models.ForeignKey(
        "core.User", on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    on_behalf_of = models.ForeignKey(
        "core.User", on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    decided_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=2000, blank=True, default="")

    class Meta:
        ordering = ["round", "order", "position"]
        constraints = [
            models.UniqueConstraint(
                fields=["case", "round", "order", "position"], name="tenants_casestep_order"
            ),
            models.UniqueConstraint(
                fields=["case", "round", "decided_by"],
                name="tenants_casestep_other_people",
                violation_error_message=_("Each step of a request is decided by another person."),
            ),
            models.CheckConstraint(condition=Q(state__in=StepState.values), name="tenants_casestep_state"),
            models.CheckConstraint(
                condition=Q(decided_by__isnull=True) | ~Q(decided_by=F("requester")),
                name="tenants_casestep_not_own",
                violation_error_message=_("Nobody decides on their own request. Ask another manager."),
            ),
            models.CheckConstraint(
                condition=Q(on_behalf_of__isnull=True)
                | Q(decided_by__isnull=False)
                & ~Q(on_behalf_of=F("requester"))
                & ~Q(on_behalf_of=F("decided_by")),
                name="tenants_casestep_not_for_own",
                violation_error_message=_(
                    "Nobody decides on their own request, nor lets somebody else do so."
                ),
            ),
            models.CheckConstraint(
                condition=Q(state__in=_UNDECIDED, decided_by__isnull=True)
                | ~Q(state__in=_UNDECIDED) & Q(decided_by__isnull=False),
                name="tenants_casestep_decided",
            ),
        ]

    def __str__(self) -> str:
        return f"step {self.order} of {self.case_id}"


class CaseMessage(models.Model):
    """What was said about a case, as its thread shows it: questions, answers, what was changed. Never changes."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    case = models.ForeignKey(Case, on_delete=models.CASCADE, related_name="messages")
    round = models.PositiveSmallIntegerField()
    act = models.CharField(max_length=16)  # of `casework.MOVES`, or escalate, notice
    # no author: GPU Yard itself
    author = models.ForeignKey("core.User", on_delete=models.PROTECT, null=True, related_name="+")
    on_behalf_of = models.ForeignKey("core.User", on_delete=models.PROTECT, null=True, related_name="+")
    text = models.CharField(max_length=2000, blank=True, default="")
    # what differs since: [{"name", "old", "new"}]
    changes = models.JSONField(default=list)
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)

    class Meta:
        ordering = ["created_at", "id"]

    def __str__(self) -> str:
        return f"{self.act} on {self.case_id}"
