"""Companies and teams, roles, quotas, tokens, approval policies and cases."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from gpuyard.core import ids
from gpuyard.core.clock import YardNow


class Team(models.Model):
    """A node of a company's tree. A company is a root team: it owns currency and time zone.

    `path` holds the ids from the root to the team itself, so that `path @> {t}` is "t or below it".
    """

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    public_id = models.CharField(max_length=16, unique=True, default=ids.team_public_id, editable=False)
    company = models.ForeignKey("self", on_delete=models.PROTECT, related_name="+")
    parent = models.ForeignKey(
        "self", on_delete=models.PROTECT, null=True, blank=True, related_name="children"
    )
    path = ArrayField(models.UUIDField())
    name = models.CharField(max_length=80)
    currency = models.CharField(max_length=3, blank=True, default="")
    time_zone = models.CharField(max_length=64, blank=True, default="")
    billing_account = models.CharField(max_length=80, blank=True, default="")
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)
    archived_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["name"]
        indexes = [GinIndex(fields=["path"], name="tenants_team_path")]
        constraints = [
            models.UniqueConstraint(
                fields=["parent", "name"],
                name="tenants_team_name",
                nulls_distinct=False,
                violation_error_message=_("A team of this name exists there. Choose another name."),
            ),
            models.CheckConstraint(
                condition=Q(parent__isnull=True, company=F("id")) & ~Q(currency="") & ~Q(time_zone="")
                | Q(parent__isnull=False, currency="", time_zone="") & ~Q(company=F("id")),
                name="tenants_team_company",
                violation_error_message=_("A company owns currency and time zone; its teams do not."),
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Role(models.TextChoices):
    MEMBER = "member", _("Member")
    MANAGER = "manager", _("Manager")
    FINANCE = "finance", _("Finance")
    AUDITOR = "auditor", _("Auditor")


class Membership(models.Model):
    """A role of a person on a team and below it."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    user = models.ForeignKey("core.User", on_delete=models.CASCADE, related_name="memberships")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role.choices)
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "team", "role"], name="tenants_membership_once")
        ]

    def __str__(self) -> str:
        return f"{self.user} is {self.role} of {self.team}"


class PoolDedication(models.Model):
    """A pool that serves one subtree only."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    pool = models.ForeignKey("fleet.Pool", on_delete=models.CASCADE, related_name="+")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="dedications")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["pool", "team"], name="tenants_pooldedication_once")]

    def __str__(self) -> str:
        return f"{self.pool} for {self.team}"


class Quota(models.Model):
    """What a team may use of a tier, in units of 1/7000 GPU. No tier: all tiers together, a limit only.

    No row means nothing guaranteed and no limit of its own. That children's guarantees fit into the parent's
    is a trigger (migration 0002).
    """

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="quotas")
    tier = models.ForeignKey("fleet.Tier", on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    guaranteed = models.PositiveBigIntegerField(default=0)
    limit = models.PositiveBigIntegerField(null=True, blank=True)
    lend_limit = models.PositiveBigIntegerField(null=True, blank=True)
    weight = models.PositiveIntegerField(default=1)
    updated_at = models.DateTimeField(db_default=YardNow())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["team", "tier"], name="tenants_quota_once", nulls_distinct=False),
            models.CheckConstraint(
                condition=Q(limit__isnull=True) | Q(limit__gte=F("guaranteed")),
                name="tenants_quota_limit",
                violation_error_message=_(
                    "The limit is below the guarantee. Raise it or lower the guarantee."
                ),
            ),
            models.CheckConstraint(
                condition=Q(tier__isnull=False) | Q(guaranteed=0, lend_limit__isnull=True),
                name="tenants_quota_total",
                violation_error_message=_("For all tiers together there is a limit only."),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.team} {self.tier or 'all tiers'}"


class ApiToken(models.Model):
    """A personal token of the REST API, stored as SHA-256 of 256 random bits."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    user = models.ForeignKey("core.User", on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=16)
    digest = models.CharField(max_length=64, unique=True)
    scopes = ArrayField(models.CharField(max_length=40), default=list)
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


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
