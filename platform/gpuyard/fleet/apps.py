"""Configuration of the fleet app."""

from __future__ import annotations

from django.apps import AppConfig


class FleetConfig(AppConfig):
    name = "gpuyard.fleet"
    label = "fleet"

    def ready(self) -> None:
        """Registers what people are told of the fleet."""
        from gpuyard.fleet.news import EVENTS, TELLER
        from gpuyard.notify.following import events_register

        events_register("fleet", EVENTS, TELLER)
