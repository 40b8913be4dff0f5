"""What the audit page is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuyard.web.contexts import Choice, Tone


@dataclass(frozen=True, kw_only=True)
class Change:
    """One field of an event. Nothing before: it is new; nothing after: it is gone."""

    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True, kw_only=True)
class AuditRow:
    id: str
    at: datetime
    who: str
    on_behalf_of: str
    what: str  # in words
    action: str  # the code
    subject: str
    subject_url: str  # empty where it exists no more, or has no page
    team: str
    source: str
    reason: str
    changes: Sequence[Change]
    folded: Sequence[Change]  # the rest of them, behind a click
    more_changes: int
    sequence: int | None
    hash: str


@dataclass(frozen=True, kw_only=True)
class Badge:
    """How far the chain is sealed and verified, in words; `tone` ok, warn or bad."""

    tone: Tone
    text: str
    detail: str
    findings: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class AuditPage:
    as_of: datetime
    companies: Sequence[Choice]
    sources: Sequence[Choice]
    asked: dict[str, str]  # the filters as they were typed
    filtered: bool
    badge: Badge
    rows: Sequence[AuditRow]
    next_cursor: str
    is_first: bool
    zone: str
