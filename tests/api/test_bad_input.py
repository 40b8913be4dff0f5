"""Whatever is sent: a 4xx problem that names the field and the remedy, and nothing stored."""

from __future__ import annotations

import json
from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from rest_framework.test import APIClient

from gpuyard.core.models import User
from tenants.models import ApiToken, Team
from tests import factories
from tests.api.calls import token_for

pytestmark = pytest.mark.django_db
MEGABYTE = "x" * 1024 * 1024
REQUEST, SPEC = "spec.request", "spec"


class Desk:
    """A member with a token, and a request that would be accepted."""

    def __init__(self) -> None:
        company = factories.company()
        factories.approval_policy(company)
        factories.tier("h100-80g")
        self.team: Team = factories.team(company)
        self.member: User = factories.user("member", self.team)
        self.secret = token_for(self.member)
        self.document: dict[str, Any] = {
            "team": self.team.public_id,
            "name": "train",
            "kind": "training",
            "spec": factories.spec_document("h100-80g"),
        }

    def send(self, body: Any, path: str = "workloads", **headers: str) -> tuple[int, Any]:
        """Sends it as JSON, or as the bytes it is; nothing may be stored unless it is accepted."""
        client = APIClient()
        client.credentials(HTTP_AUTHORIZATION=f"Bearer {self.secret}", **headers)
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        before = _row_counts()
        answer = client.post(f"/api/v1/{path}", text, content_type="application/json")
        if answer.status_code >= 400:
            assert _row_counts() == before
            assert answer["Content-Type"] == "application/problem+json"
        return answer.status_code, answer.json()


def _row_counts() -> dict[str, int]:
    counts = {}
    with connection.cursor() as cursor:
        for model in apps.get_models():
            table = model._meta.db_table
            if table == "audit_denial":
                continue  # that somebody was refused is counted there
            cursor.execute(f'SELECT count(*) FROM "{table}"')
            counts[table] = cursor.fetchone()[0]
    return counts


def changed(document: dict[str, Any], field: str, value: Any) -> dict[str, Any]:
    """A copy with the value at a dotted path; `...` takes the field out."""
    copy = deepcopy(document)
    *way, last = field.split(".")
    at = copy
    for name in way:
        at = at[name]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return copy


