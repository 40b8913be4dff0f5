"""What people are told, how each wants it, and every sending with its outcome.

    Notification ─(routed)→ Delivery, one for each target ─(bundled when due)→ Message ─(sent)→ Attempt

This app knows no teams: it is below them. It stores ids, and the apps above prove who may see what.
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from gpuyard.core import ids
from gpuyard.core.clock import YardNow


class Notification(models.Model):
    """One piece of news for one person; without a user, for the endpoints of the teams in `team_path`.

    The same is told once: `dedupe_key` is unique for each person. `about` names the thing it speaks of ("case:…").
    """

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    user = models.ForeignKey("core.User", on_delete=models.CASCADE, null=True, related_name="notifications")
    event = models.CharField(max_length=60)
    subject = models.CharField(max_length=200)
    facts = models.JSONField(default=list)  # [[label, value], …]
    url = models.CharField(max_length=300, default="", blank=True)
    about = models.CharField(max_length=80, default="", blank=True)
    dedupe_key = models.CharField(max_length=200)
    company_id = models.UUIDField(null=True)
    team_path = ArrayField(models.UUIDField(), default=list)
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)
    routed_at = models.DateTimeField(null=True)
    # Shown in the person's list until routing finds that they do not want it there.
    is_shown = models.BooleanField(default=True)
    read_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["user", "dedupe_key"], nulls_distinct=False, name="notify_notification_once"
            ),
        ]
        indexes = [
            models.Index(fields=["user", "-created_at"], name="notify_notification_list"),
            models.Index(
                fields=["user"],
                condition=Q(is_shown=True, read_at__isnull=True),
                name="notify_notification_unread",
            ),
            models.Index(fields=["id"], condition=Q(routed_at__isnull=True), name="notify_notification_new"),
            models.Index(
                fields=["about"], condition=Q(read_at__isnull=True), name="notify_notification_about"
            ),
        ]

    def __str__(self) -> str:
        return self.subject

    @property
    def facts_named(self) -> list[dict[str, str]]:
        return [{"label": label, "value": value} for label, value in self.facts]


class Choice(models.Model):
    """What a person chose for one event and one channel. No row: as the event is registered."""

    user = models.ForeignKey("core.User", on_delete=models.CASCADE, related_name="+")
    event = models.CharField(max_length=60)
    channel = models.CharField(max_length=8)
    is_on = models.BooleanField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "event", "channel"], name="notify_choice_once")
        ]

    def __str__(self) -> str:
        return f"{self.event} {self.channel}: {self.is_on}"


class Pace(models.TextChoices):
    """When what is not urgent is mailed."""

    NOW = "now", _("At once")
    HOURLY = "hourly", _("Every hour")
    DAILY = "daily", _("Once a day")


class Rhythm(models.Model):
    """A person's pace of mails; the hour is of the time zone they chose it in. No row: at once."""

    user = models.OneToOneField("core.User", on_delete=models.CASCADE, primary_key=True, related_name="+")
    pace = models.CharField(max_length=8, choices=Pace.choices, default=Pace.NOW)
    hour = models.PositiveSmallIntegerField(default=8)
    time_zone = models.CharField(max_length=64, default="UTC")

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(hour__lte=23), name="notify_rhythm_hour")]

    def __str__(self) -> str:
        return self.pace


class EndpointKind(models.TextChoices):
    WEBHOOK = "webhook", _("Signed webhook")
    SLACK = "slack", _("Slack channel")


class Endpoint(models.Model):
    """An address of a program or a channel: of one person, or of a team and all below it.

    Address and secrets are sealed (`notify.vault`): a Slack address is a secret by itself. `events` of a team's: those
    it is told of, empty means all.
    """

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    kind = models.CharField(max_length=8, choices=EndpointKind.choices)
    name = models.CharField(max_length=80)
    user = models.ForeignKey("core.User", on_delete=models.CASCADE, null=True, related_name="endpoints")
    team_id = models.UUIDField(null=True)
    company_id = models.UUIDField(null=True)
    host = models.CharField(max_length=255)
    url_sealed = models.TextField()
    secret_sealed = models.TextField(default="")
    old_secret_sealed = models.TextField(default="")
    old_secret_until = models.DateTimeField(null=True)
    events = ArrayField(models.CharField(max_length=60), default=list)
    created_by = models.ForeignKey("core.User", on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)
    removed_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(user__isnull=False, team_id__isnull=True, company_id__isnull=True)
                | Q(user__isnull=True, team_id__isnull=False, company_id__isnull=False),
                name="notify_endpoint_owner",
            ),
        ]
        indexes = [
            models.Index(
                fields=["team_id"], condition=Q(removed_at__isnull=True), name="notify_endpoint_team"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.host})"


