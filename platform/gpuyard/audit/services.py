"""Writing events. Sealing is in `sealing`, verification in `verification`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection, models, transaction

from gpuyard.audit.doors import door_now
from gpuyard.audit.masking import masked, text_masked
from gpuyard.audit.models import Event
from gpuyard.core import ids
from gpuyard.core.bulk import json_text, rows_insert
from gpuyard.core.models import User
from gpuyard.core.text import text_for_lookup

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
    id: UUID | str | None
    label: str = ""
    team_id: UUID | str | None = None


class Draft(NamedTuple):
    """An event that is not stored yet: by the model's field names, `old` and `new` masked."""

    company_id: UUID | str | None
    actor_id: UUID | None
    actor_label: str
    on_behalf_of_label: str
    action: str
    subject_type: str
    subject_id: UUID | str | None
    subject_label: str
    team_id: UUID | str | None
    old: Any
    new: Any
    reason: str
    source: str


SYSTEM = Actor("system")
ANONYMOUS = "anonymous"


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
    draft = event_draft(
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
    event = Event(**draft._asdict())
    event.save(force_insert=True)
    return event


def events_record(drafts: Iterable[Draft]) -> None:
    """Stores many events with one statement, in the caller's transaction. Drafts made on the way must not query."""
    _require_transaction()
    rows_insert(Event, ("id", *Draft._fields), _rows(drafts))


def _rows(drafts: Iterable[Draft]) -> Iterator[tuple[Any, ...]]:
    given = iter(drafts)
    while some := list(islice(given, _BATCH)):
        for event_id, draft in zip(ids.uuid7_texts(len(some)), some, strict=True):
            old = None if draft.old is None else json_text(draft.old)
            new = None if draft.new is None else json_text(draft.new)
            yield event_id, *draft._replace(old=old, new=new)


def event_draft(
    *,
    company_id: UUID | str | None,
    actor: User | Actor | None,
    action: str,
    subject: models.Model | Subject,
    old: Any = None,
    new: Any = None,
    reason: str = "",
    team_id: UUID | None = None,
    source: str | None = None,
) -> Draft:
    """An event that is not stored yet."""
    who = _actor(actor)
    what = _subject(subject)
    return Draft(
        company_id=company_id,
        actor_id=who.id,
        actor_label=who.label[:200],
        on_behalf_of_label=who.on_behalf_of[:200],
        action=action,
        subject_type=what.type,
        subject_id=what.id,
        subject_label=text_masked(what.label)[:200],
        team_id=team_id or what.team_id,
        old=None if old is None else masked(old),
        new=None if new is None else masked(new),
        reason=text_masked(str(reason))[:2000],
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
) -> None:
    """Somebody took a file away: what, with which filter, how many rows. In each of the given chains."""
    told = {"filters": filters or {}, "rows": rows, **({} if is_complete else {"broken_off": True})}
    events_record(
        event_draft(
            company_id=company_id,
            actor=actor,
            action="export.download",
            subject=Subject("export", None, what),
            new=told,
            source=source,
        )
        for company_id in company_ids
    )


_TOLD = ("count", "minute", "status", "code", "address", "route")


@dataclass(frozen=True)
class Refusal:
    """What was refused: by which kind of address (`route`), the last path of it, from where, why."""

    action: str
    method: str
    route: str
    status: int
    path: str
    address: str = ""
    code: str = ""


_COUNT = """
INSERT INTO audit_denial (id, company_id, actor_id, actor_label, action, source, method, route, status, minute, count,
  path, address, code)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, date_trunc('minute', yard_now()), 1, %s, %s, %s)
ON CONFLICT (company_id, actor_id, action, source, method, route, status, minute) DO UPDATE SET
  count = audit_denial.count + 1, path = EXCLUDED.path, address = EXCLUDED.address, code = EXCLUDED.code
"""


def denial_count(refusal: Refusal, *, company_id: UUID | None, actor: User | None) -> None:
    """Counts a refused attempt; once its minute is over, `denials_record` makes one event of all of them."""
    with connection.cursor() as cursor:
        cursor.execute(
            _COUNT,
            [
                ids.uuid7(),
                company_id,
                actor.pk if actor else None,
                (str(actor) if actor else ANONYMOUS)[:200],
                refusal.action,
                door_now(),
                text_for_lookup(refusal.method)[:10],
                refusal.route[:200],
                refusal.status,
                text_for_lookup(refusal.path)[:200],
                refusal.address[:45],
                refusal.code[:80],
            ],
        )


@transaction.atomic
def denials_record() -> int:
    """Makes events of the attempts refused in past minutes; returns how many. Safe to run twice and beside itself."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM audit_denial WHERE minute < date_trunc('minute', yard_now()) RETURNING company_id, actor_id,"
            " actor_label, action, source, method, route, status, minute, count, path, address, code"
        )
        names = [column.name for column in cursor.description or ()]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    rows.sort(key=lambda row: (row["minute"], row["actor_label"], row["route"], row["method"]))
    events_record(
        event_draft(
            company_id=row["company_id"],
            actor=Actor(row["actor_label"], row["actor_id"]),
            action=row["action"],
            subject=Subject("request", None, f"{row['method']} {row['path']}"),
            new={name: row[name] for name in _TOLD},
            source=row["source"],
        )
        for row in rows
    )
    return len(rows)
