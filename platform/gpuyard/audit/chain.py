"""The seal: SHA-256 over an event's canonical JSON and the hash of the event sealed before it.

Canonical: UTF-8 JSON with sorted keys and no spaces; times in UTC with microseconds; `old` and `new` as the
text that PostgreSQL prints for jsonb, which is one text for one value and keeps every digit of a number. The
order of the chain is that of the `prev` links; `sequence` only counts it, and verification demands that both
agree.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

GENESIS = "0" * 64
"""The `prev` of the first event of each chain."""


class SealedRow(NamedTuple):
    """An event as the chain sees it: `old` and `new` are text."""

    id: UUID
    company_id: UUID | None
    created_at: datetime
    actor_id: UUID | None
    actor_label: str
    on_behalf_of_label: str
    action: str
    subject_type: str
    subject_id: UUID | None
    subject_label: str
    old: str | None
    new: str | None
    reason: str
    source: str
    sequence: int | None
    prev: str | None
    hash: str | None


_CONTENT = tuple(name for name in SealedRow._fields if name not in {"sequence", "prev", "hash"})


def canonical(row: SealedRow, prev: str) -> bytes:
    """What is hashed; anybody can rebuild it from an export."""
    document: dict[str, Any] = {name: _plain(getattr(row, name)) for name in _CONTENT}
    document["prev"] = prev
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def seal_hash(row: SealedRow, prev: str) -> str:
    """The hash that seals this event after the one whose hash is `prev`."""
    return hashlib.sha256(canonical(row, prev)).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    return str(value) if isinstance(value, UUID) else value
