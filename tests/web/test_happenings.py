"""A workload's events read as sentences: no codes, no ids, no `False`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gpuyard.audit.models import Event
from gpuyard.web.pages.happenings import event_row
from gpuyard.web.wording import NARROW

AT = datetime(2026, 11, 26, 10, 42, 7, tzinfo=UTC)
REQUEST = {"gpus_per_replica": 4, "replicas_max": 2, "tiers": ["h100-80g"]}


def _shown(action: str, new: Any, old: Any = None, reason: str = "") -> tuple[str, str]:
    event = Event(action=action, new=new, old=old, reason=reason, actor_label="system", created_at=AT)
    row = event_row(event)
    return row.what, row.detail.replace(NARROW, " ")


@pytest.mark.parametrize(
    ("action", "new", "what", "detail"),
    [
        (
            "workload.submit",
            {"team": "t-7k3f9q2m", "request": REQUEST, "time_limit_s": 3600, "state": "pending_approval"},
            "Requested",
            "8 × h100-80g, for at most 1 h",
        ),
        ("workload.approve", {"rule": "small"}, "Approved, in line for GPUs", "Rule “small”"),
        (
            "workload.start",
            {"borrowed": False, "gpus": 4, "attempt": 1},
            "Placed",
            "4 GPUs, inside the guarantee",
        ),
        (
            "workload.start",
            {"borrowed": True, "gpus": 1, "attempt": 2},
            "Placed",
            "1 GPU, borrowed, beyond the guarantee, attempt 2",
        ),
        ("workload.fail", {"exit_code": 3, "attempt": 1}, "Failed", "Exit code 3"),
        ("attempt.stopping", {"number": 2, "end_reason": "time_limit"}, "Attempt 2: stopping",
         "It reached its time limit"),
        (
            "replica.exited",
            {"index": 0, "node": "node-07", "exit_code": 1, "exit_reason": "exited"},
            "Replica 0: ended, its GPUs are free",
            "On node-07, exit code 1",
        ),
        ("case.open", {"state": "open", "rule": "large", "facts": {}}, "Approval asked for", "Rule “large”"),
        ("case.open", {"state": "approved", "rule": "small"}, "Needs no approval", "Rule “small”"),
        ("case.state", {"state": "rejected"}, "Approval refused", ""),
        ("case.step", {"step": 1, "state": "approved", "role": "manager"}, "Approved by a manager", ""),
        ("gpu.left_out", {}, "Gpu left out", ""),
    ],
)  # fmt: skip
def test_an_event_reads_as_a_sentence(action: str, new: Any, what: str, detail: str) -> None:
    assert _shown(action, new) == (what, detail)


def test_a_reason_is_said_once() -> None:
    told = _shown("workload.stop", {"why": "time_limit"}, reason="It was enough")
    assert told == ("Stopping", "It was enough")
    told = _shown("workload.fail", {"exit_code": 3}, reason="The program ended")
    assert told == ("Failed", "Exit code 3. The program ended")


def test_taking_back_and_stopping_are_two_things() -> None:
    assert _shown("workload.cancel", {}, {"state": "waiting"})[0] == "Withdrawn"
    assert _shown("workload.cancel", {}, {"state": "stopping"})[0] == "Cancelled"


def test_the_platform_has_a_name() -> None:
    row = event_row(Event(action="workload.run", actor_label="system", created_at=AT))
    assert row.actor == "GPU Yard"
