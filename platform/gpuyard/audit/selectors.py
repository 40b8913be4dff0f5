"""Reading the log.

This app knows no roles: callers (tenants and above) prove that their actor may read a company's events, and
pass its id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Min, Q, QuerySet, TextField
from django.db.models.functions import Cast

from gpuyard.audit.chain import GENESIS, SealedRow
from gpuyard.audit.models import Checkpoint, Event, Verification
from gpuyard.core import clock
from gpuyard.core.text import text_for_lookup


@dataclass(frozen=True)
class EventFilters:
    """What of a log is asked for; empty: all of it. Times: from `since` on, and before `until`."""

    q: str = ""  # anywhere: in the action, the names, the reason
    who: str = ""  # part of the actor's name, or of whom they acted for
    action: str = ""  # `workload` also finds `workload.submit`
    subject: str = ""  # its type, its id, or part of its name
    source: str = ""
    team_ids: Collection[UUID] | None = None  # any of them; None: all, and what is about no team
    since: datetime | None = None
    until: datetime | None = None


def event_list(*, company_id: UUID | None, filters: EventFilters | None = None) -> QuerySet[Event]:
    """A company's events (None: the platform's), newest first."""
    return events_filter(Event.objects.filter(company_id=company_id), filters or EventFilters())


def events_filter(events: QuerySet[Event], filters: EventFilters) -> QuerySet[Event]:
    """Those that are asked for, newest first."""
    if filters.q:
        q = text_for_lookup(filters.q)
        names = ("action", "actor_label", "on_behalf_of_label", "subject_label", "reason")
        events = events.filter(reduce(or_, (Q(**{f"{name}__icontains": q}) for name in names)))
    if filters.who:
        who = text_for_lookup(filters.who)
        events = events.filter(Q(actor_label__icontains=who) | Q(on_behalf_of_label__icontains=who))
    if filters.action:
        action = text_for_lookup(filters.action)
        events = events.filter(Q(action=action) | Q(action__startswith=f"{action}."))
    if filters.subject:
        events = events.filter(_about(text_for_lookup(filters.subject)))
    if filters.source:
        events = events.filter(source=text_for_lookup(filters.source))
    if filters.team_ids is not None:
        events = events.filter(team_id__in=filters.team_ids)
    if filters.since:
        events = events.filter(created_at__gte=filters.since)
    if filters.until:
        events = events.filter(created_at__lt=filters.until)
    return events.order_by("-created_at", "-id")


def _about(subject: str) -> Q:
    about = Q(subject_type=subject) | Q(subject_label__icontains=subject)
    try:
        return about | Q(subject_id=UUID(subject))
    except ValueError:
        return about


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
    findings: Sequence[Mapping[str, Any]] = ()
    checkpoint_at: datetime | None = None
    checkpoint_sequence: int = 0


def chain_status(company_id: UUID | None) -> ChainStatus:
    """What a page shows above the log."""
    unsealed = Event.objects.filter(company_id=company_id, sequence__isnull=True)
    check = Verification.objects.filter(company_id=company_id).order_by("-created_at").first()
    signed = checkpoints_stored(company_id).last()
    return ChainStatus(
        as_of=clock.now(),
        sealed_up_to=chain_head(company_id)[0],
        unsealed=unsealed.count(),
        oldest_unsealed_at=unsealed.aggregate(oldest=Min("created_at"))["oldest"],
        verified_up_to=check.sequence if check else 0,
        verified_at=check.created_at if check else None,
        is_intact=not check.findings if check else None,
        findings=check.findings if check else (),
        checkpoint_at=signed.created_at if signed else None,
        checkpoint_sequence=signed.sequence if signed else 0,
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


def rows_unsealed(company_id: UUID | None, *, limit: int, since: datetime | None = None) -> list[SealedRow]:
    """What waits to be sealed, oldest first; with `since`, only what is at least as late."""
    unsealed = Event.objects.filter(company_id=company_id, sequence__isnull=True)
    if since is not None:
        unsealed = unsealed.filter(created_at__gte=since)
    return [SealedRow(*row) for row in _values(unsealed.order_by("created_at", "id"))[:limit]]


def rows_sealed(company_id: UUID | None) -> Iterator[SealedRow]:
    """The chain in the order of its sequence, streamed, from one snapshot."""
    sealed = Event.objects.filter(company_id=company_id, sequence__isnull=False)
    return rows_of(sealed.order_by("sequence", "id"))


def rows_of(events: QuerySet[Event]) -> Iterator[SealedRow]:
    """These events as they are exported, streamed in their order."""
    for row in _values(events).iterator(chunk_size=2000):
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
