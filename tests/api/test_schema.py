import re
from typing import Any

import pytest
from django.test import Client
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema
from drf_spectacular.views import SpectacularJSONAPIView

from gpuyard.api.urls import urlpatterns
from gpuyard.api.views import NothingView

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


def test_the_schema_is_made_without_a_warning() -> None:
    GENERATOR_STATS.reset()
    SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call] # no types there
    assert not GENERATOR_STATS


def test_every_route_is_described(schema: dict[str, Any]) -> None:
    described = {(method, path) for path, operations in schema["paths"].items() for method in operations}
    for pattern in urlpatterns:
        view = getattr(pattern.callback, "view_class", None)
        if view in {NothingView, SpectacularJSONAPIView}:
            continue
        path = re.sub(r"<\w+:(\w+)>", r"{\1}", f"/api/v1/{pattern.pattern}")
        methods = [name for name in ("get", "post", "put", "patch", "delete") if hasattr(view, name)]
        assert {(method, path) for method in methods} <= described


def test_every_operation_says_what_it_is(schema: dict[str, Any]) -> None:
    names = []
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            names.append(operation["operationId"])
            assert operation["description"], (method, path)
            assert {"token": []} in operation["security"], (method, path)
            assert [code for code in operation["responses"] if code.startswith("2")], (method, path)
            assert ("requestBody" in operation) == (method == "post"), (method, path)
    assert len(names) == len(set(names))


def test_a_request_is_described_down_to_its_spec(schema: dict[str, Any]) -> None:
    spec = schema["components"]["schemas"]["WorkloadSpecRequest"]
    assert spec["properties"]["command"]["minItems"] == 1
    assert spec["required"] == ["command", "request"]
    assert "SpecRequest" in schema["components"]["schemas"]


def test_the_root_lists_what_there_is(client: Client, schema: dict[str, Any]) -> None:
    endpoints = client.get("/api/v1/").json()["endpoints"]
    assert endpoints["schema"] == "http://testserver/api/v1/schema"
    listed = {f"/api/v1/{route}" for route in endpoints} - {"/api/v1/schema"}
    described = {path for path in schema["paths"] if "{" not in path} - {"/api/v1/"}
    assert listed == described


@pytest.mark.parametrize("method", ["get", "post", "delete"])
@pytest.mark.parametrize("path", ["nothing", "schema/", "a/b", "\0", "tokens/x%0Ay"])
def test_an_unknown_path_is_a_problem_too(client: Client, method: str, path: str) -> None:
    response = getattr(client, method)(f"/api/v1/{path}")
    assert (response.status_code, response["Content-Type"]) == (404, "application/problem+json")
    assert response.json()["code"] == "not_found"
