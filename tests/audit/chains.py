"""Makers of events and of tampering, for the tests of the log."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction

from gpuyard.audit.chain import SealedRow, seal_hash
from gpuyard.audit.models import Event
from gpuyard.audit.sealing import seal
from gpuyard.audit.selectors import rows_sealed
from gpuyard.audit.services import Subject, event_record
from tests.conftest import Connection

COMPANY = uuid.UUID("01900000-0000-7000-8000-000000000001")


def record(number: int = 0, company_id: uuid.UUID | None = COMPANY) -> Event:
    """One event, committed unless the test is in a transaction."""
    with transaction.atomic():
        return event_record(
            company_id=company_id,
            actor=None,
            action="workload.state",
            subject=Subject("workload", uuid.uuid4(), f"w-{number}"),
            old={"state": "waiting"},
            new={"state": "starting", "number": number},
        )


def sealed_chain(length: int, company_id: uuid.UUID | None = COMPANY) -> list[SealedRow]:
    """A sealed chain of that many events."""
    for number in range(1, length + 1):
        record(number, company_id)
    seal(company_id)
    return list(rows_sealed(company_id))


@contextmanager
def unguarded(owner: Connection) -> Iterator[Connection]:
    """What only the owner can do: the triggers switched off, and the unique rule gone."""
    owner.execute("ALTER TABLE audit_event DISABLE TRIGGER ALL")
    owner.execute("DROP INDEX audit_event_sequence")
    yield owner
    owner.execute("ALTER TABLE audit_event ENABLE TRIGGER ALL")


def shift(owner: Connection, *, start: int, by: int) -> None:
    """Renumbers the tail of the chain."""
    owner.execute("UPDATE audit_event SET sequence = sequence + %s WHERE sequence >= %s", (by, start))


def put_in(owner: Connection, *, sequence: int, prev: str, hash_: str | None = None) -> uuid.UUID:
    """A forged event; without a hash, one that is sealed as it should be."""
    forged = uuid.uuid4()
    owner.execute(
        "INSERT INTO audit_event (id, company_id, actor_label, on_behalf_of_label, action, subject_type,"
        " subject_label, reason, source) VALUES (%s, %s, 'mallory', '', 'x', 'x', 'x', '', 'system')",
        (forged, COMPANY),
    )
    if hash_ is None:
        names = ", ".join(f"{name}::text" if name in {"old", "new"} else name for name in SealedRow._fields)
        row = owner.execute(f"SELECT {names} FROM audit_event WHERE id = %s".encode(), (forged,)).fetchone()
        assert row is not None
        hash_ = seal_hash(SealedRow(*row), prev)
    owner.execute(
        "UPDATE audit_event SET sequence = %s, prev = %s, hash = %s WHERE id = %s",
        (sequence, prev, hash_, forged),
    )
    return forged
