"""What one was told, how one wants to be told, webhooks, and the log of all sendings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpuyard.core.idempotency import idempotent
from gpuyard.core.models import User
from gpuyard.core.rest import (
    Document,
    Flag,
    Input,
    Output,
    PagedView,
    Text,
    Whole,
    actor_of,
    body,
    query,
)
from gpuyard.notify import endpoints as services
from gpuyard.notify.models import Endpoint, EndpointKind, MessageState, Pace
from gpuyard.notify.selectors import notification_list, unread_count
from gpuyard.notify.services import choices_describe, choices_set, notifications_read
from scheduling.api.shapes import TeamRef, UserRef
from tenants.endpoints import (
    endpoint_get,
    endpoint_list,
    message_get,
    message_list,
    team_endpoint_create,
    teams_of,
)
from tenants.selectors import team_get

MOST_IDS = 200


class ReasonIn(Input):
    """`reason` is kept in the log."""

    reason = Text(max_length=400, allow_blank=True, default="")


# --- News ----------------------------------------------------------------------------------------------------


class NoticeFact(Output):
    label = serializers.CharField()  # type: ignore[assignment] # a declared field: the class keeps its own
    value = serializers.CharField()


class NotificationOut(Output):
    """`url` is a path of the pages."""

    id = serializers.UUIDField()
    event = serializers.CharField()
    subject = serializers.CharField()
    facts = NoticeFact(many=True, source="facts_named")
    url = serializers.CharField()
    created_at = serializers.DateTimeField()
    read_at = serializers.DateTimeField(allow_null=True)


class NotificationsView(PagedView):
    """What one was told, newest first."""

    class Filters(Input):
        unread = serializers.BooleanField(default=False)
        event = serializers.CharField(required=False)

    @extend_schema(
        operation_id="notifications_list", parameters=[Filters], responses=NotificationOut(many=True)
    )
    def get(self, request: Request) -> Response:
        asked = query(request, self.Filters, is_paged=True)
        return self.page(request, notification_list(actor_of(request), **asked), NotificationOut)


class NotificationsReadView(APIView):
    """Marks as read: those with these ids, or all."""

    class In(Input):
        ids = serializers.ListField(
            child=serializers.UUIDField(), required=False, min_length=1, max_length=MOST_IDS
        )

    class Out(Output):
        unread = serializers.IntegerField()

    @extend_schema(operation_id="notifications_read", request=In, responses=Out)
    @idempotent
    def post(self, request: Request) -> Response:
        actor = actor_of(request)
        notifications_read(actor=actor, ids=body(request, self.In).get("ids"))
        return Response(self.Out({"unread": unread_count(actor)}).data)


class NotificationSettingsView(APIView):
    """How one is told: the pace of mails, and for each event the channels `app`, `email` and `hook`."""

    class In(Input):
        pace = serializers.ChoiceField(Pace.choices)
        hour = Whole(min_value=0, max_value=23, default=8, help_text="Of a daily mail, in `time_zone`.")
        time_zone = Text(max_length=64, default="UTC")
        events = serializers.DictField(
            child=serializers.DictField(child=Flag()), default=dict, help_text="event → channel → on or off"
        )

    class Out(Output):
        pace = serializers.ChoiceField(Pace.choices)
        hour = serializers.IntegerField()
        time_zone = serializers.CharField()
        events = Document()

    @extend_schema(operation_id="notification_settings_read", responses=Out)
    def get(self, request: Request) -> Response:
        return Response(self.Out(choices_describe(actor_of(request))).data)

    @extend_schema(operation_id="notification_settings_set", request=In, responses=Out)
    @idempotent
    def post(self, request: Request) -> Response:
        actor, asked = actor_of(request), body(request, self.In)
        choices_set(actor=actor, choices=asked.pop("events"), **asked)
        return Response(self.Out(choices_describe(actor)).data)


# --- Webhooks ------------------------------------------------------------------------------------------------


class WebhookOut(Output):
    """One's own (no `team`) or a team's. Address and secret are never shown again. `events` empty: all."""

    id = serializers.UUIDField()
    kind = serializers.ChoiceField(EndpointKind.choices)
    name = serializers.CharField()
    host = serializers.CharField()
    team = TeamRef(allow_null=True)
    events = serializers.ListField(child=serializers.CharField())
    created_by = UserRef(allow_null=True)
    created_at = serializers.DateTimeField()
    old_secret_until = serializers.DateTimeField(allow_null=True)


class WebhookMade(WebhookOut):
    """`secret` is shown this once; empty for Slack."""

    secret = serializers.CharField()


def webhooks_show(rows: Iterable[Endpoint]) -> list[Endpoint]:
    """Gives each its `team`, in one query."""
    shown = list(rows)
    teams = teams_of(shown)
    for row in shown:
        row.team = teams.get(row.team_id) if row.team_id else None  # type: ignore[attr-defined] # read by WebhookOut
    return shown


def _made(endpoint: Endpoint, secret: str) -> dict[str, Any]:
    (shown,) = webhooks_show([endpoint])
    return {**WebhookOut(shown).data, "secret": secret}


class WebhooksView(PagedView):
    """One's own webhooks and Slack channels, and those of the teams that one manages or audits."""

    class In(Input):
        kind = serializers.ChoiceField(EndpointKind.choices)
        name = Text(max_length=80)
        url = Text(max_length=500)
        team = Text(max_length=40, required=False, help_text="The id of a team; without one it is one's own.")
        events = serializers.ListField(child=Text(max_length=60), default=list, max_length=50)

    @extend_schema(operation_id="webhooks_list", responses=WebhookOut(many=True))
    def get(self, request: Request) -> Response:
        return self.page(request, endpoint_list(actor_of(request)), WebhookOut, webhooks_show)

    # No Idempotency-Key: the stored answer would keep the secret for a day.
    @extend_schema(operation_id="webhooks_create", request=In, responses={201: WebhookMade})
    def post(self, request: Request) -> Response:
        return Response(_made(*webhook_create(actor_of(request), body(request, self.In))), status=201)


