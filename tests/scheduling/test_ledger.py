"""The allocation ledger's rules, as the database holds them, also under many connections at once."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable
from typing import Any, LiteralString

import psycopg
import pytest
from django.db import DataError, IntegrityError, InternalError, connection, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

from gpuyard.core import clock
from gpuyard.fleet.models import Gpu
from scheduling.models import Allocation, Replica
from scheduling.states import ALLOCATION_EDGES
from tests import factories as make

Connect = Callable[..., psycopg.Connection[tuple[Any, ...]]]

SHARES = ("{[0,250)}", "{[250,500)}", "{[500,1000)}", "{[0,500)}", "{[100,200),[700,800)}")
_INSERT: LiteralString = """
INSERT INTO scheduling_allocation (id, company_id, team_id, workload_id, attempt_id, replica_id, gpu_id, card,
  is_instance, tier_id, slots, scope, units, span, state, expires_at)
SELECT %(id)s, company_id, team_id, workload_id, attempt_id, replica_id, gpu_id, card, %(is_instance)s, tier_id,
  %(slots)s::int4multirange, CASE WHEN %(slots)s::int4multirange <> '{[0,1000)}' THEN team_id END,
  7000, tstzrange(yard_now(), NULL), %(state)s::text,
  CASE WHEN %(state)s::text = 'claimed' THEN yard_now() + interval '1 hour' END
