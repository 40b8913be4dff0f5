"""Configuration of the billing app."""

from __future__ import annotations

from django.apps import AppConfig


class BillingConfig(AppConfig):
    name = "billing"
    label = "billing"

    def ready(self) -> None:
        from billing.estimates import estimate, tier_costs
        from gpuyard.core import hooks

        hooks.estimate.register(estimate)
        hooks.tier_costs.register(tier_costs)
