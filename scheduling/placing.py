"""Starts, claims and growth of a plan as rows: rechecked, with their ports and slots chosen, stored in bulk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import connection

from gpuyard.core import ids
from gpuyard.core.bulk import rows_insert
from gpuyard.core.money import units_for
from scheduling.engine.decisions import Claim, Grow, Policy, ReplicaPlacement, Start
from scheduling.locked import WHOLE_CARD, Card, Headroom, Subject, json_text, port_names
from scheduling.models import Attempt, PortLease, Replica
from scheduling.rows import array_text, rows_read
from scheduling.states import AllocationState, AttemptState, ReplicaState

CLAIM_S = 900  # how long a claim is kept at least; the longest grace of those who leave comes on top


@dataclass(frozen=True, slots=True)
class LiveAttempt:
    """An attempt that has not ended."""

    id: str
    workload_id: str
    number: int
    state: str
    tier_id: str


@dataclass
class Placing:
    """One start, claim or growth with its rows, ready to be stored. `expires_s` is set for claims only."""

    decided: Start | Claim | Grow
    subject: Subject
    attempt_id: str
    number: int
    expires_s: int | None = None
    attempt: tuple[Any, ...] | None = None  # None: the attempt is there already
    replicas: list[tuple[Any, ...]] = field(default_factory=list)
    ports: list[tuple[Any, ...]] = field(default_factory=list)
    allocations: list[tuple[Any, ...]] = field(default_factory=list)

    @property
    def is_claim(self) -> bool:
        return isinstance(self.decided, Claim)


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
        pass_number: int,
    ) -> None:
        self.subjects, self.headroom, self.cards = subjects, headroom, cards
        self._is_company_scope = policy.share_scope == "company"
        self._pass_number = pass_number
        self._attempts = {(one.workload_id, one.state): one for one in attempts}
        self._numbers = _last_numbers(subjects)

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
        """The rows; None if a card has not enough slots left. `objection` was asked before."""
        subject = self.subjects[decided.workload_id]
        placing = self._placing(decided, subject, grace_s)
        names = [] if placing.is_claim else self._ports_of(subject, decided)
        for replica in decided.replicas:
            replica_id = ids.uuid7_text()
            ports = self.headroom.take(replica.node_id, replica.cpu_m, replica.memory_mib, len(names))
            state = ReplicaState.CLAIMING if placing.is_claim else ReplicaState.ASSIGNED
            placing.replicas.append(_replica_row(placing, replica_id, replica, state.value))
            placing.ports += port_rows(replica_id, replica.node_id, names, ports)
            for gpu_id in replica.gpu_ids:
                slots = self.headroom.take_slots(gpu_id, replica.slots, is_claim=placing.is_claim)
                units = self._units(gpu_id, replica.slots)
                if slots is None or units is None:
                    return None
                row = self._allocation_row(placing, replica_id, gpu_id, slots, units)
                placing.allocations.append(row)
        return placing

    def _placing(self, decided: Start | Claim | Grow, subject: Subject, grace_s: int) -> Placing:
        if isinstance(decided, Grow):
            live = self._grown(subject.id)
            assert live is not None
            return Placing(decided, subject, live.id, live.number)
        is_claim = isinstance(decided, Claim)
        attempt_id, number = ids.uuid7_text(), self._numbers.get(subject.id, 0) + 1
        row = (
            attempt_id,
            subject.id,
            number,
            (AttemptState.CLAIMING if is_claim else AttemptState.STARTING).value,
            self._pass_number,
            decided.tier_id,
            decided.borrowed,
            subject.band if decided.why_now.get("rule") == "band" else 0,
            json_text(dict(decided.why_now)),
            json_text(dict(decided.why_here)),
            "",
        )
        expires_s = CLAIM_S + grace_s if is_claim else None
        return Placing(decided, subject, attempt_id, number, expires_s, row)

    def _ports_of(self, subject: Subject, decided: Start | Claim | Grow) -> list[tuple[str, str]]:
        # What grows has others to meet, however few its new ones are.
        return port_names(subject, 2 if isinstance(decided, Grow) else len(decided.replicas))

    def _units(self, gpu_id: str, slots: int) -> int | None:
        """None: a part of a MIG instance that is no whole number of units."""
        card = self.cards[gpu_id]
        try:
            return units_for(slots=slots, compute_slices=card.compute_slices, card_slices=card.card_slices)
        except ValueError:
            return None

    def _allocation_row(
        self, placing: Placing, replica_id: str, gpu_id: str, slots: str, units: int
    ) -> tuple[Any, ...]:
        card, subject = self.cards[gpu_id], placing.subject
        scope = subject.company_id if self._is_company_scope else subject.team_id
        return (
            ids.uuid7_text(),
            subject.company_id,
            subject.team_id,
            subject.id,
            placing.attempt_id,
            replica_id,
            gpu_id,
            card.card,
            card.is_instance,
            card.tier_id,
            f'"{slots}"',
            None if slots == WHOLE_CARD else scope,
            units,
            (AllocationState.CLAIMED if placing.is_claim else AllocationState.HELD).value,
            placing.expires_s,
        )


def _replica_row(placing: Placing, replica_id: str, replica: ReplicaPlacement, state: str) -> tuple[Any, ...]:
    return (
        replica_id,
        placing.attempt_id,
        replica.index,
        placing.subject.spec_id,
        replica.node_id,
        replica.cpu_m,
        replica.memory_mib,
        state,
        0,
        "",
        "",
        0,
        0,
    )


def port_rows(
    replica_id: str, node_id: str, names: Sequence[tuple[str, str]], ports: Sequence[int]
) -> list[tuple[Any, ...]]:
    """Rows of `ports_store`."""
    return [
        (ids.uuid7_text(), node_id, port, replica_id, name, path)
        for (name, path), port in zip(names, ports, strict=True)
    ]


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
)
_PORT = ("id", "node", "port", "replica", "name", "health_path")
_TOKENS = "SELECT nextval('scheduling_fencing_token') FROM generate_series(1, %(count)s)"
# The time is the statement's own: with the snapshot's, ON CONFLICT would skip a GPU that became free since.
_ALLOCATE = """
INSERT INTO scheduling_allocation (id, company_id, team_id, workload_id, attempt_id, replica_id, gpu_id, card,
  is_instance, tier_id, slots, scope, units, span, state, expires_at)