def webhook_create(actor: User, asked: dict[str, Any]) -> tuple[Endpoint, str]:
    """A team's where a team is named, else the actor's own."""
    if team := asked.pop("team", ""):
        return team_endpoint_create(actor=actor, team=team_get(actor, team), **asked)
    return services.endpoint_create(actor=actor, **asked)


class WebhookView(APIView):
    """One webhook."""

    @extend_schema(operation_id="webhook_read", responses=WebhookOut)
    def get(self, request: Request, endpoint_id: UUID) -> Response:
        (shown,) = webhooks_show([endpoint_get(actor_of(request), endpoint_id)])
        return Response(WebhookOut(shown).data)

    @extend_schema(operation_id="webhook_remove", responses={204: None})
    def delete(self, request: Request, endpoint_id: UUID) -> Response:
        actor = actor_of(request)
        services.endpoint_remove(actor=actor, endpoint=endpoint_get(actor, endpoint_id, to_change=True))
        return Response(status=204)


class WebhookEventsView(APIView):
    """What a team's webhook is told of; an empty list means everything."""

    class In(Input):
        events = serializers.ListField(child=Text(max_length=60), max_length=50)

    @extend_schema(operation_id="webhook_events", request=In, responses=WebhookOut)
    @idempotent
    def post(self, request: Request, endpoint_id: UUID) -> Response:
        actor = actor_of(request)
        found = endpoint_get(actor, endpoint_id, to_change=True)
        services.endpoint_events_set(actor=actor, endpoint=found, **body(request, self.In))
        (shown,) = webhooks_show([found])
        return Response(WebhookOut(shown).data)


class WebhookRotateView(APIView):
    """A new secret, shown this once. Both sign for a day, so that nothing is lost."""

    @extend_schema(operation_id="webhook_rotate", request=ReasonIn, responses=WebhookMade)
    def post(self, request: Request, endpoint_id: UUID) -> Response:
        asked = body(request, ReasonIn)
        actor = actor_of(request)
        found = endpoint_get(actor, endpoint_id, to_change=True)
        secret = services.endpoint_rotate(actor=actor, endpoint=found, **asked)
        found.refresh_from_db()
        return Response(_made(found, secret))


# --- The log of sendings ---------------------------------------------------------------------------------------


class DeliveryAttempt(Output):
    """One try. `status` is of HTTP; `error` empty: it was taken."""

    at = serializers.DateTimeField()
    is_sent = serializers.BooleanField()
    status = serializers.IntegerField(allow_null=True)
    latency_ms = serializers.IntegerField()
    error = serializers.CharField()


class WebhookRef(Output):
    id = serializers.UUIDField()
    name = serializers.CharField()


class DeliveryOut(Output):
    """One message to one target: a person's mail (no `webhook`), or a webhook."""

    id = serializers.UUIDField()
    title = serializers.CharField()
    item_count = serializers.IntegerField()
    state = serializers.ChoiceField(MessageState.choices)
    tries = serializers.IntegerField()
    person = UserRef(source="user", allow_null=True)
    webhook = WebhookRef(source="endpoint", allow_null=True)
    created_at = serializers.DateTimeField()
    due_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    attempts = DeliveryAttempt(many=True, source="attempts.all")


class WebhookTestView(APIView):
    """Sends a test, the same way as all else; its outcome is in the log."""

    @extend_schema(operation_id="webhook_test", request=ReasonIn, responses={201: DeliveryOut})
    @idempotent
    def post(self, request: Request, endpoint_id: UUID) -> Response:
        asked = body(request, ReasonIn)
        actor = actor_of(request)
        found = endpoint_get(actor, endpoint_id, to_change=True)
        message = services.endpoint_test(actor=actor, endpoint=found, **asked)
        return Response(DeliveryOut(message_get(actor, message.pk)).data, status=201)


class DeliveriesView(PagedView):
    """What was sent to oneself and to the webhooks that one may read, newest first; an admin reads all."""

    class Filters(Input):
        state = serializers.ChoiceField(MessageState.choices, required=False)

    @extend_schema(operation_id="deliveries_list", parameters=[Filters], responses=DeliveryOut(many=True))
    def get(self, request: Request) -> Response:
        asked = query(request, self.Filters, is_paged=True)
        return self.page(request, message_list(actor_of(request)).filter(**asked), DeliveryOut)


class DeliveryAgainView(APIView):
    """Sends once more what has failed, with all its tries."""

    @extend_schema(operation_id="delivery_again", request=ReasonIn, responses=DeliveryOut)
    @idempotent
    def post(self, request: Request, message_id: UUID) -> Response:
        asked = body(request, ReasonIn)
        actor = actor_of(request)
        found = message_get(actor, message_id, to_change=True)
        services.message_again(actor=actor, message=found, **asked)
        return Response(DeliveryOut(message_get(actor, message_id)).data)
