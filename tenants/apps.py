"""Configuration of the tenants app."""

from __future__ import annotations

from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "tenants"
    label = "tenants"

    def ready(self) -> None:
        from tenants.signins import signals_connect

        signals_connect()
