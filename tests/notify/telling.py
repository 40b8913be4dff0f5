"""What the tests of notify share: an event of their own, news about it, and what has become of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from django.db import transaction

from gpuyard.core.models import User
from gpuyard.notify.events import APP, EMAIL, HOOK, EventType, event_types
from gpuyard.notify.models import Message
from gpuyard.notify.services import Notice, notices_record
from tests import factories

EVENT = EventType("tests.news", "News of a test", frozenset({APP, EMAIL, HOOK}))
URGENT = EventType("tests.alarm", "An alarm of a test", frozenset({APP, EMAIL, HOOK}), is_urgent=True)
FIXED = EventType("tests.fixed", "What must be seen", frozenset({APP}), may_be_off=False)


@contextmanager
def events() -> Iterator[None]:
    """Registers the events of the tests, and takes them away again."""
    known = event_types._providers
    for one in (EVENT, URGENT, FIXED):
        known[one.key] = one
    try:
        yield
    finally:
        for one in (EVENT, URGENT, FIXED):
            del known[one.key]


def person(**fields: Any) -> User:
    """Somebody with an address."""
    name = f"reader-{uuid4().hex[:8]}"
    return factories.user(username=name, **{"email": f"{name}@example.com", **fields})


def notice(*people: User, subject: str = "It happened", event: EventType = EVENT, **fields: Any) -> Notice:
    fields.setdefault("dedupe_key", str(uuid4()))
    return Notice(tuple(one.pk for one in people), event.key, subject, **fields)


def tell(*people: User, **fields: Any) -> None:
    """Tells people something in a transaction of its own."""
    with transaction.atomic():
        notices_record([notice(*people, **fields)])


def messages(**which: Any) -> list[Message]:
    return list(Message.objects.filter(**which).order_by("created_at", "id"))
