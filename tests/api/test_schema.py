from typing import Any

import pytest
from django.test import Client
from drf_spectacular.validation import validate_schema

pytestmark = pytest.mark.django_db


@pytest.fixture
def schema(client: Client) -> dict[str, Any]:
    response = client.get("/api/v1/schema")
    assert response.status_code == 200
    document: dict[str, Any] = response.json()
    return document


def test_the_schema_is_valid_openapi(schema: dict[str, Any]) -> None:
    validate_schema(schema)  # type: ignore[no-untyped-call] # the package has no types there
    assert schema["openapi"].startswith("3.")


def test_the_schema_knows_tokens_and_sessions(schema: dict[str, Any]) -> None:
    schemes = schema["components"]["securitySchemes"]
    assert schemes["token"]["scheme"] == "bearer"
    assert schemes["cookieAuth"]["in"] == "cookie"


def test_every_operation_names_its_problems(schema: dict[str, Any]) -> None:
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            problem = operation["responses"]["401"]["content"]["application/problem+json"]
            assert problem["schema"]["$ref"] == "#/components/schemas/Problem", (method, path)
            assert ("409" in operation["responses"]) or method == "get"


def test_the_root_lists_what_there_is(client: Client, schema: dict[str, Any]) -> None:
    endpoints = client.get("/api/v1/").json()["endpoints"]
    assert endpoints["schema"] == "http://testserver/api/v1/schema"
    listed = {f"/api/v1/{route}" for route in endpoints} - {"/api/v1/schema"}
    described = {path for path in schema["paths"] if "{" not in path} - {"/api/v1/"}
    assert listed == described


@pytest.mark.parametrize("method", ["get", "post", "delete"])
@pytest.mark.parametrize("path", ["nothing", "schema/", "a/b", "\0"])
def test_an_unknown_path_is_a_problem_too(client: Client, method: str, path: str) -> None:
    response = getattr(client, method)(f"/api/v1/{path}")
    assert (response.status_code, response["Content-Type"]) == (404, "application/problem+json")
    assert response.json()["code"] == "not_found"
