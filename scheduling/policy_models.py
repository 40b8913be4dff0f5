"""Rules that change while everything runs: the scheduling policy, rights to bands, and past use."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from gpuyard.core import ids
from gpuyard.core.clock import YardNow

HIGHEST_BAND = 9


class SchedulingPolicyVersion(models.Model):
    """A version of the scheduling policy (`scheduling.policy_document`). Only appended; the newest counts."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    number = models.PositiveIntegerField(unique=True)
    document = models.JSONField()
    author = models.ForeignKey("core.User", on_delete=models.PROTECT, related_name="+")
    note = models.CharField(max_length=400)
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)

    class Meta:
        ordering = ["-number"]

    def __str__(self) -> str:
        return f"scheduling policy v{self.number}"


class BandGrant(models.Model):
    """A right, given by an admin: a team and all below it may hold up to `cap` units of critical work.

    It covers its band and those below. It ends by being taken back, or by itself at `expires_at`.
    """

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    team = models.ForeignKey("tenants.Team", on_delete=models.PROTECT, related_name="band_grants")
    band = models.PositiveSmallIntegerField()
    cap = models.PositiveBigIntegerField()
    reason = models.CharField(max_length=400)
    granted_by = models.ForeignKey("core.User", on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["team", "band"],
                condition=Q(revoked_at__isnull=True),
                name="scheduling_bandgrant_one",
                violation_error_message=_("The team has this right already. Take the old one back first."),
            ),
            models.CheckConstraint(
                condition=Q(band__gte=1, band__lte=HIGHEST_BAND), name="scheduling_bandgrant_band"
            ),
            models.CheckConstraint(condition=Q(cap__gte=1), name="scheduling_bandgrant_cap"),
            models.CheckConstraint(
                condition=Q(expires_at__isnull=True) | Q(expires_at__gt=F("created_at")),
                name="scheduling_bandgrant_expiry",
            ),
        ]

    def __str__(self) -> str:
        return f"band {self.band} for {self.team}"


class TeamUsage(models.Model):
    """What ended allocations of a team used of a tier, in unit-seconds decayed to `as_of` (`scheduling.decay`)."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    team = models.ForeignKey("tenants.Team", on_delete=models.PROTECT, related_name="+")
    tier = models.ForeignKey("fleet.Tier", on_delete=models.PROTECT, related_name="+")
    unit_s = models.FloatField()
    as_of = models.DateTimeField()
    half_life_s = models.PositiveIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "tier"], name="scheduling_teamusage_once")]

    def __str__(self) -> str:
        return f"{self.team_id} {self.tier_id}: {self.unit_s}"


class UsagePending(models.Model):
    """An ended allocation that is in no `TeamUsage` yet. A trigger of the ledger writes it (migration)."""

    allocation_id = models.UUIDField(primary_key=True)

    def __str__(self) -> str:
        return str(self.allocation_id)
