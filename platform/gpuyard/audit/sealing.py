"""The sealer: gives events their place in the chain of their company."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.db import connection, transaction

from gpuyard.audit import selectors
from gpuyard.audit.chain import SealedRow, seal_hash

_BATCH = 500


def seal_all() -> int:
    """Seals every chain that has something to seal; returns how many events."""
    return sum(seal(company_id) for company_id in selectors.companies_unsealed())


def seal(company_id: UUID | None) -> int:
    """Gives each visible unsealed event its place in the company's chain; returns how many.

    What becomes visible later (its transaction was still open) is sealed later, behind. Writers never wait
    for this: it locks only rows that nobody else may change. Beside another sealer it does nothing.
    """
    sealed_count, since = 0, None
    while True:
        batch = _seal_batch(company_id, since)
        sealed_count += len(batch)
        if len(batch) < _BATCH:
            return sealed_count
        # What the index still holds of sealed events before this one would be looked at again for each batch,
        # for as long as somebody's old transaction keeps it; what appears there meanwhile is sealed next time.
        since = batch[-1].created_at


@transaction.atomic
def _seal_batch(company_id: UUID | None, since: datetime | None) -> list[SealedRow]:
    if not _is_only_sealer(company_id):
        return []
    # The lock first: this statement's snapshot then sees all that the last sealer committed.
    sequence, prev = selectors.chain_head(company_id)
    ids: list[UUID] = []
    sequences: list[int] = []
    prevs: list[str] = []
    hashes: list[str] = []
    rows = selectors.rows_unsealed(company_id, limit=_BATCH, since=since)
    for row in rows:
        sequence += 1
        ids.append(row.id)
        sequences.append(sequence)
        prevs.append(prev)
        prev = seal_hash(row, prev)
        hashes.append(prev)
    if ids:
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE audit_event e SET sequence = s.sequence, prev = s.prev, hash = s.hash"
                " FROM unnest(%s::uuid[], %s::bigint[], %s::text[], %s::text[]) "
                " AS s (id, sequence, prev, hash) WHERE e.id = s.id",
                [ids, sequences, prevs, hashes],
            )
    return rows


def _is_only_sealer(company_id: UUID | None) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))", [f"audit.seal {company_id}"]
        )
        (is_locked,) = cursor.fetchone()
    return bool(is_locked)
