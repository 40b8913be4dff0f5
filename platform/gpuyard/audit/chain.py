"""The seal: SHA-256 over an event's canonical JSON and the hash of the event sealed before it.

Canonical: UTF-8 JSON with sorted keys and no spaces; times in UTC with microseconds; `old` and `new` as the
text that PostgreSQL prints for jsonb, which is one text for one value and keeps every digit of a number. The
order of the chain is that of the `prev` links; `sequence` only counts it, and verification demands that both
agree. A team that is null is left out: events were sealed before there was one.

An export (`line`) is one JSON object for each event with all of this, from which `line_read` gives the event back
as it was sealed, numbers digit by digit.
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
    team_id: UUID | None
    old: str | None
    new: str | None
    reason: str
    source: str
    sequence: int | None
    prev: str | None
    hash: str | None


class _Digits(str):
    """A JSON number as it was written."""


_PLAIN = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)
_IDS = ("id", "company_id", "actor_id", "subject_id", "team_id")
_DOCUMENTS = ("old", "new")
_CONTENT = tuple(name for name in SealedRow._fields if name not in {"sequence", "prev", "hash"})


def canonical(row: SealedRow, prev: str) -> bytes:
    """What is hashed; anybody can rebuild it from an export."""
    document: dict[str, Any] = {name: _plain(getattr(row, name)) for name in _CONTENT}
    if row.team_id is None:
        del document["team_id"]
    document["prev"] = prev
    return _CANONICAL.encode(document).encode()


def seal_hash(row: SealedRow, prev: str) -> str:
    """The hash that seals this event after the one whose hash is `prev`."""
    return hashlib.sha256(canonical(row, prev)).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    return str(value) if isinstance(value, UUID) else value


# --- Exports -----------------------------------------------------------------------------------------------


class NotAnEvent(ValueError):
    """A line of an export that is none; the message says why."""


def line(row: SealedRow) -> str:
    """One event as JSON, without a line break. `old` and `new` stand there as the database prints them."""
    document = {name: _plain(value) for name, value in row._asdict().items() if name not in _DOCUMENTS}
    documents = ",".join(f'"{name}":{getattr(row, name) or "null"}' for name in _DOCUMENTS)
    return f"{_PLAIN.encode(document)[:-1]},{documents}}}"


def line_read(text: str) -> SealedRow:
    """The event of a line; `NotAnEvent` if it is none."""
    try:
        found = json.loads(text, parse_int=_Digits, parse_float=_Digits)
        values = {name: found[name] for name in SealedRow._fields}
        for name in _IDS:
            values[name] = None if values[name] is None else UUID(values[name])
        for name in _DOCUMENTS:
            values[name] = None if values[name] is None else jsonb_text(values[name])
        values["created_at"] = datetime.fromisoformat(values["created_at"])
        values["sequence"] = None if values["sequence"] is None else int(values["sequence"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise NotAnEvent(f"{type(exc).__name__}: {exc}") from exc
    return SealedRow(**values)


def jsonb_text(value: Any) -> str:
    """JSON read with its numbers as text, printed as PostgreSQL prints jsonb. Keys keep their order."""
    if isinstance(value, _Digits):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_PLAIN.encode(key)}: {jsonb_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(jsonb_text, value)) + "]"
    return _PLAIN.encode(value)
