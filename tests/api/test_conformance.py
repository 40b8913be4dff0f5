"""What the schema promises is what is answered, whatever is sent: generated requests against the WSGI app.

A small run in the gate, all phases and many examples under `make proof`. Ids of things that are there replace most of
the generated ones, or every request would end at "not found".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, transaction
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tenants.models import Role
from tests import factories
from tests.api.calls import token_for
from tests.api.world import World

pytestmark = pytest.mark.django_db
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]


class Fuzzed:
    """A world and somebody who may do everything in it."""

    def __init__(self) -> None:
        self.world = World()
        person = factories.admin()
        for role in Role.values:
            factories.membership(person, self.world.ours.company, role)
        self.headers = {"Authorization": f"Bearer {token_for(person)}"}
        ours = self.world.ours
        self.ids = {
            "workloads": [ours.running.public_id, ours.pending.public_id, ours.waiting.public_id],
            "cases": [ours.case.public_id],
            "teams": [ours.team.public_id],
            "nodes": [self.world.node.public_id],
        }

    def real(self, case: Any) -> None:
        """Puts ids of ours into three requests of four."""
        choice = len(repr(case.body)) + len(repr(case.query))
        if choice % 4 == 0:
            return
        known = self.ids.get(case.path.removeprefix("/api/v1/").partition("/")[0])
        if known and "public_id" in (case.path_parameters or {}):
            case.path_parameters["public_id"] = known[choice % len(known)]
        if isinstance(case.body, dict):
            if "team" in case.body:
                case.body["team"] = self.world.ours.team.public_id
            if "pool" in case.body:
                case.body["pool"] = self.world.pool.public_id
            spec = case.body.get("spec")
            if isinstance(spec, dict) and isinstance(spec.get("request"), dict):
                spec["request"]["tiers"] = [self.world.tier.name]

    def check(self, case: Any) -> None:
        self.real(case)
        with transaction.atomic():
            case.call_and_validate(headers=self.headers, checks=CHECKS)
            transaction.set_rollback(True)


@pytest.fixture(autouse=True)
def _one_connection() -> Iterator[None]:
    """Requests leave the test's connection open, as with Django's own test client."""
    signals = (request_started, request_finished)
    for signal in signals:
        signal.disconnect(close_old_connections)
    yield
    for signal in signals:
        signal.connect(close_old_connections)


def _operations() -> dict[str, Any]:
    document = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    schema = schemathesis.openapi.from_dict(json.loads(OpenApiJsonRenderer().render(document)))
    schema.app = WSGIHandler()
    operations: list[Any] = [found.ok() for found in schema.get_all_operations()]  # type: ignore[union-attr]
    return {operation.label: operation for operation in operations}


OPERATIONS = _operations()


def _run(label: str, mode: GenerationMode, examples: int) -> None:
    if mode == GenerationMode.NEGATIVE and not (
        OPERATIONS[label].body or [*OPERATIONS[label].iter_parameters()]
    ):
        pytest.skip("takes nothing that could be wrong")
    fuzzed = Fuzzed()
    cases = OPERATIONS[label].as_strategy(generation_mode=mode)

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def run(case: Any) -> None:
        fuzzed.check(case)

    run()


@pytest.mark.parametrize("label", OPERATIONS)
def test_a_few_requests_are_answered_as_described(label: str) -> None:
    _run(label, GenerationMode.POSITIVE, examples=4)


@pytest.mark.proof
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("label", OPERATIONS)
def test_many_requests_are_answered_as_described(label: str, mode: GenerationMode) -> None:
    _run(label, mode, examples=100)