class MessageState(models.TextChoices):
    """queued → sending → sent | queued (again, later) | failed (no try left) | dropped (its target is gone)."""

    QUEUED = "queued", _("Waiting")
    SENDING = "sending", _("Being sent")
    SENT = "sent", _("Sent")
    FAILED = "failed", _("Failed")
    DROPPED = "dropped", _("Dropped")


MESSAGE_EDGES: dict[str, frozenset[str]] = {
    MessageState.QUEUED: frozenset({MessageState.SENDING, MessageState.DROPPED}),
    MessageState.SENDING: frozenset(
        {MessageState.SENT, MessageState.QUEUED, MessageState.FAILED, MessageState.DROPPED}
    ),
    MessageState.FAILED: frozenset({MessageState.QUEUED}),  # by "send again"
}


class Message(models.Model):
    """One mail, or one request to an endpoint, with all that was due for its target then.

    A target has one open message at most: what comes meanwhile goes with the next one, together.
    """

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    user = models.ForeignKey("core.User", on_delete=models.CASCADE, null=True, related_name="+")
    endpoint = models.ForeignKey(Endpoint, on_delete=models.CASCADE, null=True, related_name="messages")
    title = models.CharField(max_length=200)
    item_count = models.PositiveIntegerField()
    state = models.CharField(max_length=8, choices=MessageState.choices, default=MessageState.QUEUED)
    tries = models.PositiveSmallIntegerField(default=0)
    due_at = models.DateTimeField()
    lease_until = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=YardNow(), editable=False)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(user__isnull=False, endpoint__isnull=True)
                | Q(user__isnull=True, endpoint__isnull=False),
                name="notify_message_target",
            ),
            models.UniqueConstraint(
                fields=["user", "endpoint"],
                condition=Q(state__in=["queued", "sending"]),
                nulls_distinct=False,
                name="notify_message_one_open",
            ),
        ]
        indexes = [
            models.Index(
                fields=["due_at"], condition=Q(state__in=["queued", "sending"]), name="notify_message_due"
            ),
            models.Index(fields=["user", "created_at"], name="notify_message_user"),
            models.Index(fields=["endpoint", "created_at"], name="notify_message_endpoint"),
        ]

    def __str__(self) -> str:
        return self.title


class Delivery(models.Model):
    """A piece of news on its way to one target: a person's mail, or an endpoint. Due, it joins a message."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    notification = models.ForeignKey(Notification, on_delete=models.CASCADE, related_name="deliveries")
    user = models.ForeignKey("core.User", on_delete=models.CASCADE, null=True, related_name="+")
    endpoint = models.ForeignKey(Endpoint, on_delete=models.CASCADE, null=True, related_name="+")
    is_urgent = models.BooleanField()
    due_at = models.DateTimeField()
    message = models.ForeignKey(Message, on_delete=models.CASCADE, null=True, related_name="deliveries")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(user__isnull=False, endpoint__isnull=True)
                | Q(user__isnull=True, endpoint__isnull=False),
                name="notify_delivery_target",
            ),
            models.UniqueConstraint(
                fields=["notification", "user", "endpoint"], nulls_distinct=False, name="notify_delivery_once"
            ),
        ]
        indexes = [
            models.Index(fields=["due_at"], condition=Q(message__isnull=True), name="notify_delivery_due"),
        ]

    def __str__(self) -> str:
        return f"delivery of {self.notification_id}"


class Attempt(models.Model):
    """One try to send a message: when, how long it took, how it went. Never a secret, never what was answered."""

    id = models.UUIDField(primary_key=True, default=ids.uuid7, editable=False)
    message = models.ForeignKey(Message, on_delete=models.CASCADE, related_name="attempts")
    at = models.DateTimeField()
    is_sent = models.BooleanField()
    status = models.PositiveSmallIntegerField(null=True)  # of HTTP
    latency_ms = models.PositiveIntegerField()
    error = models.CharField(max_length=200, default="", blank=True)

    class Meta:
        ordering = ["at", "id"]

    def __str__(self) -> str:
        return self.error or "sent"


class Reminder(models.Model):
    """That a moment was reminded of: the row is the claim, so that it happens once however late the job runs."""

    key = models.CharField(max_length=200)
    due_at = models.DateTimeField()
    sent_at = models.DateTimeField(db_default=YardNow(), editable=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["key", "due_at"], name="notify_reminder_once")]

    def __str__(self) -> str:
        return self.key


class Bookmark(models.Model):
    """How far into a company's sealed log people have been told. No company: the platform's log."""

    company_id = models.UUIDField(null=True)
    sequence = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["company_id"], nulls_distinct=False, name="notify_bookmark_once"),
            models.CheckConstraint(condition=Q(sequence__gte=0), name="notify_bookmark_from"),
        ]

    def __str__(self) -> str:
        return f"{self.company_id} {self.sequence}"
