"""A subject of cases that only tests have: a real row, so that locks and roll-backs are real.

A table of its own would need a migration, so a thing is a document in the body of a `core.IdempotencyKey`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from gpuyard.core import hooks, ids
from gpuyard.core.errors import StaleState
from gpuyard.core.hooks import CaseOutcome, LessField, SubjectFacts
from gpuyard.core.models import IdempotencyKey, User
from tenants import selectors, services
from tenants.models import Case, Team
from tenants.policies import Facts

FACTS = Facts(kind="thing", tiers=("l4-24g",), gpu_count=2)


class Things:
    """The handler. It remembers what it was told; a thing's facts are what its row says."""

    kinds: tuple[str, ...] = ("thing",)

    def __init__(self) -> None:
        self.told: dict[UUID, list[Any]] = {}

    def fingerprint(self, *, subject_id: UUID, lock: bool = False) -> str | None:
        body = _body(subject_id, lock=lock)
        if body is None or body["state"] != "pending":
            return None
        return json.dumps([body["gpu_count"], body["priority"]])

    def facts_now(self, *, subject_id: UUID) -> SubjectFacts:
        body = _body(subject_id)
        if body is None:
            raise StaleState()
        facts = {**FACTS.as_json(), "gpu_count": body["gpu_count"], "priority": body["priority"]}
        return SubjectFacts(f"{body['gpu_count']} things", facts)

    def less_fields(self, *, subject_id: UUID) -> Sequence[LessField]:
        body = _body(subject_id)
        assert body is not None
        count = body["gpu_count"]
        return [LessField("gpu_count", "GPUs", count, 1, count)]

    def apply_less(self, *, subject_id: UUID, less: Mapping[str, int], actor: Any, reason: str) -> None:
        self.amend(subject_id=subject_id, changes=less, actor=actor, reason=reason)

    def amend(self, *, subject_id: UUID, changes: Mapping[str, Any], actor: Any, reason: str) -> None:
        thing_change(subject_id, **changes)

    def on_case_ended(
        self, *, case_id: UUID, subject_id: UUID, outcome: CaseOutcome, actor: Any, reason: str
    ) -> None:
        if self.fingerprint(subject_id=subject_id, lock=True) is None:
            raise StaleState()
        thing_change(subject_id, state=outcome)
        self.told.setdefault(subject_id, []).append((outcome, actor, reason))

    def card_facts(self, *, subject_id: UUID) -> Sequence[hooks.CardFact]:
        return ()

    def public_ids(self, *, subject_ids: Sequence[UUID]) -> Mapping[UUID, str]:
        return {}


THINGS = Things()
hooks.case_handlers.register("thing", THINGS)


def _body(subject_id: UUID, *, lock: bool = False) -> dict[str, Any] | None:
    rows = IdempotencyKey.objects.select_for_update() if lock else IdempotencyKey.objects.all()
    row = rows.filter(key=str(subject_id)).first()
    return None if row is None else dict(row.body or {})


def thing_make(owner: User, **values: Any) -> UUID:
    """A new thing that waits for approval."""
    key = ids.uuid7()
    body = {"state": "pending", "gpu_count": FACTS.gpu_count, "priority": 0, "colour": "red", **values}
    IdempotencyKey.objects.create(
        user=owner, key=str(key), method="POST", path="/things", request_hash="0" * 64, body=body
    )
    return key


def thing_change(subject_id: UUID, **values: Any) -> None:
    body = _body(subject_id, lock=True)
    assert body is not None
    IdempotencyKey.objects.filter(key=str(subject_id)).update(body={**body, **values})


def thing_of(case: Case) -> dict[str, Any]:
    body = _body(case.subject_id)
    assert body is not None
    return body


def thing_remove(case: Case) -> None:
    IdempotencyKey.objects.filter(key=str(case.subject_id)).delete()


def ask(team: Team, requester: User, **values: Any) -> Case:
    """A case about a new thing."""
    key = thing_make(requester, **values)
    asked = {name: values[name] for name in ("gpu_count", "priority") if name in values}
    return services.case_open(
        company=selectors.company_of(team),
        team=team,
        subject_type="thing",
        subject_id=key,
        subject_label="a thing",
        requester=requester,
        justification="for the ablation",
        facts=replace(FACTS, **asked),
    )
