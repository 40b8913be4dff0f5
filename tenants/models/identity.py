"""What people and programs sign in with."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from gpuyard.core import ids
from gpuyard.core.clock import YardNow
from tenants.models.teams import Team


class ApiToken(models.Model):
    """A token of the REST API, stored as SHA-256 of 256 random bits. No networks: it works from anywhere."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    user = models.ForeignKey("core.User", on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=16)
    digest = models.CharField(max_length=64, unique=True)
    scopes = ArrayField(models.CharField(max_length=40), default=list)
    networks = ArrayField(models.CharField(max_length=43), default=list)
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    last_used_from = models.CharField(max_length=45, blank=True, default="")

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class ServiceAccount(models.Model):
    """A user that is a program: it belongs to a team, whose managers make and close it."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    user = models.OneToOneField("core.User", on_delete=models.PROTECT, related_name="service_account")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="service_accounts")
    name = models.CharField(max_length=40)
    created_by = models.ForeignKey("core.User", on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)
    disabled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["team", "name"],
                condition=Q(disabled_at__isnull=True),
                name="tenants_serviceaccount_name",
                violation_error_message=_("The team has a service account of this name."),
            )
        ]

    def __str__(self) -> str:
        return self.name


class SignIn(models.Model):
    """A browser session of a person: since when, from where, with what. Revoked: its session is gone."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    user = models.ForeignKey("core.User", on_delete=models.CASCADE, related_name="sign_ins")
    session_key = models.CharField(max_length=40, unique=True)
    address = models.CharField(max_length=45, blank=True, default="")
    agent = models.CharField(max_length=200, blank=True, default="")
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)
    seen_at = models.DateTimeField(db_default=YardNow())

    class Meta:
        ordering = ["-seen_at"]

    def __str__(self) -> str:
        return f"{self.user} from {self.address}"


class Guessing(models.Model):
    """How often a sign-in was tried in vain since a moment: for a name, an address, or a name from an address."""

    key = models.CharField(max_length=80, primary_key=True)
    since = models.DateTimeField()
    count = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"{self.key}: {self.count}"
