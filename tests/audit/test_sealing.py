import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction

from gpuyard.audit import sealing, selectors
from gpuyard.audit.chain import GENESIS, seal_hash
from gpuyard.audit.models import Event
from gpuyard.audit.sealing import seal, seal_all
from gpuyard.audit.tasks import audit_seal
from gpuyard.audit.verification import chain_verify
from tests.audit.chains import COMPANY, record, sealed_chain
from tests.conftest import Connection


@pytest.mark.django_db
def test_events_are_chained_in_their_order() -> None:
    events = [record(number) for number in range(3)]
    assert seal(COMPANY) == 3
    rows = list(selectors.rows_sealed(COMPANY))
    assert [row.id for row in rows] == [event.pk for event in events]
    assert [row.sequence for row in rows] == [1, 2, 3]
    assert [row.prev for row in rows] == [GENESIS, rows[0].hash, rows[1].hash]
    assert rows[2].hash == seal_hash(rows[2], rows[1].hash or "")


@pytest.mark.django_db
def test_sealing_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "_BATCH", 2)
    sealed_chain(3)
    record()
    assert (seal(COMPANY), seal(COMPANY)) == (1, 0)
    assert chain_verify(COMPANY).findings == ()


@pytest.mark.django_db
def test_each_company_and_the_platform_have_their_own_chain() -> None:
    for company_id in (COMPANY, uuid.uuid4(), None):
        record(1, company_id)
    assert audit_seal() == 3
    assert list(Event.objects.values_list("sequence", "prev")) == [(1, GENESIS)] * 3


@pytest.mark.django_db
def test_a_number_keeps_every_digit() -> None:
    event = record()
    exact = "0.12345678901234567890123"
    with connection.cursor() as cursor:  # JSON numbers in Python are floats
        cursor.execute(
            "INSERT INTO audit_event (id, company_id, actor_label, on_behalf_of_label, action, subject_type,"
            " subject_label, reason, source, new) SELECT gen_random_uuid(), company_id, actor_label, '', action,"
            " subject_type, '', '', source, %s::jsonb FROM audit_event WHERE id = %s",
            [f'{{"amount": {exact}}}', event.pk],
        )
    seal(COMPANY)
    assert [row.new for row in selectors.rows_sealed(COMPANY)][1] == f'{{"amount": {exact}}}'


@pytest.mark.django_db
def test_the_status_says_how_far_the_chain_is_sealed_and_verified() -> None:
    sealed_chain(2)
    waiting = record()
    before = selectors.chain_status(COMPANY)
    assert (before.sealed_up_to, before.unsealed, before.is_intact) == (2, 1, None)
    assert before.oldest_unsealed_at == Event.objects.get(pk=waiting.pk).created_at
    chain_verify(COMPANY)
    after = selectors.chain_status(COMPANY)
    assert (after.verified_up_to, after.is_intact) == (2, True)
    assert after.verified_at is not None


def test_an_open_transaction_blocks_nothing_and_is_sealed_later(
    other_connection: Callable[..., Connection],
) -> None:
    writer = other_connection(autocommit=False)
    early = _insert(writer)
    late = record().pk
    assert seal(COMPANY) == 1
    _insert(writer)  # the sealer has come and gone: the writer does not wait
    writer.commit()
    assert seal(COMPANY) == 2
    assert [row.id for row in selectors.rows_sealed(COMPANY)][:2] == [late, early]
    assert chain_verify(COMPANY).findings == ()


def test_a_writer_never_waits_for_an_open_sealer(other_connection: Callable[..., Connection]) -> None:
    record()
    writer = other_connection()
    writer.execute("SET lock_timeout = '1s'")
    with transaction.atomic():
        assert seal(COMPANY) == 1
        _insert(writer)
    assert Event.objects.filter(sequence=None).count() == 1


def test_the_sealer_holds_no_lock_that_a_writer_waits_for(
    other_connection: Callable[..., Connection],
) -> None:
    """By the kinds of its locks, whatever the timing: rows that only it may change, and none on a table that keeps
    an INSERT out. Eight writers and an old transaction stand beside it meanwhile.
    """
    old = other_connection(autocommit=False)
    _insert(old)
    for number in range(20):
        record(number)
    with transaction.atomic():
        assert seal(COMPANY) == 20
        with connection.cursor() as cursor:
            cursor.execute("SELECT DISTINCT locktype, mode FROM pg_locks WHERE pid = pg_backend_pid()")
            held = set(cursor.fetchall())
        assert {mode for kind, mode in held if kind == "relation"} <= {"AccessShareLock", "RowExclusiveLock"}
        assert {kind for kind, _mode in held} <= {"relation", "advisory", "transactionid", "virtualxid"}
        writers = [other_connection() for _ in range(8)]
        for writer in writers:
            writer.execute("SET lock_timeout = '2s'")
            _insert(writer)
        _insert(old)  # neither does the writer of the old transaction wait
    old.commit()
    assert seal(COMPANY) == 10
    assert chain_verify(COMPANY).findings == ()


def test_beside_another_sealer_there_is_nothing_to_do(other_connection: Callable[..., Connection]) -> None:
    record()
    other = other_connection(autocommit=False)
    other.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"audit.seal {COMPANY}",))
    assert seal(COMPANY) == 0
    other.rollback()
    assert seal(COMPANY) == 1


@pytest.mark.django_db(transaction=True)
def test_concurrent_writers_and_sealers_make_one_chain() -> None:
    has_ended = threading.Event()

    def write(writer: int) -> None:
        try:
            for number in range(40):
                with transaction.atomic():
                    record(writer * 100 + number)
                    record(number, None)
        finally:
            connection.close()

    def seal_until_the_end() -> None:
        try:
            while not has_ended.is_set():
                seal_all()
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as pool:
        sealers = [pool.submit(seal_until_the_end) for _ in range(2)]
        writers = [pool.submit(write, writer) for writer in range(4)]
        for writer in writers:
            writer.result(timeout=60)
        has_ended.set()
        for sealer in sealers:
            sealer.result(timeout=60)
    seal_all()
    for company_id in (COMPANY, None):
        report = chain_verify(company_id)
        assert (report.sequence, report.unsealed, report.findings) == (160, 0, ())


def _insert(writer: Connection) -> uuid.UUID:
    row = writer.execute(
        "INSERT INTO audit_event (id, company_id, actor_label, on_behalf_of_label, action, subject_type,"
        " subject_label, reason, source) VALUES (gen_random_uuid(), %s, 'x', '', 'x', 'x', '', '', 'system')"
        " RETURNING id",
        (COMPANY,),
    ).fetchone()
    assert row is not None
    assert isinstance(row[0], uuid.UUID)
    return row[0]
