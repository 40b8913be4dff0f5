"""What a message says: its pieces of news, collapsed and cut, as mail, as JSON and as Slack blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.template.loader import render_to_string
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpuyard.notify.models import Notification

MOST_LINES = 20
MOST_ITEMS = 100  # of a webhook


@dataclass(frozen=True)
class Item:
    """One line: the newest of all news of this event about this thing, and how many there were."""

    id: UUID
    event: str
    subject: str
    facts: tuple[tuple[str, str], ...]
    url: str  # whole, or nothing
    at: datetime
    count: int


@dataclass(frozen=True)
class Content:
    """What is said: the first lines, and how many more there are behind them."""

    id: UUID
    items: tuple[Item, ...]
    more: int

    @property
    def title(self) -> str:
        return title_of([item.subject for item in self.items], self.more)


def title_of(subjects: Sequence[str], more: int = 0) -> str:
    """One piece of news says itself; several are counted."""
    count = len(subjects) + more
    if count == 1:
        return subjects[0]
    return ngettext("%(count)s notice", "%(count)s notices", count) % {"count": count}


def collapsed(news: Sequence[Notification]) -> list[Item]:
    """Newest first; what speaks of the same event and thing is one line."""
    found: dict[tuple[str, str], list[Notification]] = {}
    for row in sorted(news, key=lambda one: (one.created_at, one.pk), reverse=True):
        found.setdefault((row.event, row.about or str(row.pk)), []).append(row)
    return [_item(rows) for rows in found.values()]


def content(message_id: UUID, news: Sequence[Notification], most: int) -> Content:
    """What a message with this news says, in at most so many lines."""
    items = collapsed(news)
    return Content(message_id, tuple(items[:most]), max(0, len(items) - most))


def _item(rows: Sequence[Notification]) -> Item:
    newest = rows[0]
    return Item(
        id=newest.pk,
        event=newest.event,
        subject=newest.subject,
        facts=tuple((str(label), str(value)) for label, value in newest.facts),
        url=address(newest.url),
        at=newest.created_at,
        count=len(rows),
    )


def address(path: str) -> str:
    """Our own path as people outside can follow it."""
    return f"{settings.GPUYARD_URL}{path}" if path else ""


# --- As they are sent --------------------------------------------------------------------------------------


def as_mail(told: Content) -> tuple[str, str, str]:
    """Subject, text and HTML of a mail."""
    context = {
        "told": told,
        "list_url": address("/notifications"),
        "settings_url": address("/notifications/settings"),
    }
    subject = f"[GPU Yard] {' '.join(told.title.split())}"
    text = render_to_string("notify/mail.txt", context)
    return subject, text, render_to_string("notify/mail.html", context)


def as_json(told: Content, sent_at: datetime) -> dict[str, Any]:
    """The body of a webhook. `id` stays the same when it is sent again; `more` is how many did not fit."""
    return {
        "id": str(told.id),
        "sent_at": sent_at.isoformat(),
        "notifications": [
            {
                "id": str(item.id),
                "event": item.event,
                "subject": item.subject,
                "facts": [{"label": label, "value": value} for label, value in item.facts],
                "url": item.url,
                "at": item.at.isoformat(),
                "count": item.count,
            }
            for item in told.items
        ],
        "more": told.more,
    }


def as_slack(told: Content) -> dict[str, Any]:
    """The body for an incoming webhook of Slack: a text for the alert, and a block for each line."""
    blocks: list[dict[str, Any]] = [
        {"type": "section", "text": {"type": "mrkdwn", "text": _slack_line(item)}} for item in told.items
    ]
    if told.more:
        text = _("%(count)s more: <%(url)s|see them all>") % {
            "count": told.more,
            "url": address("/notifications"),
        }
        blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": text}]})
    return {"text": _slack_text(told.title), "blocks": blocks}


def _slack_line(item: Item) -> str:
    subject = _slack_text(item.subject)
    head = f"*<{item.url}|{subject}>*" if item.url else f"*{subject}*"
    times = f" (×{item.count})" if item.count > 1 else ""
    lines = [f"{_slack_text(label)}: {_slack_text(value)}" for label, value in item.facts]
    return "\n".join([head + times, *lines])[:2900]


def _slack_text(text: str) -> str:
    # A subject that somebody typed must not become a mention or a link.
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("|", "¦").replace("*", "∗")
