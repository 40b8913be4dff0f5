"""Configuration of the tenants app."""

from __future__ import annotations

from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "tenants"
    label = "tenants"

    def ready(self) -> None:
        from gpuyard.core import hooks
        from gpuyard.notify.events import event_types
        from tenants.ask_cases import GrantCases, QuotaChangeCases
        from tenants.grant_news import ENDING
        from tenants.news import EVENTS
        from tenants.signins import signals_connect

        signals_connect()
        hooks.case_handlers.register("grant", GrantCases())
        hooks.case_handlers.register("quota_change", QuotaChangeCases())
        for one in (*EVENTS, ENDING):
            event_types.register(one.key, one)
