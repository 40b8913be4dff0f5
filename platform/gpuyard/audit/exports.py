"""Events as files: CSV for people, JSON lines for programs and for `verify_audit`. One line is one event."""

from __future__ import annotations

import csv
from collections.abc import Iterator

from django.db.models import QuerySet

from gpuyard.audit import selectors
from gpuyard.audit.chain import SealedRow, line
from gpuyard.audit.models import Event

COLUMNS = (
    "created_at", "sequence", "actor_label", "on_behalf_of_label", "action", "subject_type", "subject_label",
    "subject_id", "team_id", "source", "reason", "old", "new", "id", "hash",
)  # fmt: skip
# A spreadsheet runs a cell that begins with one of these; an apostrophe makes it text.
_RISKY = ("=", "+", "-", "@", "\t", "\r")


def json_lines(events: QuerySet[Event]) -> Iterator[str]:
    """Each event with its seal, as `audit.chain.line_read` reads it."""
    return (f"{line(row)}\n" for row in selectors.rows_of(events))


def csv_lines(events: QuerySet[Event]) -> Iterator[str]:
    """The heading, then each event."""
    writer = csv.writer(_Line())
    yield writer.writerow(COLUMNS)
    for row in selectors.rows_of(events):
        yield writer.writerow(_cell(row, name) for name in COLUMNS)


def _cell(row: SealedRow, name: str) -> str:
    value = getattr(row, name)
    if value is None:
        return ""
    text = value.isoformat() if name == "created_at" else str(value)
    return f"'{text}" if text.startswith(_RISKY) else text


class _Line:
    """A file that gives each line back instead of keeping it."""

    def write(self, text: str) -> str:
        return text
