"""Configuration of the scheduling app."""

from __future__ import annotations

from django.apps import AppConfig


class SchedulingConfig(AppConfig):
    name = "scheduling"
    label = "scheduling"

    def ready(self) -> None:
        """Registers what lower apps ask of this one."""
        from gpuyard.core import hooks
        from gpuyard.notify.following import events_register
        from scheduling.cases import WorkloadCases
        from scheduling.news import EVENTS, TELLER
        from scheduling.selectors import eta
        from scheduling.services import CASE_SUBJECT
        from scheduling.supply import holders

        hooks.case_handlers.register(CASE_SUBJECT, WorkloadCases())
        hooks.eta.register(eta)
        hooks.holders.register(holders)
        events_register("scheduling", EVENTS, TELLER)
