"""Configuration of the REST API."""

from __future__ import annotations

from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "gpuyard.api"
    label = "api"

    def ready(self) -> None:
        from gpuyard.api import schema  # noqa: F401 - registers the security scheme with drf-spectacular
