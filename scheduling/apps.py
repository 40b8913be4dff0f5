"""Configuration of the scheduling app."""

from __future__ import annotations

from django.apps import AppConfig


class SchedulingConfig(AppConfig):
    name = "scheduling"
    label = "scheduling"