GPUS, TIERS = f"{REQUEST}.gpus_per_replica", f"{REQUEST}.tiers"
BAD: list[tuple[str, Any, str]] = [
    # what is changed, to what, and the field that the answer names ("" the same one)
    (GPUS, 0, ""),
    (GPUS, -1, ""),
    (GPUS, 2**31, ""),
    (GPUS, 2**63, ""),
    (GPUS, 10**400, ""),
    (GPUS, 1 / 3, ""),
    (GPUS, 1.0, ""),
    (GPUS, "1", ""),
    (GPUS, True, ""),
    (GPUS, None, ""),
    (GPUS, [1], ""),
    (GPUS, ..., ""),
    (f"{REQUEST}.replicas_min", 0, ""),
    (f"{REQUEST}.replicas_max", 2**31, ""),
    (f"{REQUEST}.replicas_min", 3, f"{REQUEST}.replicas_max"),
    (f"{REQUEST}.cpu_m", -1, ""),
    (f"{REQUEST}.memory_mib", 2**40, ""),
    (f"{REQUEST}.shares", 1, ""),
    (TIERS, ["quantum-1t"], ""),
    (TIERS, ["h100-80g", "h100-80g"], ""),
    (TIERS, [], ""),
    (TIERS, "h100-80g", ""),
    (TIERS, ["t\x00"], f"{TIERS}.0"),
    (TIERS, [f"tier-{number}" for number in range(1000)], ""),
    (f"{REQUEST}.share", 1000, ""),
    (f"{REQUEST}.gpu_memory_mib", 1e308, ""),
    (f"{REQUEST}.array", {"count": 2001}, f"{REQUEST}.array.count"),
    (f"{REQUEST}.depends_on", ["w-00000000"], f"{REQUEST}.depends_on.0"),
    (f"{REQUEST}.depends_on", "w-00000000", ""),
    (f"{REQUEST}.not_before", "2026-12-01T08:00:00", ""),
    (f"{REQUEST}.not_before", "9999-12-31T23:59:59-14:00", ""),
    (f"{REQUEST}.topology", {"required": "\u202e"}, f"{REQUEST}.topology.required"),
    (f"{REQUEST}.node_labels", ["zone=a\n"], f"{REQUEST}.node_labels.0"),
    (f"{REQUEST}.not_nodes", [""], f"{REQUEST}.not_nodes.0"),
    (f"{REQUEST}.elastic", True, ""),
    (REQUEST, ..., ""),
    (REQUEST, [], ""),
    (f"{SPEC}.command", [], ""),
    (f"{SPEC}.command", [""], f"{SPEC}.command.0"),
    (f"{SPEC}.command", "python3 train.py", ""),
    (f"{SPEC}.command", ["python3", 3], f"{SPEC}.command.1"),
    (f"{SPEC}.command", ["a\x00b"], f"{SPEC}.command.0"),
    (f"{SPEC}.command", ["\ud800"], f"{SPEC}.command.0"),
    (f"{SPEC}.command", [MEGABYTE], f"{SPEC}.command.0"),
    (f"{SPEC}.command", ["x"] * 100_000, ""),
    (f"{SPEC}.env", {"A=B": "x"}, f"{SPEC}.env.A=B"),
    (f"{SPEC}.env", {"KEY": "a\x00b"}, f"{SPEC}.env.KEY"),
    (f"{SPEC}.env", {"KEY": MEGABYTE}, f"{SPEC}.env.KEY"),
    (f"{SPEC}.env", {"RANK": "0"}, f"{SPEC}.env.RANK"),
    (f"{SPEC}.env", {f"KEY{number}": "x" for number in range(10_000)}, ""),
    (f"{SPEC}.ports", [{"name": "http", "health_path": "healthz"}], f"{SPEC}.ports.0.health_path"),
    (f"{SPEC}.ports", [{"name": "http"}] * 2, ""),
    (f"{SPEC}.time_limit_s", 0, ""),
    (f"{SPEC}.time_limit_s", 10**12, ""),
    (f"{SPEC}.image", "", ""),
    (f"{SPEC}.privileged", True, ""),
    (SPEC, ..., ""),
    (SPEC, None, ""),
    (SPEC, "train", ""),
    ("name", "", ""),
    ("name", "   ", ""),
    ("name", "a\x00b", ""),
    ("name", "\udcff", ""),
    ("name", MEGABYTE, ""),
    ("name", 7, ""),
    ("name", ..., ""),
    ("kind", "mining", ""),
    ("kind", ["training"], ""),
    ("kind", None, ""),
    ("priority", 2**31, ""),
    ("band", True, ""),
    ("band", 1, ""),  # no grant covers the team
    ("priority", "high", ""),
    ("priority", 0.5, ""),
    ("preemptible", "no", ""),
    ("preemptible", 1, ""),
    ("justification", MEGABYTE, ""),
    ("justification", {"why": "?"}, ""),
    ("team", 7, ""),
    ("team", "", ""),
    ("team", ..., ""),
    ("owner", "somebody", ""),
    ("x" * 5000, 1, "x" * 80),
]


@pytest.mark.parametrize("path", ["workloads", "request-check"])
def test_bad_input_is_refused_with_field_and_remedy(path: str) -> None:
    desk = Desk()
    assert desk.send(desk.document, "request-check")[0] == 200
    for field, value, named in BAD:
        if path == "request-check" and (field, value) in [("name", ...), ("name", ""), ("name", "   ")]:
            continue  # a draft may have no name yet
        what = (field[:80], repr(value)[:60])
        status, problem = desk.send(changed(desk.document, field, value), path)
        assert status == 400, (what, problem)
        told = {error["field"]: error["remedy"] for error in problem["errors"]}
        assert told.get(named or field), (what, problem)


def test_what_is_no_list_or_too_long_is_called_so() -> None:
    desk = Desk()
    for field, value, message, remedy in [
        (f"{REQUEST}.not_nodes", "node-1", "This is no list.", "Send a list."),
        (f"{REQUEST}.not_nodes.0", "x" * 65, "The text is too long.", "Give a shorter text."),
        (f"{REQUEST}.not_nodes.0", "", "This is empty.", "Give a value that is not empty."),
        (
            TIERS,
            "h100-80g",
            "This is no list.",
            "Give a list of 1 to 16 different tier names, the preferred one first.",
        ),
    ]:
        at, _dot, number = field.rpartition(".")
        sent = changed(desk.document, at, [value]) if number == "0" else changed(desk.document, field, value)
        _status, problem = desk.send(sent)
        (error,) = problem["errors"]
        assert (error["field"], error["message"], error["remedy"]) == (field, message, remedy)


