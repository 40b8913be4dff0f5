"""What people and programs sign in with."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models

from gpuyard.core import ids
from gpuyard.core.clock import YardNow


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
