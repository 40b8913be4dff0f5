"""Configuration of the tenants app."""

from __future__ import annotations

from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "tenants"
    label = "tenants"

    def ready(self) -> None:
        from gpuyard.notify.events import event_types
        from tenants.news import EVENTS
        from tenants.signins import signals_connect

        signals_connect()
        for one in EVENTS:
            event_types.register(one.key, one)