@pytest.mark.parametrize(
    ("path", "body", "field", "remedy"),
    [
        (
            "scheduling-policy/preview",
            {"changes": {"reservations": -1}},
            "changes.reservations",
            "Give at least 0.",
        ),
        (
            "scheduling-policy/preview",
            {"changes": {"pack_shares": 1e308}},
            "changes.pack_shares",
            "Give at most 1000.",
        ),
        (
            "scheduling-policy/preview",
            {"changes": {"x" * 5000: 1}},
            "changes." + "x" * 80,
            "Remove this field, or check its spelling.",
        ),
        *(
            ("tier-speeds", {"tier": "h100-80g", "speeds": {"training": speed}}, "speeds.training", remedy)
            for speed, remedy in [
                ("2.5", "Correct this field."),
                (True, "Correct this field."),
                (1e-320, "Give a number from 0.001 to 1000, for training, inference, development."),
            ]
        ),
    ],
)
def test_bad_rules_and_speeds_are_refused(path: str, body: Any, field: str, remedy: str) -> None:
    desk = Desk()
    desk.secret = token_for(factories.admin())
    status, problem = desk.send(body, path)
    (error,) = problem["errors"]
    assert (status, error["field"], error["remedy"]) == (400, field, remedy)


@pytest.mark.parametrize("path", ["workloads", "request-check"])
def test_the_team_of_a_stranger_does_not_exist(path: str) -> None:
    desk = Desk()
    strangers = factories.team().public_id
    for team in (strangers, "t-nothing1", "a\ud800", "x" * 5000):
        status, problem = desk.send({**desk.document, "team": team}, path)
        assert status == (400 if team == "a\ud800" else 404), problem
        assert problem["code"] in {"team_unknown", "invalid"}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "parse_error"),
        (b'{"name": "\xff"}', 400, "parse_error"),
        (b'{"name": ' + b"[" * 100_000, 400, "parse_error"),
        (b'{"name": ' + b"[" * 60 + b"]" * 60 + b"}", 400, "parse_error"),
        (b'{"priority": NaN}', 400, "parse_error"),
        (b'{"priority": ' + b"9" * 5000 + b"}", 400, "parse_error"),
        (b"[]", 400, "invalid"),
        (b"null", 400, "invalid"),
        (b'"train"', 400, "invalid"),
        (b"7", 400, "invalid"),
        (b"", 400, "invalid"),
        (b'{"name": "' + b"x" * 9_000_000 + b'"}', 413, "too_large"),
    ],
    ids=lambda value: repr(value[:12]) if isinstance(value, bytes) else None,
)
def test_what_is_no_document_is_refused(body: bytes, status: int, code: str) -> None:
    found, problem = Desk().send(body)
    assert (found, problem["code"]) == (status, code)
    assert all(error["remedy"] for error in problem["errors"])
    assert problem["errors"]


def test_a_form_is_no_document() -> None:
    desk = Desk()
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {desk.secret}")
    answer = client.post("/api/v1/workloads", "name=x", content_type="application/x-www-form-urlencoded")
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")


def test_an_expired_token_is_refused() -> None:
    desk = Desk()
    desk.secret = token_for(desk.member, lifetime=timedelta(seconds=-1))
    status, problem = desk.send(desk.document)
    assert (status, problem["code"]) == (401, "token_expired")
    assert problem["errors"][0]["remedy"] == "Create a new token."


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("state=sleeping", "state"),
        ("kind=mining", "kind"),
        ("stat=running", "stat"),
        ("page_size=0", "page_size"),
        ("page_size=1e9", "page_size"),
        ("cursor=%00", "cursor"),
        ("q=%00", "q"),
        ("owner=" + "%00", "owner"),
    ],
)
def test_a_bad_filter_is_named(query: str, field: str) -> None:
    desk = Desk()
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {desk.secret}")
    answer = client.get(f"/api/v1/workloads?{query}")
    assert answer.status_code == 400
    (error,) = answer.json()["errors"]
    assert error["field"].partition(".")[0] == field
    assert error["remedy"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("tokens", {"name": "ci", "scopes": ["root"]}, "scopes.0"),
        ("tokens", {"name": "ci", "scopes": []}, "scopes"),
        ("tokens", {"name": "ci", "scopes": ["read"], "lifetime_days": 0}, "lifetime_days"),
        ("tokens", {"name": "ci", "scopes": ["read"], "lifetime_days": 2**31}, "lifetime_days"),
        ("tokens", {"name": "\x00", "scopes": ["read"]}, "name"),
        ("tokens", {"name": "ci", "scopes": ["read"], "user": "admin"}, "user"),
    ],
)
def test_a_bad_token_is_not_made(path: str, body: dict[str, Any], field: str) -> None:
    desk = Desk()
    status, problem = desk.send(body, path)
    assert status == 400
    assert [error["field"] for error in problem["errors"]] == [field]
    assert ApiToken.objects.count() == 1


@pytest.mark.parametrize("method", ["put", "patch", "delete"])
def test_what_is_not_offered_is_a_problem_too(method: str) -> None:
    desk = Desk()
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {desk.secret}")
    answer = getattr(client, method)("/api/v1/workloads", {}, format="json")
    assert (answer.status_code, answer["Content-Type"]) == (405, "application/problem+json")
