"""Which scope each route of the API needs: its area by the route's first word, its verb by the method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.permissions import SAFE_METHODS

from tenants.scopes import READ, WRITE

if TYPE_CHECKING:
    from rest_framework.request import Request

_WORDS = {
    "account": ("me", "tokens", "sign-ins"),
    "notifications": ("notifications", "notification-settings", "webhooks", "deliveries"),
    "teams": (
        "teams",
        "service-accounts",
        "people",
        "invitations",
        "quota-changes",
        "quota-versions",
        "grants",
        "limits",
    ),
    "workloads": ("workloads", "request-check", "queue"),
    "cases": (
        "cases",
        "delegations",
        "groups",
        "approver-groups",
        "approval-rules",
        "case-decisions",
    ),
    "fleet": (
        "tiers",
        "free-space",
        "tier-speeds",
        "pools",
        "nodes",
        "fabric-domains",
        "join-tokens",
    ),
    "policy": ("scheduling-policy", "band-grants", "passes"),
    "costs": ("costs", "costs.csv"),
    "audit": ("events", "events.csv", "events.jsonl"),
}
AREA_OF = {word: area for area, words in _WORDS.items() for word in words}
_ROOT = "api/v1/"


def scope_of(request: Request) -> str:
    """Such as `workloads:write`; a route that stands in no area needs the scope for all."""
    verb = READ if request.method in SAFE_METHODS else WRITE
    match = request.resolver_match
    word = match.route.removeprefix(_ROOT).partition("/")[0] if match else ""
    area = AREA_OF.get(word)
    return f"{area}:{verb}" if area else verb
