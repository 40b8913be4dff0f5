"""Rates, usage lines, charges and liens.

Lines store whole unit-microseconds (units of 1/7000 GPU × µs) and the rates that applied; money is their product,
divided by `gpuyard.core.money.UNIT_US_PER_GPU_HOUR` and rounded once, where somebody reads it.
"""

from __future__ import annotations

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import DateTimeRangeField, RangeOperators
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from gpuyard.core import ids
from gpuyard.core.clock import YardNow


class CostRate(models.Model):
    """What one GPU-hour of a tier costs the platform, the same for every team."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    tier = models.ForeignKey("fleet.Tier", on_delete=models.PROTECT, related_name="cost_rates")
    rate = models.DecimalField(max_digits=14, decimal_places=6)
    span = DateTimeRangeField()
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)

    class Meta:
        constraints = [
            ExclusionConstraint(
                name="billing_costrate_once",
                expressions=[("tier", RangeOperators.EQUAL), ("span", RangeOperators.OVERLAPS)],
                violation_error_message=_(
                    "Another cost rate of this tier applies in that time. End it first."
                ),
            ),
            models.CheckConstraint(condition=Q(rate__gte=0), name="billing_costrate_rate"),
        ]

    def __str__(self) -> str:
        return f"{self.tier} {self.rate}/h"


class ServiceClass(models.TextChoices):
    ANY = "any", _("Any class")
    GUARANTEED = "guaranteed", _("Guaranteed")
    BORROWED = "borrowed", _("Borrowed")


class PriceRate(models.Model):
    """What a team pays for one GPU-hour of a tier. The most specific rate wins: nearest team, then kind, then class.

    `team` is the company or a team of it (its subtree); `kind` and `service_class` "any" match all.
    """

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    team = models.ForeignKey("tenants.Team", on_delete=models.PROTECT, related_name="price_rates")
    tier = models.ForeignKey("fleet.Tier", on_delete=models.PROTECT, related_name="price_rates")
    kind = models.CharField(max_length=16, default="any")
    service_class = models.CharField(max_length=16, choices=ServiceClass.choices, default=ServiceClass.ANY)
    rate = models.DecimalField(max_digits=14, decimal_places=6)
    span = DateTimeRangeField()
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)

    class Meta:
        constraints = [
            ExclusionConstraint(
                name="billing_pricerate_once",
                expressions=[
                    ("team", RangeOperators.EQUAL),
                    ("tier", RangeOperators.EQUAL),
                    ("kind", RangeOperators.EQUAL),
                    ("service_class", RangeOperators.EQUAL),
                    ("span", RangeOperators.OVERLAPS),
                ],
                violation_error_message=_(
                    "Another price of this team, tier, kind and class applies then. End it first."
                ),
            ),
            models.CheckConstraint(condition=Q(rate__gte=0), name="billing_pricerate_rate"),
        ]

    def __str__(self) -> str:
        return f"{self.team} {self.tier} {self.rate}/h"


class Bucket(models.TextChoices):
    """Where a GPU's time goes. The first four are allocated (charged); all together are the capacity."""

    ACTIVE = "active", _("Active")
    IDLE_HELD = "idle_held", _("Held idle")
    UNKNOWN = "unknown", _("Unknown")
    TRANSITION = "transition", _("Starting or stopping")
    RESERVED = "reserved", _("Reserved for claims")
    UNALLOCATED = "unallocated", _("Unallocated")
    MAINTENANCE = "maintenance", _("Maintenance")
    DOWN = "down", _("Down")


ALLOCATED = (Bucket.ACTIVE, Bucket.IDLE_HELD, Bucket.UNKNOWN, Bucket.TRANSITION)


class MeterMark(models.Model):
    """Up to when a GPU has been metered. Moved by a conditional update together with its lines."""

    gpu = models.OneToOneField(
        "fleet.Gpu", on_delete=models.PROTECT, primary_key=True, related_name="meter_mark"
    )
    metered_until = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.gpu_id} until {self.metered_until}"


