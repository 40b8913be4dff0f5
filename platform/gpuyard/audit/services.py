"""Writing events, sealing them, verifying the chain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from django.db import connection, models, transaction

from gpuyard.audit import selectors
from gpuyard.audit.chain import GENESIS, seal_hash
from gpuyard.audit.diagnosis import Finding, diagnose, is_next, link
from gpuyard.audit.doors import door_now
from gpuyard.audit.masking import masked
from gpuyard.audit.models import Event, Verification
from gpuyard.core.bulk import instances_insert
from gpuyard.core.models import User

_BATCH = 500


@dataclass(frozen=True)
class Actor:
    """Who acted, where it is no signed-in person: a node's agent, a policy, or an admin for somebody else."""

    label: str
    id: UUID | None = None
    on_behalf_of: str = ""


@dataclass(frozen=True)
class Subject:
    """What was acted on, where it is no model instance."""

    type: str
    id: UUID | None
    label: str = ""


SYSTEM = Actor("system")


def event_record(
    *,
    company_id: UUID | None,
    actor: User | Actor | None,
    action: str,
    subject: models.Model | Subject,
    old: Any = None,
    new: Any = None,
    reason: str = "",
    source: str | None = None,
) -> Event:
    """Stores one event in the caller's transaction, which must be the act's own.

    No `company_id`: the platform's chain. No actor: the system. `action` is dotted (`workload.state`); `old`
    and `new` hold what changed, as JSON.
    """
    event = event_draft(
        company_id=company_id,
        actor=actor,
        action=action,
        subject=subject,
        old=old,
        new=new,
        reason=reason,
        source=source,
    )
    _require_transaction()
    event.save(force_insert=True)
    return event


def events_record(drafts: Iterable[Event]) -> list[Event]:
    """Stores many events (see `event_draft`) with one statement, in the caller's transaction."""
    _require_transaction()
    events = list(drafts)
    instances_insert(events)
    return events


def event_draft(
    *,
    company_id: UUID | None,
    actor: User | Actor | None,
    action: str,
    subject: models.Model | Subject,
    old: Any = None,
    new: Any = None,
    reason: str = "",
    source: str | None = None,
) -> Event:
    """An event that is not stored yet."""
    who = _actor(actor)
    what = _subject(subject)
    return Event(
        company_id=company_id,
        actor_id=who.id,
        actor_label=who.label[:200],
        on_behalf_of_label=who.on_behalf_of[:200],
        action=action,
        subject_type=what.type,
        subject_id=what.id,
        subject_label=what.label[:200],
        old=None if old is None else masked(old),
        new=None if new is None else masked(new),
        reason=reason[:2000],
        source=source or door_now(),
    )


def _actor(actor: User | Actor | None) -> Actor:
    if actor is None:
        return SYSTEM
    return actor if isinstance(actor, Actor) else Actor(label=str(actor), id=actor.pk)


def _subject(subject: models.Model | Subject) -> Subject:
    if isinstance(subject, Subject):
        return subject
    subject_id = subject.pk if isinstance(subject.pk, UUID) else None
    return Subject(type=subject._meta.model_name or "", id=subject_id, label=str(subject))


def _require_transaction() -> None:
    # Outside one, the act could be stored without its event.
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError("an event is recorded in the transaction of its act")


# --- Sealing -----------------------------------------------------------------------------------------------


def seal_all() -> int:
    """Seals every chain that has something to seal; returns how many events."""
    return sum(seal(company_id) for company_id in selectors.companies_unsealed())


def seal(company_id: UUID | None) -> int:
    """Gives each visible unsealed event its place in the company's chain; returns how many.

    What becomes visible later (its transaction was still open) is sealed later, behind. Writers never wait
    for this: it locks only rows that nobody else may change. Beside another sealer it does nothing.
    """
    sealed_count = 0
    while True:
        batch_count = _seal_batch(company_id)
        sealed_count += batch_count
        if batch_count < _BATCH:
            return sealed_count


@transaction.atomic
def _seal_batch(company_id: UUID | None) -> int:
    if not _is_only_sealer(company_id):
        return 0
    # The lock first: this statement's snapshot then sees all that the last sealer committed.
    sequence, prev = selectors.chain_head(company_id)
    ids: list[UUID] = []
    sequences: list[int] = []
    prevs: list[str] = []
    hashes: list[str] = []
    for row in selectors.rows_unsealed(company_id, limit=_BATCH):
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
    return len(ids)


def _is_only_sealer(company_id: UUID | None) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))", [f"audit.seal {company_id}"]
        )
        (is_locked,) = cursor.fetchone()
    return bool(is_locked)


# --- Verifying ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Anchor:
    """What a chain once was: at this sequence stood this hash. Kept elsewhere, it also proves a cut tail."""

    sequence: int
    hash: str


@dataclass(frozen=True)
class ChainReport:
    """What verification of one chain found, and how far it went."""

    company_id: UUID | None
    sequence: int
    hash: str
    unsealed: int
    findings: tuple[Finding, ...]


def chain_verify(company_id: UUID | None, *, anchors: Sequence[Anchor] = ()) -> ChainReport:
    """Recomputes every seal of a chain, compares it with earlier verifications, and stores the outcome."""
    known = [*anchors, *(Anchor(*pair) for pair in selectors.anchors_stored(company_id))]
    sequence, last_hash, is_intact = _walk(company_id)
    findings = [] if is_intact else _diagnose(company_id, sequence)
    findings += _compare_anchors(company_id, known, last_sequence=sequence)
    Verification.objects.create(
        company_id=company_id,
        sequence=sequence,
        hash=last_hash,
        findings=[asdict(one) for one in findings[:100]],
    )
    unsealed_count = Event.objects.filter(company_id=company_id, sequence__isnull=True).count()
    return ChainReport(company_id, sequence, last_hash, unsealed_count, tuple(findings))


def _diagnose(company_id: UUID | None, last_sequence: int) -> list[Finding]:
    findings = diagnose([link(row) for row in selectors.rows_sealed(company_id)])
    # A broken chain is never reported as intact, whatever the diagnosis makes of it.
    return findings or [Finding("altered", 1, last_sequence, None, "The chain does not hold.")]


def _walk(company_id: UUID | None) -> tuple[int, str, bool]:
    """Streams the chain; returns the last row's sequence and hash, and whether all of it holds."""
    prev, last_sequence, is_intact = GENESIS, 0, True
    for position, row in enumerate(selectors.rows_sealed(company_id), start=1):
        one = link(row)
        is_intact = is_intact and is_next(one, prev=prev, position=position)
        prev, last_sequence = one.hash, one.sequence
    return last_sequence, prev, is_intact


def _compare_anchors(
    company_id: UUID | None, anchors: Sequence[Anchor], *, last_sequence: int
) -> list[Finding]:
    findings: dict[int, Finding] = {}
    for anchor in anchors:
        if anchor.sequence > last_sequence:
            first = last_sequence + 1
            message = f"#{first} to #{anchor.sequence} is missing: it was verified before."
            findings[anchor.sequence] = Finding("deleted", first, anchor.sequence, None, message)
        elif anchor.sequence and not selectors.is_sealed_as(company_id, anchor.sequence, anchor.hash):
            message = f"The chain up to #{anchor.sequence} is not the one that was verified before."
            findings[anchor.sequence] = Finding("altered", anchor.sequence, anchor.sequence, None, message)
    return list(findings.values())
