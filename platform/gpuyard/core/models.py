"""What every app may use: the user, the idempotency key, and the clock's offset for tests."""

from __future__ import annotations

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.utils.translation import gettext_lazy as _

from gpuyard.core import ids
from gpuyard.core.clock import YardNow


class UserKind(models.TextChoices):
    PERSON = "person", _("Person")
    SERVICE = "service", _("Service account")


class User(AbstractUser):
    """A person or a service account. Rights come from memberships; only `is_platform_admin` is kept here."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    public_id = models.CharField(max_length=16, unique=True, default=ids.user_public_id, editable=False)
    time_zone = models.CharField(max_length=64, blank=True, default="")
    kind = models.CharField(max_length=16, choices=UserKind.choices, default=UserKind.PERSON)
    is_platform_admin = models.BooleanField(default=False)

    def __str__(self) -> str:
        return self.username


class IdempotencyKey(models.Model):
    """The stored answer to a POST, so that a repeated one changes nothing.

    `status` is NULL while the first request is still being worked on.
    """

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=200)
    method = models.CharField(max_length=10)
    path = models.CharField(max_length=400)
    request_hash = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(null=True)
    body = models.JSONField(null=True)
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="core_idempotencykey_once")]

    def __str__(self) -> str:
        return self.key


class ClockOffset(models.Model):
    """How far `yard_now()` runs ahead of the database's clock. One row; only tests, as owner, move it."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    offset_us = models.BigIntegerField(default=0)

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="core_clockoffset_one_row")]

    def __str__(self) -> str:
        return f"{self.offset_us} µs"
