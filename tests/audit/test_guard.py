from collections.abc import Iterator

import psycopg
import pytest
from django.db import connection, transaction
from django.db.utils import DatabaseError, IntegrityError, ProgrammingError

from gpuyard.audit.models import Event, Verification
from gpuyard.audit.sealing import seal
from gpuyard.audit.selectors import guards_missing
from gpuyard.audit.verification import chain_verify
from gpuyard.fleet.topology import domain_delete
from tests import factories
from tests.audit.chains import COMPANY, record, sealed_chain
from tests.conftest import Connection

SEALED = {"prev": "0" * 64, "hash": "f" * 64}
COLUMNS = sorted({field.attname for field in Event._meta.fields} - {"sequence", "prev", "hash"})


@pytest.fixture
def refused_statements(db: None) -> Iterator[None]:
    record()
    yield
    assert Event.objects.count() == 1


@pytest.mark.usefixtures("refused_statements")
@pytest.mark.parametrize("column", COLUMNS)
def test_the_app_role_cannot_change_any_other_column(column: str) -> None:
    with pytest.raises(ProgrammingError, match="permission denied"), transaction.atomic():
        _execute(f"UPDATE audit_event SET {column} = {column}")


@pytest.mark.usefixtures("refused_statements")
@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM audit_event",
        "TRUNCATE audit_event",
        "ALTER TABLE audit_event DISABLE TRIGGER ALL",
        "ALTER TABLE audit_event DISABLE TRIGGER audit_event_guard",
        "DROP TRIGGER audit_event_guard ON audit_event",
        "CREATE OR REPLACE FUNCTION audit_keep() RETURNS trigger LANGUAGE sql AS 'SELECT NULL'",
        "SET session_replication_role = replica",
        "DROP TABLE audit_event",
    ],
)
def test_the_app_role_cannot_get_around_the_guard(statement: str) -> None:
    with pytest.raises(DatabaseError, match=r"permission denied|must be owner"), transaction.atomic():
        _execute(statement)


@pytest.mark.django_db
def test_an_event_is_sealed_once() -> None:
    record()
    assert Event.objects.update(sequence=1, **SEALED) == 1
    with pytest.raises(IntegrityError, match="never changes"), transaction.atomic():
        Event.objects.update(sequence=2, **SEALED)
    with pytest.raises(IntegrityError, match="never changes"), transaction.atomic():
        Event.objects.update(sequence=None, prev=None, hash=None)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "seal_columns",
    [
        {"sequence": 1},
        {"sequence": 1, "hash": "f" * 64},
        {"sequence": 0, **SEALED},
        {"sequence": 1, **SEALED, "hash": "x"},
    ],
)
def test_a_seal_is_whole(seal_columns: dict[str, object]) -> None:
    record()
    with pytest.raises(IntegrityError, match="audit_event_sealed_whole"), transaction.atomic():
        Event.objects.update(**seal_columns)


@pytest.mark.django_db
@pytest.mark.parametrize("company_id", [COMPANY, None])
def test_no_two_events_hold_one_place(company_id: object) -> None:
    record(1, COMPANY if company_id else None)
    seal(COMPANY if company_id else None)
    second = record(2, COMPANY if company_id else None)
    with pytest.raises(IntegrityError, match="audit_event_sequence"), transaction.atomic():
        Event.objects.filter(pk=second.pk).update(sequence=1, **SEALED)


@pytest.mark.django_db
def test_an_event_is_not_stored_sealed() -> None:
    with pytest.raises(IntegrityError, match="stored unsealed"), transaction.atomic():
        Event.objects.create(action="x", actor_label="x", subject_type="x", sequence=1, **SEALED)


@pytest.mark.parametrize("table", ["audit_event", "audit_verification"])
@pytest.mark.parametrize("statement", ["DELETE FROM {}", "TRUNCATE {}"])
def test_the_triggers_hold_for_the_owner_too(
    owner_connection: Connection, table: str, statement: str
) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match="only grows"):
        owner_connection.execute(statement.format(table).encode())


def test_the_owner_cannot_just_edit_either(owner_connection: Connection) -> None:
    record()
    with pytest.raises(psycopg.errors.CheckViolation, match="never changes"):
        owner_connection.execute("UPDATE audit_event SET actor_label = 'nobody'")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "statement", ["UPDATE audit_verification SET sequence = 9", "DELETE FROM audit_verification"]
)
def test_the_app_role_cannot_change_a_verification(statement: str) -> None:
    sealed_chain(1)
    chain_verify(COMPANY)
    with pytest.raises(ProgrammingError, match="permission denied"), transaction.atomic():
        _execute(statement)
    assert Verification.objects.get().sequence == 1


@pytest.mark.django_db
def test_no_foreign_key_ties_the_log_to_what_it_is_about() -> None:
    """So whatever is deleted, its events stay as they were, names included."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT conname FROM pg_constraint WHERE contype = 'f' AND conrelid::regclass::text LIKE 'audit_%'"
        )
        assert cursor.fetchall() == []
    domain = factories.domain("rack", "r1")
    domain_delete(actor=factories.admin(), domain_id=domain.pk)
    event = Event.objects.get(subject_type="fabricdomain")
    assert (event.subject_id, event.subject_label, event.old) == (
        domain.pk,
        str(domain),
        {"level": "rack", "name": "r1"},
    )


def test_a_guard_that_is_off_is_noticed(owner_connection: Connection) -> None:
    assert guards_missing() == []
    owner_connection.execute("ALTER TABLE audit_event DISABLE TRIGGER audit_event_keep")
    assert guards_missing() == ["audit_event_keep"]


def _execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
