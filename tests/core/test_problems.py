import json
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.core.exceptions import ValidationError as ModelValidationError
from django.db import DataError, IntegrityError, connection
from django.http import Http404, HttpResponse
from pytest_django import Settings
from rest_framework import exceptions, serializers
from rest_framework.permissions import AllowAny, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

from gpuyard.core.errors import Conflict, DomainError, FieldError, Forbidden, Invalid, NotFound, StaleState


def answer(raised: Exception, **view: Any) -> HttpResponse:
    class Raising(APIView):
        authentication_classes = []
        permission_classes = [AllowAny]

        def get(self, request: Request) -> Response:
            raise raised

    response = Raising.as_view(**view)(APIRequestFactory().get("/api/v1/things"))
    response.render()
    assert isinstance(response, HttpResponse)
    return response


def problem(raised: Exception) -> dict[str, Any]:
    response = answer(raised)
    assert response["Content-Type"] == "application/problem+json"
    data: dict[str, Any] = response.data  # type: ignore[attr-defined]
    assert data["status"] == response.status_code
    return data


def test_a_domain_error_is_a_whole_problem_document() -> None:
    raised = Invalid("gpus_whole", "Whole GPUs only.", field="spec.request.gpus", remedy="Ask for 1 or more.")
    assert problem(raised) == {
        "type": "urn:gpuyard:problem:gpus_whole",
        "title": "Bad Request",
        "status": 400,
        "detail": "Whole GPUs only.",
        "code": "gpus_whole",
        "errors": [
            {
                "field": "spec.request.gpus",
                "code": "gpus_whole",
                "message": "Whole GPUs only.",
                "remedy": "Ask for 1 or more.",
            }
        ],
        "instance": "/api/v1/things",
    }


@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [
        (NotFound(), 404, "not_found"),
        (Forbidden(), 403, "forbidden"),
        (Conflict(), 409, "conflict"),
        (StaleState(), 409, "stale_state"),
        (DomainError("odd", "Odd.", status=410), 410, "odd"),
        (Http404(), 404, "not_found"),
        (PermissionDenied(), 403, "forbidden"),
        (RequestDataTooBig(), 413, "too_large"),
        (exceptions.NotAuthenticated(), 403, "not_authenticated"),  # 401 where an authenticator stands
        (exceptions.MethodNotAllowed("GET"), 405, "method_not_allowed"),
        (exceptions.UnsupportedMediaType("text/csv"), 415, "unsupported_media_type"),
        (exceptions.Throttled(wait=3), 429, "throttled"),
        (
            DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"),
            400,
            "null_characters_not_allowed",
        ),
        (DataError("something else"), 400, "invalid_value"),
    ],
)
def test_status_and_code(raised: Exception, status: int, code: str) -> None:
    data = problem(raised)
    assert (data["status"], data["code"]) == (status, code)
    assert data["detail"]


def test_a_docstring_is_the_message() -> None:
    assert problem(NotFound())["detail"] == "There is no such thing, or you may not see it."


def test_nested_fields_become_dotted_paths() -> None:
    class Request_(serializers.Serializer[Any]):
        gpus = serializers.IntegerField(min_value=1)
        tiers = serializers.ListField(child=serializers.CharField(max_length=4))

    class Spec(serializers.Serializer[Any]):
        request = Request_()
        ports = Request_(many=True)

    tested = Spec(data={"request": {"gpus": 0, "tiers": ["h100-80g"]}, "ports": [{}, "x"]})
    assert not tested.is_valid()
    errors = problem(exceptions.ValidationError(tested.errors))["errors"]
    assert {(one["field"], one["code"]) for one in errors} == {
        ("request.gpus", "min_value"),
        ("request.tiers.0", "max_length"),
        ("ports.0.gpus", "required"),
        ("ports.0.tiers", "required"),
        ("ports.1", "invalid"),
    }
    assert all(one["message"] and one["remedy"] for one in errors)


def test_an_error_of_the_whole_names_no_field() -> None:
    raised = exceptions.ValidationError({"non_field_errors": ["Start before end."]})
    (error,) = problem(raised)["errors"]
    assert (error["field"], error["message"]) == (None, "Start before end.")


def test_a_models_validation_error_names_its_fields() -> None:
    raised = ModelValidationError({"name": ModelValidationError("Taken.", code="unique")})
    (error,) = problem(raised)["errors"]
    assert (error["field"], error["code"], error["message"]) == ("name", "unique", "Taken.")


def test_several_errors_of_a_service() -> None:
    raised = Invalid(errors=[FieldError("a", "x", "A."), FieldError("b", "y", "B.", "Do b.")])
    assert [(one["field"], one["remedy"]) for one in problem(raised)["errors"]] == [
        ("a", None),
        ("b", "Do b."),
    ]


class Posting(APIView):
    authentication_classes = []
    permission_classes = [AllowAny]

    def post(self, request: Request) -> Response:
        text = str(request.data)
        with connection.cursor() as cursor:
            cursor.execute("SELECT %s::text", [text])
        return Response()


def post(body: bytes) -> HttpResponse:
    request = APIRequestFactory().generic("POST", "/x", body, content_type="application/json")  # type: ignore[arg-type] # bytes are fine
    response = Posting.as_view()(request)
    response.render()
    return response


@pytest.mark.parametrize(
    "body",
    [b'{"name": ', b"{'a': 1}", b"NaN", b"\xff", b"[" * 100_000, b"[" * 45 + b"]" * 45, b"9" * 5000],
)
def test_malformed_json_is_a_problem(body: bytes) -> None:
    data = json.loads(post(body).content)
    assert (data["status"], data["code"]) == (400, "parse_error")
    assert data["errors"][0]["remedy"]


def test_a_body_beyond_the_limit_is_a_problem(settings: Settings) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    assert json.loads(post(b'"' + b"x" * 100 + b'"').content)["code"] == "too_large"


@pytest.mark.django_db
def test_half_a_character_is_a_problem() -> None:
    assert json.loads(post(b'"\\ud800"').content)["code"] == "surrogate_characters_not_allowed"


def test_a_message_may_quote_half_a_character() -> None:
    response = answer(exceptions.ValidationError({"kind": ["\ud800 is none."]}))
    assert json.loads(response.content)["errors"][0]["message"] == "\ud800 is none."


def test_anonymous_is_challenged() -> None:
    class Closed(APIView):
        permission_classes = [IsAuthenticated]

        def get(self, request: Request) -> Response:
            return Response()

    response = Closed.as_view()(APIRequestFactory().get("/x"))
    assert response.status_code == 401
    assert response["WWW-Authenticate"].startswith("Bearer")
    assert response.data["code"] == "not_authenticated"


def test_a_broken_rule_of_the_database_is_not_hidden() -> None:
    with pytest.raises(IntegrityError):
        answer(IntegrityError("duplicate key"))


def test_a_fault_of_ours_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        answer(ZeroDivisionError())


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("statement", "value", "code"),
    [
        ("SELECT %s::text", "a\0b", "null_characters_not_allowed"),
        ("SELECT %s::jsonb", '"\\u0000"', "null_characters_not_allowed"),
        ("SELECT %s::bigint::int", 2**31, "out_of_range"),
        ("INSERT INTO core_user (username) VALUES (%s)", "x" * 200, "max_length"),
    ],
)
def test_what_the_database_cannot_store(statement: str, value: str | int, code: str) -> None:
    with pytest.raises(DataError) as caught, connection.cursor() as cursor:
        cursor.execute(statement, [value])
    assert problem(caught.value)["code"] == code