FROM scheduling_allocation WHERE id = %(like)s
"""


@pytest.fixture
def held(db: None) -> Allocation:
    """A whole GPU held by somebody, and the row that other rows are modelled on."""
    tier = make.tier()
    node = make.node(tier, 1)
    replica = make.replica(make.attempt(make.workload(make.team(), tier), tier), node)
    return make.allocation(replica, node.gpus.get())


def _second(row: Allocation, **fields: Any) -> Allocation:
    return make.allocation(row.replica, row.gpu, **fields)


def _end(row: Allocation) -> None:
    Allocation.objects.filter(pk=row.pk).update(
        state="ended", span=DateTimeTZRange(row.span.lower, clock.now())
    )


def _move(row: Allocation, state: str) -> None:
    Allocation.objects.filter(pk=row.pk).update(state=state)


def _refused(act: Callable[[], Any], *words: str) -> None:
    with pytest.raises((IntegrityError, DataError, InternalError)) as caught, transaction.atomic():
        act()
    assert any(word in str(caught.value) for word in words), str(caught.value)


def test_two_holders_of_one_gpu_are_refused(held: Allocation) -> None:
    _refused(lambda: _second(held), "scheduling_slots_once")


def test_a_claim_over_a_held_gpu_is_refused(held: Allocation) -> None:
    _refused(lambda: _second(held, state="claimed"), "scheduling_slots_once")


def test_a_claim_waits_behind_a_stopping_victim_and_starts_after_it(held: Allocation) -> None:
    _move(held, "stopping")
    claim = _second(held, state="claimed")

    def start() -> None:
        now = clock.now()
        Allocation.objects.filter(pk=claim.pk).update(
            state="held", claimed_at=claim.span.lower, span=DateTimeTZRange(now, None)
        )

    _refused(start, "scheduling_slots_once")
    _end(held)
    start()
    claim.refresh_from_db()
    assert claim.state == "held"
    assert claim.claimed_at is not None
    assert claim.span.lower > claim.claimed_at


def test_a_claim_cannot_be_stolen(held: Allocation) -> None:
    _move(held, "stopping")
    _second(held, state="claimed")
    _end(held)
    _refused(lambda: _second(held), "scheduling_slots_once")
    _refused(lambda: _second(held, state="claimed"), "scheduling_slots_once")


def test_a_lost_holder_blocks_claims_and_holders(held: Allocation) -> None:
    _move(held, "unconfirmed")
    _refused(lambda: _second(held), "scheduling_slots_once")
    _refused(lambda: _second(held, state="claimed"), "scheduling_slots_once")


def test_a_card_is_held_whole_or_by_instances(held: Allocation) -> None:
    key = uuid.uuid4()
    instance = Gpu.objects.create(
        node=held.gpu.node,
        tier=held.tier,
        device_uuid="MIG-1",
        card=held.card,
        is_instance=1,
        index=1,
        compute_slices=3,
        memory_mib=20_000,
        id=key,
    )
    _refused(lambda: make.allocation(held.replica, instance), "scheduling_card_or_mig")
    _end(held)
    assert make.allocation(held.replica, instance).state == "held"


@pytest.mark.parametrize("slots", [None, [], [Range(0, 1001)], [Range(-1, 5)]])
def test_slots_outside_the_card_are_refused(held: Allocation, slots: list[Range[int]] | None) -> None:
    _end(held)

    def insert() -> None:
        row = Allocation.objects.get(pk=held.pk)
        row.pk, row.state, row._state.adding = uuid.uuid4(), "held", True
        row.span = DateTimeTZRange(clock.now(), None)
        row.slots = None if slots is None else Multirange(slots)
        row.save(force_insert=True)

    _refused(insert, "slots")


@pytest.mark.parametrize(
    "span",
    [
        "NULL",
        "'empty'",
        "tstzrange(NULL, NULL)",
        "tstzrange(yard_now(), 'infinity')",
        "tstzrange('-infinity', NULL)",
    ],
)
def test_empty_null_and_infinite_spans_are_refused(held: Allocation, span: str) -> None:
    _end(held)

    def insert() -> None:
        columns = (
            "company_id, team_id, workload_id, attempt_id, replica_id, gpu_id, card, is_instance, tier_id"
        )
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO scheduling_allocation (id, {columns}, slots, units, span, state)"
                f" SELECT gen_random_uuid(), {columns}, slots, units, {span}, 'held'"
                " FROM scheduling_allocation WHERE id = %s",
                [held.pk],
            )

    _refused(insert, "span", "open")


def test_only_the_edges_of_the_table_are_allowed(held: Allocation) -> None:
    allowed = ALLOCATION_EDGES["held"]
    for state in set(ALLOCATION_EDGES) - set(allowed) - {"held"}:
        _refused(lambda state=state: _move(held, state), "cannot go", "open", "claim")  # type: ignore[misc]


def test_an_ended_row_never_changes(held: Allocation) -> None:
    _end(held)
    _refused(lambda: _move(held, "held"), "does not change")
    _refused(lambda: Allocation.objects.filter(pk=held.pk).update(expires_at=clock.now()), "does not change")


@pytest.mark.parametrize(("column", "value"), [("units", 1), ("card", uuid.uuid4()), ("is_instance", 1)])
def test_what_counts_is_frozen(held: Allocation, column: str, value: Any) -> None:
    _refused(lambda: Allocation.objects.filter(pk=held.pk).update(**{column: value}), "frozen")


@pytest.mark.parametrize("column", ["replica", "attempt", "workload", "team", "company"])
def test_an_allocation_is_of_one_owner(held: Allocation, column: str) -> None:
    """Whoever exists is not enough: the attempt must be the replica's, and so on up to the company."""
    other = make.replica(make.attempt(make.workload(make.team(), held.tier), held.tier), held.gpu.node)
    owners = {
        "replica": other.pk,
        "attempt": other.attempt_id,
        "workload": other.attempt.workload_id,
        "team": other.attempt.workload.team_id,
        "company": other.attempt.workload.company_id,
    }
    gpu = make.node(held.tier, 1).gpus.get()

    def mixed() -> None:
        row = Allocation(
            **{field.attname: getattr(held, field.attname) for field in Allocation._meta.concrete_fields}
        )
        row.pk, row.gpu, row.card = uuid.uuid4(), gpu, gpu.card
        setattr(row, f"{column}_id", owners[column])
        row.save(force_insert=True)
        connection.cursor().execute("SET CONSTRAINTS ALL IMMEDIATE")

    _refused(mixed, "scheduling_allocation_of_")


def test_the_start_of_a_held_row_is_frozen(held: Allocation) -> None:
    later = DateTimeTZRange(clock.now(), None)
    _refused(lambda: Allocation.objects.filter(pk=held.pk).update(span=later), "frozen")


