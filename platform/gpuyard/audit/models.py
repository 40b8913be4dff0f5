"""The append-only event log, what was found when it was verified, and the signed witnesses of its length."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from gpuyard.core import ids
from gpuyard.core.clock import YardNow


class Source(models.TextChoices):
    """Through which door the act came."""

    WEB = "web"
    API = "api"
    AGENT = "agent"
    SYSTEM = "system"
    COMMAND = "command"


class Event(models.Model):
    """One act. Written in the transaction of the act, unsealed; the sealer gives it its place in the chain.

    No foreign keys: an event outlives whatever it speaks of. No company: the platform's own chain.
    A trigger allows no change but sealing, once.
    """

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    company_id = models.UUIDField(null=True)
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)
    actor_id = models.UUIDField(null=True)
    actor_label = models.CharField(max_length=200)
    on_behalf_of_label = models.CharField(max_length=200, default="")
    action = models.CharField(max_length=80)
    subject_type = models.CharField(max_length=40)
    subject_id = models.UUIDField(null=True)
    subject_label = models.CharField(max_length=200, default="")
    team_id = models.UUIDField(null=True)  # whose work or rights it was about
    old = models.JSONField(null=True)
    new = models.JSONField(null=True)
    reason = models.CharField(max_length=2000, default="")
    source = models.CharField(max_length=16, choices=Source.choices, default=Source.SYSTEM)
    sequence = models.BigIntegerField(null=True)
    prev = models.CharField(max_length=64, null=True)  # noqa: DJ001 - NULL until sealed, together with sequence
    hash = models.CharField(max_length=64, null=True)  # noqa: DJ001

    class Meta:
        indexes = [
            models.Index(fields=["subject_type", "subject_id", "created_at"], name="audit_event_subject"),
            models.Index(fields=["company_id", "created_at"], name="audit_event_company"),
            models.Index(
                fields=["team_id", "created_at"], condition=Q(team_id__isnull=False), name="audit_event_team"
            ),
            models.Index(
                # in the sealer's order: a long backlog is not sorted anew for each batch
                fields=["company_id", "created_at", "id"],
                condition=Q(sequence__isnull=True),
                name="audit_event_to_seal",
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["company_id", "sequence"],
                condition=Q(sequence__isnull=False),
                nulls_distinct=False,
                name="audit_event_sequence",
            ),
            models.CheckConstraint(
                condition=Q(sequence__isnull=True, prev__isnull=True, hash__isnull=True)
                # a CHECK that is NULL passes: each column is asked for by name
                | Q(sequence__isnull=False, prev__isnull=False, hash__isnull=False)
                & Q(sequence__gt=0, prev__regex="^[0-9a-f]{64}$", hash__regex="^[0-9a-f]{64}$"),
                name="audit_event_sealed_whole",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.subject_label}".strip()


class Verification(models.Model):
    """The outcome of one check of a chain: a witness of how long it was, so that a cut tail is found too."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    company_id = models.UUIDField(null=True)
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)
    sequence = models.BigIntegerField()
    hash = models.CharField(max_length=64)
    findings = models.JSONField(default=list)

    class Meta:
        indexes = [models.Index(fields=["company_id", "-created_at"], name="audit_verification_latest")]

    def __str__(self) -> str:
        return f"verified up to {self.sequence}"


class Checkpoint(models.Model):
    """At this moment the chain ended with this hash: signed, so that a copy kept elsewhere proves it."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    company_id = models.UUIDField(null=True)
    created_at = models.DateTimeField()
    sequence = models.BigIntegerField()
    hash = models.CharField(max_length=64)
    key_id = models.CharField(max_length=16)
    signature = models.CharField(max_length=88)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["company_id", "sequence"], nulls_distinct=False, name="audit_checkpoint_once"
            )
        ]

    def __str__(self) -> str:
        return f"checkpoint at {self.sequence}"


class Denial(models.Model):
    """Refused attempts of one actor on one kind of address within one minute, until they become one event.

    A scanner so writes a row a minute, however fast it is. The only table of the log that shrinks: a row is
    deleted in the transaction that stores its event.
    """

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    company_id = models.UUIDField(null=True)
    actor_id = models.UUIDField(null=True)
    actor_label = models.CharField(max_length=200)
    action = models.CharField(max_length=80)
    source = models.CharField(max_length=16, choices=Source.choices)
    method = models.CharField(max_length=10)
    route = models.CharField(max_length=200)
    status = models.PositiveSmallIntegerField()
    minute = models.DateTimeField()
    count = models.PositiveIntegerField(default=1)
    # of the last of them
    path = models.CharField(max_length=200)
    address = models.CharField(max_length=45, default="")
    code = models.CharField(max_length=80, default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["company_id", "actor_id", "action", "source", "method", "route", "status", "minute"],
                nulls_distinct=False,
                name="audit_denial_once",
            )
        ]

    def __str__(self) -> str:
        return f"{self.count} × {self.method} {self.route}: {self.status}"
