"""What a team may use."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from gpuyard.core import ids
from gpuyard.core.clock import YardNow
from tenants.models.teams import Team


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
