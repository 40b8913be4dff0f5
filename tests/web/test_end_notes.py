"""How a workload's end is told: a reason for stopping it is its giver's, not the outcome."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuyard.core.models import User
from gpuyard.web.pages.rows import end_note
from gpuyard.web.wording import NARROW
from scheduling.models import Workload

AT = datetime(2026, 11, 26, 10, 42, 7, tzinfo=UTC)


def _told(state: str, *, ran_s: int | None = 7, by: str = "", **fields: Any) -> str:
    workload = Workload(state=state, ended_at=AT, **fields)
    workload.started_at = None if ran_s is None else AT - timedelta(seconds=ran_s)
    workload.stop_requested_by = User(username=by) if by else None
    return end_note(workload).replace(NARROW, " ")


@pytest.mark.parametrize("state", ["cancelled", "succeeded"])
def test_who_stopped_it_stands_before_their_reason(state: str) -> None:
    told = _told(state, by="recsys-member", state_reason="Seen")
    assert told == "stopped by recsys-member after 7 s: Seen"


def test_no_reason_no_colon() -> None:
    assert _told("cancelled", by="ada") == "stopped by ada after 7 s"


def test_what_never_ran_was_withdrawn() -> None:
    assert _told("cancelled", ran_s=None, by="ada") == "withdrawn by ada before it started"


def test_a_failure_speaks_for_itself() -> None:
    told = _told("failed", by="ada", state_reason="The program ended with exit code 3")
    assert told == "The program ended with exit code 3, ran 7 s"


def test_an_end_of_its_own() -> None:
    assert _told("succeeded", exit_code=0) == "exit code 0, ran 7 s"
