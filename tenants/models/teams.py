"""Companies and teams, and who has which role there."""

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
