"""Writing events. Sealing is in `sealing`, verification in `verification`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connection, models, transaction

from gpuyard.audit.doors import door_now
from gpuyard.audit.masking import masked
from gpuyard.audit.models import Event
from gpuyard.core.bulk import instances_insert
from gpuyard.core.models import User


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
    team_id: UUID | None = None


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
    team_id: UUID | None = None,
    source: str | None = None,
) -> Event:
    """Stores one event in the caller's transaction, which must be the act's own.

    No `company_id`: the platform's chain. No actor: the system. `action` is dotted (`workload.state`); `old`
    and `new` hold what changed, as JSON. `team_id` says whose work or rights it was about, where the subject is
    neither a team nor a row with one.
    """
    event = event_draft(
        company_id=company_id,
        actor=actor,
        action=action,
        subject=subject,
        old=old,
        new=new,
        reason=reason,
        team_id=team_id,
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
    team_id: UUID | None = None,
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
        team_id=team_id or what.team_id,
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
    kind, key = subject._meta.model_name or "", subject.pk
    team_id = key if kind == "team" else getattr(subject, "team_id", None)
    return Subject(kind, key if isinstance(key, UUID) else None, str(subject), team_id)


def _require_transaction() -> None:
    # Outside one, the act could be stored without its event.
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError("an event is recorded in the transaction of its act")


# --- Exports and refused attempts --------------------------------------------------------------------------


def export_record(
    *,
    company_ids: Iterable[UUID | None],
    actor: User | Actor | None,
    what: str,
    filters: Any = None,
    rows: int | None = None,
    is_complete: bool = True,
    source: str | None = None,
) -> list[Event]:
    """Somebody took a file away: what, with which filter, how many rows. In each of the given chains."""
    told = {"filters": filters or {}, "rows": rows, **({} if is_complete else {"broken_off": True})}
    drafts = [
        event_draft(
            company_id=company_id,
            actor=actor,
            action="export.download",
            subject=Subject("export", None, what),
            new=told,
            source=source,
        )
        for company_id in company_ids
    ]
    return events_record(drafts)
