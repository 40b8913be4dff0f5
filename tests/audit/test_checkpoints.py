"""Signed checkpoints, exports, and what they prove without the database."""

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.db.utils import ProgrammingError
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.audit import chain, checkpoints, selectors
from gpuyard.audit.models import Checkpoint
from gpuyard.audit.sealing import seal
from gpuyard.audit.tasks import audit_checkpoint, audit_verify
from gpuyard.audit.verification import chain_verify
from tests.audit.chains import COMPANY, record, sealed_chain, unguarded
from tests.conftest import Connection


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., dict[str, Path]]:
    """`files()` exports everything now."""

    def export() -> dict[str, Path]:
        made = {name: tmp_path / name for name in ("events", "checkpoints", "public_key")}
        arguments = [f"--{name.replace('_', '-')}={path}" for name, path in made.items()]
        call_command("export_audit", *arguments, stdout=io.StringIO())
        return made

    return export


def verify(**files: Path) -> tuple[int, list[tuple[str, int]], dict[str, Any]]:
    """The exit status, the kind and place of each finding, the last line."""
    out = io.StringIO()
    try:
        call_command("verify_audit", *(f"--{k.replace('_', '-')}={v}" for k, v in files.items()), stdout=out)
        status = 0
    except SystemExit as exc:
        status = int(exc.code or 0)
    answer = json.loads(out.getvalue().splitlines()[-1])
    findings = [(one["kind"], one["sequence"]) for part in answer["chains"] for one in part["findings"]]
    return status, findings, answer


# --- Making them -------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_checkpoint_is_made_where_a_chain_has_grown() -> None:
    rows = sealed_chain(3)
    sealed_chain(1, None)
    assert (audit_checkpoint(), audit_checkpoint()) == (2, 0)
    made = Checkpoint.objects.get(company_id=COMPANY)
    assert (made.sequence, made.hash) == (3, rows[-1].hash)
    sealed_chain(1)
    assert audit_checkpoint() == 1


@pytest.mark.django_db
def test_a_few_lines_of_somebody_else_check_the_signature(files: Callable[..., dict[str, Path]]) -> None:
    sealed_chain(2)
    audit_checkpoint()
    made = files()
    said = json.loads(made["checkpoints"].read_text())
    key: Any = load_pem_public_key(made["public_key"].read_bytes())
    parts = ["gpuyard audit checkpoint 1", said["company_id"], said["sequence"], said["hash"], said["at"]]
    signature = base64.b64decode(said["signature"])
    key.verify(signature, json.dumps(parts, separators=(",", ":")).encode())


@pytest.mark.django_db
@pytest.mark.parametrize(
    "statement", ["UPDATE audit_checkpoint SET sequence = 9", "DELETE FROM audit_checkpoint"]
)
def test_the_app_role_cannot_change_a_checkpoint(statement: str) -> None:
    sealed_chain(1)
    audit_checkpoint()
    with pytest.raises(ProgrammingError, match="permission denied"), transaction.atomic():
        connection.cursor().execute(statement)


@pytest.mark.django_db
def test_there_is_one_checkpoint_for_one_place() -> None:
    sealed_chain(1, None)
    audit_checkpoint()
    made = Checkpoint.objects.get()
    with pytest.raises(IntegrityError, match="audit_checkpoint_once"), transaction.atomic():
        Checkpoint.objects.create(
            **{n: getattr(made, n) for n in ("created_at", "sequence", "hash", "key_id")}
        )


