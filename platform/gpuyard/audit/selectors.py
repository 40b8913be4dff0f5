"""Reading the log.

This app knows no roles: callers (tenants and above) prove that their actor may read a company's events, and
pass its id.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Min, QuerySet, TextField
from django.db.models.functions import Cast

from gpuyard.audit.chain import GENESIS, SealedRow
from gpuyard.audit.models import Checkpoint, Event, Verification
from gpuyard.core import clock


def event_list(*, company_id: UUID | None, action: str = "", actor_id: UUID | None = None) -> QuerySet[Event]:
    """A company's events (None: the platform's), newest first; `action` also matches its dotted beginning."""
    events = Event.objects.filter(company_id=company_id)
    if action:
        events = events.filter(action=action) | events.filter(action__startswith=f"{action}.")
    if actor_id:
        events = events.filter(actor_id=actor_id)
    return events.order_by("-created_at", "-id")


def subject_events(subject_type: str, subject_id: UUID) -> QuerySet[Event]:
    """What happened to one thing, oldest first: its timeline."""
    return Event.objects.filter(subject_type=subject_type, subject_id=subject_id).order_by("created_at", "id")


@dataclass(frozen=True)
class ChainStatus:
    """How far a chain is sealed and verified. `is_intact` None: never verified."""

    as_of: datetime
    sealed_up_to: int
    unsealed: int
    oldest_unsealed_at: datetime | None
    verified_up_to: int
    verified_at: datetime | None
    is_intact: bool | None


def chain_status(company_id: UUID | None) -> ChainStatus:
    """What a page shows above the log."""
    unsealed = Event.objects.filter(company_id=company_id, sequence__isnull=True)
    check = Verification.objects.filter(company_id=company_id).order_by("-created_at").first()
    return ChainStatus(
        as_of=clock.now(),
        sealed_up_to=chain_head(company_id)[0],
        unsealed=unsealed.count(),
        oldest_unsealed_at=unsealed.aggregate(oldest=Min("created_at"))["oldest"],
        verified_up_to=check.sequence if check else 0,
        verified_at=check.created_at if check else None,
        is_intact=not check.findings if check else None,
    )


# --- For the sealer and the verification -------------------------------------------------------------------


def companies_all() -> list[UUID | None]:
    """Every chain that has, or once had, an event."""
    chains = set(Event.objects.values_list("company_id", flat=True).distinct())
    chains |= set(Verification.objects.values_list("company_id", flat=True).distinct())
    chains |= set(Checkpoint.objects.values_list("company_id", flat=True).distinct())
    return sorted(chains, key=str)


def companies_unsealed() -> list[UUID | None]:
    """Every chain that has something to seal."""
    unsealed = Event.objects.filter(sequence__isnull=True)
    return list(unsealed.values_list("company_id", flat=True).distinct())


def chain_head(company_id: UUID | None) -> tuple[int, str]:
    """The last sealed sequence and its hash."""
    sealed = Event.objects.filter(company_id=company_id, sequence__isnull=False)
    last = sealed.order_by("-sequence").values_list("sequence", "hash").first()
    if last is None:
        return 0, GENESIS
    sequence, last_hash = last
    assert sequence is not None
    assert last_hash is not None
    return sequence, last_hash


def rows_unsealed(company_id: UUID | None, *, limit: int) -> list[SealedRow]:
    """What waits to be sealed, oldest first."""
    unsealed = Event.objects.filter(company_id=company_id, sequence__isnull=True)
    return [SealedRow(*row) for row in _values(unsealed.order_by("created_at", "id"))[:limit]]


def rows_sealed(company_id: UUID | None) -> Iterator[SealedRow]:
    """The chain in the order of its sequence, streamed, from one snapshot."""
    sealed = Event.objects.filter(company_id=company_id, sequence__isnull=False)
    for row in _values(sealed.order_by("sequence", "id")).iterator(chunk_size=2000):
        yield SealedRow(*row)


def _values(events: QuerySet[Event]) -> QuerySet[Event, tuple[Any, ...]]:
    as_text = {"old_text": Cast("old", TextField()), "new_text": Cast("new", TextField())}
    names = [f"{name}_text" if name in {"old", "new"} else name for name in SealedRow._fields]
    return events.annotate(**as_text).values_list(*names)


def anchors_stored(company_id: UUID | None) -> list[tuple[int, str]]:
    """Where the last verification without findings ended, and where the checkpoints were made."""
    clean = Verification.objects.filter(company_id=company_id, findings=[]).order_by("-created_at")
    last = list(clean.values_list("sequence", "hash")[:1])
    return [*last, *checkpoints_stored(company_id).values_list("sequence", "hash")]


def checkpoints_stored(company_id: UUID | None) -> QuerySet[Checkpoint]:
    """A chain's checkpoints, oldest first."""
    return Checkpoint.objects.filter(company_id=company_id).order_by("sequence")


def guards_missing() -> list[str]:
    """The triggers of the log that are gone or switched off."""
    wanted = {
        "audit_checkpoint_keep",
        "audit_checkpoint_keep_all",
        "audit_event_guard",
        "audit_event_keep",
        "audit_event_keep_all",
        "audit_verification_keep",
        "audit_verification_keep_all",
    }
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT tgname FROM pg_trigger WHERE tgenabled IN ('O', 'A') AND tgname = ANY(%s)",
            [sorted(wanted)],
        )
        return sorted(wanted - {name for (name,) in cursor.fetchall()})
