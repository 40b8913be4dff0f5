"""Who decides besides those with a role: named groups, and people who stand in for others."""

from __future__ import annotations

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import ArrayField, DateTimeRangeField, RangeOperators
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from gpuyard.core import ids
from gpuyard.core.clock import YardNow
from tenants.models.teams import Team


class ApproverGroup(models.Model):
    """A named list of people of a company. Rules name it, so the name never changes."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    company = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="approver_groups")
    name = models.CharField(max_length=80)
    people = models.ManyToManyField("core.User", related_name="approver_groups")
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(
                fields=["company", "name"],
                name="tenants_approvergroup_name",
                violation_error_message=_("A group of this name exists. Choose another name."),
            )
        ]

    def __str__(self) -> str:
        return self.name


class Delegation(models.Model):
    """Somebody decides for `person` while `span` lasts: on cases of these kinds and teams (none named: on all).

    It gives what the person may decide by role or group, never what others delegated to them.
    """

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    company = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    person = models.ForeignKey("core.User", on_delete=models.PROTECT, related_name="delegations")
    delegate = models.ForeignKey("core.User", on_delete=models.PROTECT, related_name="delegated")
    span = DateTimeRangeField()
    kinds = ArrayField(models.CharField(max_length=40), default=list, blank=True)
    teams = ArrayField(models.UUIDField(), default=list, blank=True)
    reason = models.CharField(max_length=400, blank=True, default="")
    created_by = models.ForeignKey("core.User", on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.CheckConstraint(
                condition=~Q(person=F("delegate")),
                name="tenants_delegation_other",
                violation_error_message=_("Nobody stands in for themselves. Choose somebody else."),
            ),
            models.CheckConstraint(
                condition=Q(span__isempty=False, span__lower_inf=False, span__upper_inf=False),
                name="tenants_delegation_span",
            ),
            ExclusionConstraint(
                name="tenants_delegation_once",
                expressions=[
                    ("person", RangeOperators.EQUAL),
                    ("company", RangeOperators.EQUAL),
                    ("span", RangeOperators.OVERLAPS),
                ],
                condition=Q(revoked_at__isnull=True),
                violation_error_message=_("Somebody stands in for this person then already."),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.delegate} for {self.person}"