@pytest.mark.parametrize(
    "statement", ["DELETE FROM {}", "TRUNCATE {} CASCADE", "ALTER TABLE {} DISABLE TRIGGER ALL"]
)
def test_the_app_role_cannot_empty_the_ledger(held: Allocation, statement: str) -> None:
    with pytest.raises(Exception, match=r"permission denied|must be owner"), transaction.atomic():
        connection.cursor().execute(statement.format("scheduling_allocation"))


@pytest.mark.django_db(transaction=True)
def test_a_storm_of_starts_and_claims_never_stores_an_overlap(other_connection: Connect) -> None:
    """200 operations on 8 connections: whole and shared, starts and claims, starts of claims, ends."""
    tier = make.tier()
    node = make.node(tier, 4)
    attempt = make.attempt(make.workload(make.team(), tier), tier)
    replica: Replica = make.replica(attempt, node)
    models = []
    for gpu in node.gpus.all():
        row = make.allocation(replica, gpu)
        _end(row)
        models.append(row.pk)
    done: list[str] = []
    threads = [
        threading.Thread(target=_storm, args=(other_connection(), models, 25, seed, done))
        for seed in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(done) == 200
    assert done.count("stored") > 20
    assert done.count("refused") > 20
    assert _overlaps("'held', 'stopping', 'unconfirmed', 'ended'") == 0
    assert _overlaps("'claimed', 'held', 'unconfirmed'") == 0


_RESTART: LiteralString = """
UPDATE scheduling_allocation c SET state = 'held', claimed_at = lower(span), span = tstzrange(yard_now(), NULL)
WHERE id = (SELECT id FROM scheduling_allocation WHERE state = 'claimed' ORDER BY random() LIMIT 1)
  AND state = 'claimed' AND NOT EXISTS (SELECT 1 FROM scheduling_allocation v WHERE v.gpu_id = c.gpu_id
    AND v.slots && c.slots AND v.state IN ('stopping', 'unconfirmed'))
"""
_STOP: LiteralString = """
UPDATE scheduling_allocation SET state = 'stopping', stopping_at = yard_now()
WHERE id = (SELECT id FROM scheduling_allocation WHERE state = 'held' ORDER BY random() LIMIT 1) AND state = 'held'
"""
_FINISH: LiteralString = """
UPDATE scheduling_allocation SET state = 'ended', span = tstzrange(lower(span), greatest(yard_now(),
  lower(span) + interval '1 microsecond'))
WHERE id = (SELECT id FROM scheduling_allocation WHERE state = 'stopping' ORDER BY random() LIMIT 1)
  AND state = 'stopping'
"""


def _storm(
    own: psycopg.Connection[tuple[Any, ...]],
    models: list[uuid.UUID],
    turns: int,
    seed: int,
    done: list[str],
) -> None:
    dice = random.Random(seed)
    for _turn in range(turns):
        choice = dice.random()
        try:
            if choice < 0.6:
                values = {
                    "id": uuid.uuid4(),
                    "like": dice.choice(models),
                    "is_instance": 0,
                    "slots": "{[0,1000)}" if dice.random() < 0.4 else dice.choice(SHARES),
                    "state": "held" if dice.random() < 0.6 else "claimed",
                }
                cursor = own.execute(_INSERT, values)
            else:
                cursor = own.execute(dice.choice((_RESTART, _STOP, _FINISH)))
            outcome = "stored" if cursor.rowcount else "refused"
        except (psycopg.errors.ExclusionViolation, psycopg.errors.DeadlockDetected):
            outcome = "refused"
        done.append(outcome)


def _overlaps(states: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM scheduling_allocation a JOIN scheduling_allocation b ON a.id < b.id"
            " AND a.gpu_id = b.gpu_id AND a.slots && b.slots AND a.span && b.span"
            f" WHERE a.state IN ({states}) AND b.state IN ({states})"
        )
        (count,) = cursor.fetchone()
    return int(count)