class Charge(models.Model):
    """What a team owes for one workload, tier, day and price, as one metering run found it. Only ever added to.

    A correction is a reversal (`unit_us` negative, `corrects` set) and a new row.
    """

    class ChargeKind(models.TextChoices):
        USAGE = "usage", _("Usage")
        REVERSAL = "reversal", _("Reversal")
        CORRECTION = "correction", _("Correction")

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    kind = models.CharField(max_length=16, choices=ChargeKind.choices, default=ChargeKind.USAGE)
    company = models.ForeignKey("tenants.Team", on_delete=models.PROTECT, related_name="+")
    team = models.ForeignKey("tenants.Team", on_delete=models.PROTECT, related_name="charges")
    workload = models.ForeignKey("scheduling.Workload", on_delete=models.PROTECT, related_name="charges")
    tier = models.ForeignKey("fleet.Tier", on_delete=models.PROTECT, related_name="+")
    day = models.DateField()  # in the company's time zone
    unit_us = models.BigIntegerField()
    price_rate = models.DecimalField(max_digits=14, decimal_places=6)
    currency = models.CharField(max_length=3)
    corrects = models.ForeignKey("self", on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)

    class Meta:
        indexes = [models.Index(fields=["company", "day"], name="billing_charge_day")]
        constraints = [
            models.CheckConstraint(
                condition=Q(kind="usage", unit_us__gt=0, corrects__isnull=True)
                | Q(kind="reversal", unit_us__lt=0, corrects__isnull=False)
                | Q(kind="correction", unit_us__gt=0, corrects__isnull=False),
                name="billing_charge_kind",
            ),
            models.UniqueConstraint(
                fields=["corrects"], condition=Q(kind="reversal"), name="billing_charge_reversed_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.team_id} {self.day} {self.unit_us}"


class UsageLine(models.Model):
    """One GPU's time of one bucket inside [starts_at, ends_at). Only ever added to.

    A segment never crosses an hour (UTC), the company's local midnight or a change of a rate. `unit_us` sums the
    microseconds × units that fell into this bucket within the segment, so several buckets may share a segment.
    """

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    gpu = models.ForeignKey("fleet.Gpu", on_delete=models.PROTECT, related_name="usage_lines")
    tier = models.ForeignKey("fleet.Tier", on_delete=models.PROTECT, related_name="+")
    bucket = models.CharField(max_length=16, choices=Bucket.choices)
    allocation = models.ForeignKey(
        "scheduling.Allocation", on_delete=models.PROTECT, null=True, blank=True, related_name="usage_lines"
    )
    company = models.ForeignKey(
        "tenants.Team", on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    team = models.ForeignKey(
        "tenants.Team", on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    workload = models.ForeignKey(
        "scheduling.Workload", on_delete=models.PROTECT, null=True, blank=True, related_name="usage_lines"
    )
    charge = models.ForeignKey(Charge, on_delete=models.PROTECT, null=True, blank=True, related_name="lines")
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    hour = models.DateTimeField()
    day = models.DateField()  # in the company's time zone; UTC where no company is concerned
    unit_us = models.BigIntegerField()
    cost_rate = models.DecimalField(max_digits=14, decimal_places=6)
    price_rate = models.DecimalField(max_digits=14, decimal_places=6, default=0)
    currency = models.CharField(max_length=3)

    class Meta:
        indexes = [
            models.Index(fields=["company", "day"], name="billing_usageline_day"),
            models.Index(fields=["hour", "tier"], name="billing_usageline_hour"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["gpu", "allocation", "bucket", "starts_at"],
                nulls_distinct=False,
                name="billing_usageline_once",
            ),
            models.CheckConstraint(condition=Q(starts_at__lt=F("ends_at")), name="billing_usageline_span"),
            models.CheckConstraint(condition=Q(unit_us__gt=0), name="billing_usageline_unit_us"),
            models.CheckConstraint(
                condition=Q(
                    bucket__in=["active", "idle_held", "unknown", "transition"],
                    allocation__isnull=False,
                    company__isnull=False,
                    team__isnull=False,
                    workload__isnull=False,
                    charge__isnull=False,
                )
                | Q(
                    bucket__in=["reserved", "unallocated", "maintenance", "down"],
                    charge__isnull=True,
                    price_rate=0,
                ),
                name="billing_usageline_owner",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.gpu_id} {self.bucket} {self.starts_at}"


class Lien(models.Model):
    """Budget held by an approved request until usage consumes or frees it. Its logic comes with budgets."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    company = models.ForeignKey("tenants.Team", on_delete=models.PROTECT, related_name="+")
    team = models.ForeignKey("tenants.Team", on_delete=models.PROTECT, related_name="liens")
    workload = models.OneToOneField("scheduling.Workload", on_delete=models.PROTECT, related_name="lien")
    amount = models.DecimalField(max_digits=18, decimal_places=6)
    consumed = models.DecimalField(max_digits=18, decimal_places=6, default=0)
    currency = models.CharField(max_length=3)
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)
    freed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(amount__gte=0, consumed__gte=0, consumed__lte=F("amount")),
                name="billing_lien_amount",
            )
        ]

    def __str__(self) -> str:
        return f"lien {self.amount} {self.currency}"
