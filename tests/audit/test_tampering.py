"""The owner of the database can switch every guard off; verification finds what was done then."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from gpuyard.audit.chain import SealedRow
from gpuyard.audit.verification import chain_verify
from tests.audit.chains import COMPANY, put_in, record, sealed_chain, shift, unguarded
from tests.conftest import Connection

# one for each event of the chain
CHANGES = [
    "actor_label = 'nobody'",
    "new = '{}'",
    "reason = reason || ' '",
    "created_at = created_at - interval '1 microsecond'",
    "subject_id = NULL",
    "action = 'x'",
    "prev = repeat('a', 64)",
    "hash = repeat('b', 64)",
]


@pytest.fixture
def owner(owner_connection: Connection) -> Iterator[Connection]:
    """The owner role with all guards off."""
    with unguarded(owner_connection) as connection:
        yield connection


@pytest.fixture
def rows(owner: Connection) -> list[SealedRow]:
    """A sealed chain of eight."""
    return sealed_chain(8)


def found() -> list[tuple[str, int, int]]:
    findings = chain_verify(COMPANY).findings
    return [(one.kind, one.sequence, one.last_sequence) for one in findings]


def test_altered_events_are_named(owner: Connection, rows: list[SealedRow]) -> None:
    for sequence, change in enumerate(CHANGES, start=1):
        owner.execute(f"UPDATE audit_event SET {change} WHERE sequence = {sequence}".encode())
    findings = chain_verify(COMPANY).findings
    assert [(one.kind, one.event_id) for one in findings] == [("altered", str(row.id)) for row in rows]


def test_an_event_that_was_replaced_and_sealed_anew_is_named(
    owner: Connection, rows: list[SealedRow]
) -> None:
    owner.execute("DELETE FROM audit_event WHERE sequence = 4")
    put_in(owner, sequence=4, prev=rows[2].hash or "")
    assert found() == [("altered", 4, 4)]


def test_deleted_events_are_named(owner: Connection, rows: list[SealedRow]) -> None:
    owner.execute("DELETE FROM audit_event WHERE sequence BETWEEN 3 AND 6")
    assert found() == [("deleted", 3, 6)]


def test_a_tail_cut_after_a_verification_is_named(owner: Connection, rows: list[SealedRow]) -> None:
    assert found() == []
    owner.execute("DELETE FROM audit_event WHERE sequence > 5")
    assert found() == [("deleted", 6, 8)]
    sealed_chain(4)  # the log has gone on, over the old place
    assert found() == [("altered", 8, 8)]


def test_an_inserted_event_is_named(owner: Connection, rows: list[SealedRow]) -> None:
    shift(owner, start=4, by=1)
    forged = put_in(owner, sequence=4, prev=rows[2].hash or "")
    (finding,) = chain_verify(COMPANY).findings
    assert (finding.kind, finding.sequence, finding.event_id) == ("inserted", 4, str(forged))


def test_swapped_events_are_named(owner: Connection, rows: list[SealedRow]) -> None:
    owner.execute("UPDATE audit_event SET sequence = 9 - sequence WHERE sequence IN (4, 5)")
    assert found() == [("reordered", 4, 4), ("reordered", 5, 5)]


def test_an_event_moved_to_another_company_is_missed(owner: Connection, rows: list[SealedRow]) -> None:
    owner.execute("UPDATE audit_event SET company_id = NULL WHERE sequence = 4")
    assert found() == [("deleted", 4, 4)]
    assert chain_verify(None).findings[0].event_id in {None, str(rows[3].id)}


# --- manage.py verify_audit ------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """The exit status, the JSON object of the last line, all lines."""
    out = io.StringIO()
    try:
        call_command("verify_audit", *arguments, stdout=out)
    except SystemExit as exc:
        status = int(exc.code or 0)
    else:
        status = 0
    text = out.getvalue()
    return status, json.loads(text.splitlines()[-1]), text


@pytest.mark.django_db
def test_the_command_says_intact() -> None:
    rows = sealed_chain(3)
    record()
    sealed_chain(1, company_id=None)
    status, answer, _text = run()
    assert (status, answer["intact"], len(answer["chains"])) == (0, True, 2)
    assert answer["chains"][0] == {
        "company_id": str(COMPANY),
        "sequence": 3,
        "hash": rows[-1].hash,
        "unsealed": 1,
        "findings": [],
    }


@pytest.mark.django_db
def test_an_empty_log_is_intact() -> None:
    assert run()[:2] == (0, {"intact": True, "chains": [], "guards_missing": []})


def test_the_command_names_what_was_altered(owner_connection: Connection) -> None:
    rows = sealed_chain(3)
    with unguarded(owner_connection) as owner:
        owner.execute("UPDATE audit_event SET reason = 'x' WHERE sequence = 2")
    status, answer, text = run()
    assert (status, answer["intact"], answer["guards_missing"]) == (1, False, [])
    assert answer["chains"][0]["findings"][0]["event_id"] == str(rows[1].id)
    assert "altered: The content of #2 is not what was sealed." in text


def test_the_command_fails_where_the_guards_are_off(owner_connection: Connection) -> None:
    owner_connection.execute("ALTER TABLE audit_event DISABLE TRIGGER audit_event_guard")
    status, answer, text = run()
    assert (status, answer["guards_missing"]) == (1, ["audit_event_guard"])
    assert "The trigger audit_event_guard is missing or switched off." in text


def test_an_anchor_kept_elsewhere_finds_a_log_that_was_emptied(
    owner_connection: Connection, tmp_path: Path
) -> None:
    sealed_chain(3)
    anchor = tmp_path / "yesterday.json"
    anchor.write_text(run()[2])
    with unguarded(owner_connection) as owner:
        owner.execute("DELETE FROM audit_event")
        owner.execute("ALTER TABLE audit_verification DISABLE TRIGGER ALL")
        owner.execute("DELETE FROM audit_verification")
        owner.execute("ALTER TABLE audit_verification ENABLE TRIGGER ALL")
    assert run()[0] == 0
    status, answer, _text = run("--anchor", str(anchor))
    assert status == 1
    assert answer["chains"][0]["findings"][0]["kind"] == "deleted"


@pytest.mark.parametrize("text", ["", "x", "{}", '{"chains": [{}]}'])
def test_an_anchor_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    anchor = tmp_path / "anchor.json"
    anchor.write_text(text)
    with pytest.raises(CommandError, match="earlier answer"):
        call_command("verify_audit", "--anchor", str(anchor))