# --- What they prove ---------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_an_export_is_verified_without_the_database(
    files: Callable[..., dict[str, Path]], django_assert_num_queries: Any
) -> None:
    sealed_chain(3)
    sealed_chain(2, None)
    record()
    audit_checkpoint()
    made = files()
    with django_assert_num_queries(0):
        status, findings, answer = verify(**made)
    assert (status, findings) == (0, [])
    assert [one["sequence"] for one in answer["chains"]] == [3, 2]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda lines: [lines[0].replace("workload.state", "workload.stat"), *lines[1:]], [("altered", 1)]),
        (lambda lines: [*lines[:1], *lines[2:]], [("deleted", 2)]),
        (lambda lines: lines[:2], [("deleted", 3)]),
        (lambda lines: list(reversed(lines)), []),  # newest first, as the page exports it
    ],
)
def test_tampering_with_an_export_is_named(
    files: Callable[..., dict[str, Path]], change: Callable[[list[str]], list[str]], expected: list[Any]
) -> None:
    sealed_chain(3)
    audit_checkpoint()
    made = files()
    lines = made["events"].read_text().splitlines(keepends=True)
    made["events"].write_text("".join(change(lines)))
    assert verify(**made)[1] == expected


@pytest.mark.django_db
def test_a_forged_checkpoint_is_named(files: Callable[..., dict[str, Path]]) -> None:
    sealed_chain(3)
    audit_checkpoint()
    made = files()
    said = json.loads(made["checkpoints"].read_text())
    forged = [{**said, "sequence": 2}, {**said, "key_id": "0" * 16}, {**said, "signature": "AAAA"}]
    made["checkpoints"].write_text("\n".join(map(json.dumps, forged)))
    assert verify(**made)[:2] == (1, [("checkpoint", 2), ("checkpoint", 3), ("checkpoint", 3)])


def test_a_chain_sealed_anew_from_its_beginning_is_found_by_a_checkpoint(
    owner_connection: Connection, files: Callable[..., dict[str, Path]]
) -> None:
    sealed_chain(3)
    audit_checkpoint()
    made = files()
    with unguarded(owner_connection) as owner:
        owner.execute("DELETE FROM audit_event WHERE sequence = 1")
        owner.execute("UPDATE audit_event SET sequence = NULL, prev = NULL, hash = NULL")
        for table in ("audit_checkpoint", "audit_verification"):
            owner.execute(f"ALTER TABLE {table} DISABLE TRIGGER ALL".encode())
            owner.execute(f"DELETE FROM {table}".encode())
            owner.execute(f"ALTER TABLE {table} ENABLE TRIGGER ALL".encode())
    record()
    seal(COMPANY)
    assert chain_verify(COMPANY).findings == ()
    assert verify(checkpoints=made["checkpoints"], public_key=made["public_key"])[:2] == (1, [("altered", 3)])


def test_a_stored_checkpoint_that_was_altered_is_named(owner_connection: Connection) -> None:
    sealed_chain(2)
    audit_checkpoint()
    owner_connection.execute("ALTER TABLE audit_checkpoint DISABLE TRIGGER ALL")
    owner_connection.execute("UPDATE audit_checkpoint SET created_at = created_at - interval '1 day'")
    assert [one.kind for one in chain_verify(COMPANY).findings] == ["checkpoint"]
    assert audit_verify() == 1


@pytest.mark.django_db
def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_text("{}\n")
    key = tmp_path / "key"
    key.write_text(checkpoints.public_key_pem())
    for arguments, message in (
        ([f"--checkpoints={junk}"], "needs --public-key"),
        ([f"--checkpoints={junk}", f"--public-key={junk}"], "no public key"),
        ([f"--checkpoints={junk}", f"--public-key={key}"], "no export of checkpoints"),
        ([f"--events={junk}"], "line 1 is no event"),
    ):
        with pytest.raises(CommandError, match=message):
            call_command("verify_audit", *arguments)


# --- The form of a line ------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.django_db
@settings(max_examples=60, deadline=None)
@given(JSON)
def test_a_line_gives_back_what_was_sealed(document: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT %s::jsonb::text", [json.dumps({"value": document, "exact": 0}).replace("0}", "1.10e-5}")]
        )
        (text,) = cursor.fetchone()
    sealed_chain(1)
    row = next(iter(selectors.rows_sealed(COMPANY)))._replace(new=text)
    assert chain.line_read(chain.line(row)) == row
    assert "\n" not in chain.line(row)
