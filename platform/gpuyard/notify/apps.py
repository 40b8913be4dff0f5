"""Configuration of the notify app."""

from __future__ import annotations

from django.apps import AppConfig


class NotifyConfig(AppConfig):
    name = "gpuyard.notify"
    label = "notify"

    def ready(self) -> None:
        """Its own event: the test of an endpoint."""
        from gpuyard.notify.events import TEST, event_types

        event_types.register(TEST.key, TEST)
