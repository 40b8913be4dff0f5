"""Starts, claims and growth of a plan as rows: rechecked, with their ports and slots chosen, stored in bulk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import IntegrityError, connection, transaction

from gpuyard.core import ids
from gpuyard.core.bulk import json_text, rows_insert
from gpuyard.core.money import units_for
from scheduling.engine.decisions import Claim, Grow, Policy, ReplicaPlacement, Start
from scheduling.locked import WHOLE_CARD, Card, Headroom, Subject, port_names
from scheduling.models import Allocation, Attempt, PortLease, Replica
from scheduling.rows import rows_read
from scheduling.states import AttemptState

CLAIM_S = 900  # how long a claim is kept at least; the longest grace of those who leave comes on top
_EXCLUSION = "23P01"  # what PostgreSQL calls a broken exclusion


@dataclass(frozen=True, slots=True)
class LiveAttempt:
    """An attempt that has not ended."""

    id: str
    workload_id: str
    number: int
    state: str
    tier_id: str


class Piece(NamedTuple):
    """What a replica gets of one GPU."""

    replica_id: str
    gpu_id: str
    slots: str
    units: int


@dataclass(slots=True)
class Placing:
    """One start, claim or growth with its keys, ports and slots, ready to be stored."""

    decided: Start | Claim | Grow
    subject: Subject
    attempt_id: str
    number: int
    expires_s: int | None = None  # of claims only
    replicas: list[tuple[str, ReplicaPlacement]] = field(default_factory=list)
    ports: list[tuple[Any, ...]] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)

    @property
    def is_claim(self) -> bool:
        return self.expires_s is not None


class Placer:
    """Makes the rows of one plan, one placing after the other, against what is left."""

    def __init__(
        self,
        *,
        subjects: Mapping[str, Subject],
        attempts: Iterable[LiveAttempt],
        headroom: Headroom,
        cards: Mapping[str, Card],
        policy: Policy,
    ) -> None:
        self.subjects, self.headroom, self.cards = subjects, headroom, cards
        self.is_company_scope = policy.share_scope == "company"
        self._attempts = {(one.workload_id, one.state): one for one in attempts}
        self._numbers = _last_numbers(subjects)
        self._ids = _fresh_ids()

    def objection(self, decided: Start | Claim | Grow, *, is_moved: bool = False) -> str | None:
        """Why it can no longer be stored, as a word. `is_moved`: the plan stops it where it runs now."""
        subject = self.subjects.get(decided.workload_id)
        if subject is None or not self._may_be_placed(subject, decided, is_moved):
            return "no_longer_running" if isinstance(decided, Grow) else "no_longer_waiting"
        if any(gpu_id not in self.cards for replica in decided.replicas for gpu_id in replica.gpu_ids):
            return "gpu_taken"
        is_claim = isinstance(decided, Claim)
        ports = 0 if is_claim else len(self._ports_of(subject, decided))
        return self.headroom.objection(decided.replicas, ports, is_claim=is_claim)

    def _may_be_placed(self, subject: Subject, decided: Start | Claim | Grow, is_moved: bool) -> bool:
        if isinstance(decided, Grow):
            return self._grown(subject.id) is not None
        is_free = (subject.id, AttemptState.CLAIMING) not in self._attempts
        return is_free and (subject.state == "waiting" or (isinstance(decided, Claim) and is_moved))

    def _grown(self, workload_id: str) -> LiveAttempt | None:
        running = self._attempts.get((workload_id, AttemptState.RUNNING))
        return running or self._attempts.get((workload_id, AttemptState.STARTING))

    def place(self, decided: Start | Claim | Grow, *, grace_s: int = 0) -> Placing | None:
        """None if a card has not enough slots left. `objection` was asked before."""
        placing = self._placing(decided, self.subjects[decided.workload_id], grace_s)
        is_claim = placing.is_claim
        names = [] if is_claim else self._ports_of(placing.subject, decided)
        for replica in decided.replicas:
            replica_id = next(self._ids)
            ports = self.headroom.take(replica.node_id, replica.cpu_m, replica.memory_mib, len(names))
            placing.replicas.append((replica_id, replica))
            if names:
                placing.ports += port_rows(replica_id, replica.node_id, names, ports)
            for gpu_id in replica.gpu_ids:
                card = self.cards[gpu_id]
                slots = self.headroom.take_slots(gpu_id, replica.slots, is_claim=is_claim)
                units = _units(replica.slots, card.compute_slices, card.card_slices)
                if slots is None or units is None:
                    return None
                placing.pieces.append(Piece(replica_id, gpu_id, slots, units))
        return placing

    def _placing(self, decided: Start | Claim | Grow, subject: Subject, grace_s: int) -> Placing:
        if isinstance(decided, Grow):
            live = self._grown(subject.id)
            assert live is not None
            return Placing(decided, subject, live.id, live.number)
        number = self._numbers.get(subject.id, 0) + 1
        expires_s = CLAIM_S + grace_s if isinstance(decided, Claim) else None
        return Placing(decided, subject, next(self._ids), number, expires_s)

    def _ports_of(self, subject: Subject, decided: Start | Claim | Grow) -> list[tuple[str, str]]:
        # What grows has others to meet, however few its new ones are.
        return port_names(subject, 2 if isinstance(decided, Grow) else len(decided.replicas))


def _units(slots: int, compute_slices: int, card_slices: int) -> int | None:
    """None: a part of a MIG instance that is no whole number of units."""
    try:
        return units_for(slots=slots, compute_slices=compute_slices, card_slices=card_slices)
    except ValueError:
        return None


def port_rows(
    replica_id: str, node_id: str, names: Sequence[tuple[str, str]], ports: Sequence[int]
) -> list[tuple[Any, ...]]:
    """Rows of `ports_store`."""
    keys = ids.uuid7_texts(len(names))
    return [
        (key, node_id, port, replica_id, name, path)
        for key, (name, path), port in zip(keys, names, ports, strict=True)
    ]


def _fresh_ids() -> Iterator[str]:
    while True:
        yield from ids.uuid7_texts(500)


# --- Reading ---------------------------------------------------------------------------------------------------

_ATTEMPTS = """
SELECT id::text, workload_id::text, number, state, tier_id::text FROM scheduling_attempt
WHERE workload_id = ANY(%(ids)s::uuid[]) AND state IN ('claiming', 'starting', 'running', 'stopping')
"""
_NUMBERS = """
SELECT workload_id::text, max(number) FROM scheduling_attempt WHERE workload_id = ANY(%(ids)s::uuid[]) GROUP BY 1
"""


def attempts_read(workload_ids: Iterable[str]) -> list[LiveAttempt]:
    """The attempts of the (locked) workloads that have not ended."""
    return [LiveAttempt(*row) for row in rows_read(_ATTEMPTS, ids=list(workload_ids))]


def _last_numbers(workload_ids: Iterable[str]) -> dict[str, int]:
    return dict(rows_read(_NUMBERS, ids=list(workload_ids)))


# --- Storing ---------------------------------------------------------------------------------------------------

_ATTEMPT = (
    "id",
    "workload",
    "number",
    "state",
    "pass_number",
    "tier",
    "borrowed",
    "band",
    "why_now",
    "why_here",
    "end_reason",
    "created_at",
)
_REPLICA = (
    "id",
    "attempt",
    "index",
    "spec",
    "node",
    "cpu_m",
    "memory_mib",
    "state",
    "restarts",
    "exit_reason",
    "message",
    "stdout_bytes",
    "stderr_bytes",
    "fencing_token",
    "created_at",
)
_PORT = ("id", "node", "port", "replica", "name", "health_path")
_ALLOCATION = (
    "id",
    "company",
    "team",
    "workload",
    "attempt",
    "replica",
    "gpu",
    "card",
    "is_instance",
    "tier",
    "slots",
    "scope",
    "units",
    "state",
    "expires_at",
    "span",
)
_TOKENS = "SELECT nextval('scheduling_fencing_token') FROM generate_series(1, %(count)s)"


class Store:
    """Stores the placings of one pass in bulk: rows are made while the server takes in those before them.

    `now` was read after the nodes were locked: whoever left one of their GPUs left it before, so that no start of
    an allocation lies inside the span of another one.
    """

    def __init__(self, placer: Placer, pass_number: int, now: datetime) -> None:
        self._placer, self._pass_number, self._now = placer, pass_number, now

    def placings(self, placings: Sequence[Placing]) -> list[Placing]:
        """Inserts all rows; returns the placings that did not get all their GPUs: then the caller rolls back."""
        rows_insert(Attempt, _ATTEMPT, self._attempt_rows(placings))
        rows_insert(Replica, _REPLICA, self._replica_rows(placings))
        ports_store([row for one in placings for row in one.ports])
        try:
            with transaction.atomic():
                rows_insert(Allocation, _ALLOCATION, self._allocation_rows(placings))
        except IntegrityError as error:
            if getattr(error.__cause__, "sqlstate", None) != _EXCLUSION:
                raise
            return self._short(placings)
        return []

    def _attempt_rows(self, placings: Iterable[Placing]) -> Iterator[tuple[Any, ...]]:
        for one in placings:
            decided = one.decided
            if isinstance(decided, Grow):
                continue  # its attempt is there already
            yield (
                one.attempt_id,
                one.subject.id,
                one.number,
                "claiming" if one.is_claim else "starting",
                self._pass_number,
                decided.tier_id,
                decided.borrowed,
                one.subject.band if decided.why_now.get("rule") == "band" else 0,
                json_text(dict(decided.why_now)),
                json_text(dict(decided.why_here)),
                "",
                self._now,
            )

    def _replica_rows(self, placings: Sequence[Placing]) -> Iterator[tuple[Any, ...]]:
        tokens = iter(rows_read(_TOKENS, count=sum(len(one.replicas) for one in placings)))
        return (
            (
                replica_id,
                one.attempt_id,
                replica.index,
                one.subject.spec_id,
                replica.node_id,
                replica.cpu_m,
                replica.memory_mib,
                "claiming" if one.is_claim else "assigned",
                0,
                "",
                "",
                0,
                0,
                *next(tokens),
                self._now,
            )
            for one in placings
            for replica_id, replica in one.replicas
        )

    def _allocation_rows(self, placings: Iterable[Placing]) -> Iterator[tuple[Any, ...]]:
        cards, keys, span = self._placer.cards, _fresh_ids(), f"[{self._now.isoformat()},)"
        for one in placings:
            subject = one.subject
            scope = subject.company_id if self._placer.is_company_scope else subject.team_id
            state, expires_at = "held", None
            if one.expires_s is not None:
                state, expires_at = "claimed", self._now + timedelta(seconds=one.expires_s)
            for piece in one.pieces:
                card = cards[piece.gpu_id]
                yield (
                    next(keys),
                    subject.company_id,
                    subject.team_id,
                    subject.id,
                    one.attempt_id,
                    piece.replica_id,
                    piece.gpu_id,
                    card.card,
                    card.is_instance,
                    card.tier_id,
                    piece.slots,
                    None if piece.slots == WHOLE_CARD else scope,
                    piece.units,
                    state,
                    expires_at,
                    span,
                )

    def _short(self, placings: Sequence[Placing]) -> list[Placing]:
        """Somebody is on a GPU where nobody should be: inserts the rows that can be, and tells who got too few."""
        columns = [list(column) for column in zip(*self._allocation_rows(placings), strict=True)]
        with connection.cursor() as cursor:
            cursor.execute(_ALLOCATE, columns)
            stored = Counter(str(row[0]) for row in cursor.fetchall())
        return [
            one
            for one in placings
            if len(one.pieces) > sum(stored[replica_id] for replica_id, _at in one.replicas)
        ]


_ALLOCATE = """
INSERT INTO scheduling_allocation (id, company_id, team_id, workload_id, attempt_id, replica_id, gpu_id, card,
  is_instance, tier_id, slots, scope, units, state, expires_at, span)