SELECT id, company_id, team_id, workload_id, attempt_id, replica_id, gpu_id, card, is_instance, tier_id,
  slots::int4multirange, scope, units, tstzrange(yard_now(), NULL), state,
  yard_now() + make_interval(secs => expires_s)
FROM unnest(%s::uuid[], %s::uuid[], %s::uuid[], %s::uuid[], %s::uuid[], %s::uuid[], %s::uuid[], %s::uuid[],
            %s::smallint[], %s::uuid[], %s::text[], %s::uuid[], %s::int[], %s::text[], %s::int[])
  AS rows (id, company_id, team_id, workload_id, attempt_id, replica_id, gpu_id, card, is_instance, tier_id,
           slots, scope, units, state, expires_s)
ON CONFLICT DO NOTHING RETURNING replica_id::text
"""


def placings_store(placings: Sequence[Placing]) -> list[Placing]:
    """Inserts all rows; returns the placings that did not get all their GPUs: then the caller rolls back."""
    rows_insert(Attempt, _ATTEMPT, [one.attempt for one in placings if one.attempt])
    replicas = [row for one in placings for row in one.replicas]
    tokens = rows_read(_TOKENS, count=len(replicas))
    rows_insert(Replica, _REPLICA, [(*row, *token) for row, token in zip(replicas, tokens, strict=True)])
    ports_store([row for one in placings for row in one.ports])
    stored = _allocations_store([row for one in placings for row in one.allocations])
    return [
        one
        for one in placings
        if len(one.allocations) > sum(stored[replica_id] for replica_id in {row[0] for row in one.replicas})
    ]


def ports_store(rows: Sequence[tuple[Any, ...]]) -> None:
    rows_insert(PortLease, _PORT, rows)


def _allocations_store(rows: Sequence[tuple[Any, ...]]) -> Counter[str]:
    """Returns how many rows each replica got."""
    if not rows:
        return Counter()
    with connection.cursor() as cursor:
        cursor.execute(_ALLOCATE, [array_text(column) for column in zip(*rows, strict=True)])
        return Counter(row[0] for row in cursor.fetchall())


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
