"""How an event looks in JSON. Who may read which events is for the apps above to say."""

from __future__ import annotations

from rest_framework import serializers

from gpuyard.audit.models import Source
from gpuyard.core.rest import Anything, Output


class EventSubject(Output):
    type = serializers.CharField(source="subject_type")
    label = serializers.CharField(source="subject_label")  # type: ignore[assignment] # a declared field: the class keeps its own


class EventOut(Output):
    """One act. `sequence` is its place in its company's sealed chain, null until it is sealed."""

    id = serializers.UUIDField()
    at = serializers.DateTimeField(source="created_at")
    actor = serializers.CharField(source="actor_label")
    on_behalf_of = serializers.CharField(source="on_behalf_of_label")
    action = serializers.CharField()
    subject = EventSubject(source="*")
    old = Anything()
    new = Anything()
    reason = serializers.CharField()
    source = serializers.ChoiceField(Source.choices)  # type: ignore[assignment] # a declared field: the class keeps its own
    sequence = serializers.IntegerField(allow_null=True)
