"""Configuration of the fleet app."""

from __future__ import annotations

from django.apps import AppConfig


class FleetConfig(AppConfig):
    name = "gpuyard.fleet"
    label = "fleet"