SELECT id, company_id, team_id, workload_id, attempt_id, replica_id, gpu_id, card, is_instance, tier_id,
  slots::int4multirange, scope, units, state, expires_at, span::tstzrange
FROM unnest(%s::uuid[], %s::uuid[], %s::uuid[], %s::uuid[], %s::uuid[], %s::uuid[], %s::uuid[], %s::uuid[],
            %s::smallint[], %s::uuid[], %s::text[], %s::uuid[], %s::int[], %s::text[], %s::timestamptz[],
            %s::text[])
  AS rows (id, company_id, team_id, workload_id, attempt_id, replica_id, gpu_id, card, is_instance, tier_id,
           slots, scope, units, state, expires_at, span)
ON CONFLICT DO NOTHING RETURNING replica_id
"""


def ports_store(rows: Sequence[tuple[Any, ...]]) -> None:
    rows_insert(PortLease, _PORT, rows)


_COUNT = """
UPDATE fleet_node SET cpu_used_m = cpu_used_m + taken.cpu, memory_used_mib = memory_used_mib + taken.memory
FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[]) AS taken (id, cpu, memory) WHERE fleet_node.id = taken.id
"""


def counters_move(used: Iterable[tuple[str, int, int]]) -> None:
    """Adds (node, CPU, memory) to what is in use there; the nodes are locked."""
    sums: dict[str, list[int]] = {}
    for node_id, cpu_m, memory_mib in used:
        total = sums.setdefault(node_id, [0, 0])
        total[0] += cpu_m
        total[1] += memory_mib
    if sums:
        with connection.cursor() as cursor:
            cursor.execute(
                _COUNT, [list(sums), *(list(column) for column in zip(*sums.values(), strict=True))]
            )
