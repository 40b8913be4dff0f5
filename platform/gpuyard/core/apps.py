"""Configuration of the core app."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate


class CoreConfig(AppConfig):
    name = "gpuyard.core"
    label = "core"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from gpuyard.core.grants import grants_apply
        from gpuyard.core.hooks import hooks_check

        post_migrate.connect(grants_apply, sender=self, dispatch_uid="core.grants")
        checks.register(hooks_check)
