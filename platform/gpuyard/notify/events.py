"""What people can be told of. The app that knows when it happens registers its events in `ready()`.

An event says how it is told where nobody chose otherwise: a person may change that for each channel, unless it is
one that cannot be switched off.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from gpuyard.core.hooks import KeyedHook

APP = "app"
EMAIL = "email"
HOOK = "hook"  # one's own webhooks and Slack channels; those of a team have a list of events
CHANNELS = (APP, EMAIL, HOOK)


@dataclass(frozen=True)
class EventType:
    """One kind of news. `defaults`: the channels that are on; urgent news never waits for a digest."""

    key: str
    label: str | Promise
    defaults: frozenset[str] = frozenset({APP, HOOK})
    is_urgent: bool = False
    may_be_off: bool = True


event_types: KeyedHook[EventType] = KeyedHook("event_types")

TEST = EventType("notify.test", _("A test of an endpoint"), frozenset(), is_urgent=True)


def event_type(key: str) -> EventType:
    """What was registered under this key; news of an app that is gone keep what they had."""
    return event_types.get(key) if key in event_types.keys() else EventType(key, key)  # noqa: SIM118 - no mapping


def events_chosen() -> list[EventType]:
    """Those that people choose about, in the order in which the apps registered them."""
    return [event_types.get(key) for key in event_types.keys() if key != TEST.key]  # noqa: SIM118 - no mapping
