"""What a team may use, since when; and what was asked for beyond it."""

from __future__ import annotations

from datetime import datetime

from django.db import models
from django.db.models import F, OuterRef, Q, Subquery, Sum, Value
from django.db.models.functions import Cast, Coalesce
from django.utils.translation import gettext_lazy as _

from gpuyard.core import ids
from gpuyard.core.clock import YardNow
from tenants.models.teams import Team


class AskState(models.TextChoices):
    """asked → approved | rejected | withdrawn | expired; an approved grant may be revoked before its end."""

    ASKED = "asked", _("Asked")
    APPROVED = "approved", _("Approved")
    REJECTED = "rejected", _("Rejected")
    WITHDRAWN = "withdrawn", _("Withdrawn")
    EXPIRED = "expired", _("Expired")
    REVOKED = "revoked", _("Revoked")


ASK_EDGES = {
    "asked": frozenset({"approved", "rejected", "withdrawn", "expired"}),
    "approved": frozenset({"revoked"}),
}


class QuotaAsk(models.Model):
    """What a request for quota has whatever it asks for. The team's parent shares out, so it decides."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    public_id = models.CharField(max_length=16, unique=True, default=ids.quota_public_id, editable=False)
    company = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="%(class)ss")
    tier = models.ForeignKey("fleet.Tier", on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    requester = models.ForeignKey("core.User", on_delete=models.PROTECT, related_name="+")
    reason = models.CharField(max_length=2000)
    state = models.CharField(max_length=16, choices=AskState.choices, default=AskState.ASKED)
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True


class Grant(QuotaAsk):
    """A guarantee on top of the team's own, for a time. It counts from `starts_at` until `ends_at`, once approved.

    It is taken from what the parent has not shared out in that time (migration 0006). A renewal is another grant that
    begins where this one ends.
    """

    units = models.PositiveBigIntegerField()
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    renews = models.ForeignKey(
        "self", on_delete=models.PROTECT, null=True, blank=True, related_name="renewals"
    )

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [models.Index(fields=["team", "tier", "state"], name="tenants_grant_team")]
        constraints = [
            models.CheckConstraint(condition=Q(state__in=AskState.values), name="tenants_grant_state"),
            models.CheckConstraint(
                condition=Q(tier__isnull=False, units__gt=0), name="tenants_grant_something"
            ),
            models.CheckConstraint(
                condition=Q(ends_at__gte=F("starts_at")),
                name="tenants_grant_span",
                violation_error_message=_("It ends before it starts. Give a later end."),
            ),
            models.UniqueConstraint(
                fields=["renews"],
                condition=Q(state__in=(AskState.ASKED, AskState.APPROVED)),
                name="tenants_grant_one_renewal",
                violation_error_message=_("This grant is being renewed already."),
            ),
        ]

    def __str__(self) -> str:
        return f"grant {self.public_id}"


class QuotaChange(QuotaAsk):
    """Another quota for a team, asked for. No `starts_at`: as soon as it is approved."""

    guaranteed = models.PositiveBigIntegerField(default=0)
    limit = models.PositiveBigIntegerField(null=True, blank=True)
    lend_limit = models.PositiveBigIntegerField(null=True, blank=True)
    weight = models.PositiveIntegerField(default=1)
    starts_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.CheckConstraint(condition=Q(state__in=AskState.values), name="tenants_quotachange_state"),
            models.UniqueConstraint(
                fields=["team", "tier"],
                condition=Q(state=AskState.ASKED),
                name="tenants_quotachange_one_open",
                nulls_distinct=False,
                violation_error_message=_("A change of this quota is being asked for already."),
            ),
        ]

    def __str__(self) -> str:
        return f"quota change {self.public_id}"


class QuotaRows(models.QuerySet["Quota"]):
    """Versions of quotas."""

    def in_force(self, at: datetime | None = None) -> QuotaRows:
        """The version of each quota that counts now (or then), with what grants add to it: see `Quota.promised`."""
        moment = YardNow() if at is None else Value(at, output_field=models.DateTimeField())
        begun = Quota.objects.filter(starts_at__lte=moment).order_by("team_id", "tier_id", "-starts_at")
        added = Grant.objects.filter(
            team_id=OuterRef("team_id"),
            tier_id=OuterRef("tier_id"),
            state=AskState.APPROVED,
            starts_at__lte=moment,
            ends_at__gt=moment,
        )
        units = added.order_by().values("team_id").annotate(sum=Sum("units")).values("sum")
        whole = Cast(Coalesce(Subquery(units), Value(0)), models.BigIntegerField())
        latest = begun.distinct("team_id", "tier_id").values("pk")
        return self.filter(pk__in=latest).annotate(in_grants=whole)


class Quota(models.Model):
    """What a team may use of a tier from `starts_at` on, in units of 1/7000 GPU, until the next version begins.

    No tier: all tiers together, a limit only. No row means nothing guaranteed and no limit of its own. Versions are
    added, never edited; one that lies ahead takes effect by the clock alone. That the children's guarantees and
    grants fit into the parent's at every moment from now on is a trigger (migration 0006).
    """

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="quotas")
    tier = models.ForeignKey("fleet.Tier", on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    guaranteed = models.PositiveBigIntegerField(default=0)
    limit = models.PositiveBigIntegerField(null=True, blank=True)
    lend_limit = models.PositiveBigIntegerField(null=True, blank=True)
    weight = models.PositiveIntegerField(default=1)
    starts_at = models.DateTimeField(db_default=YardNow())
    set_by = models.ForeignKey("core.User", on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    reason = models.CharField(max_length=2000, blank=True, default="", db_default="")
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)

    objects = QuotaRows.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["team", "tier", "starts_at"], name="tenants_quota_version", nulls_distinct=False
            ),
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

    @property
    def granted(self) -> int:
        """What the grants that count now add; known of rows that `in_force` read."""
        return int(getattr(self, "in_grants", 0))

    @property
    def promised(self) -> int:
        """What is guaranteed, grants included."""
        return self.guaranteed + self.granted

    @property
    def cap(self) -> int | None:
        """The limit; never below what is promised, or a grant could not be used."""
        return None if self.limit is None else max(self.limit, self.promised)
