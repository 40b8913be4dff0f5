import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection
from django.urls import path
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import extend_schema
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory, force_authenticate
from rest_framework.views import APIView

from gpuyard.core.errors import Conflict, Invalid
from gpuyard.core.idempotency import Answer, idempotency_purge, idempotent, once
from gpuyard.core.models import IdempotencyKey, User
from tenants.models import Team
from tests import factories


class Companies(APIView):
    permission_classes = [AllowAny]

    @idempotent
    def post(self, request: Request) -> Response:
        assert isinstance(request.data, dict)
        name = request.data["name"]
        if name == "":
            raise Invalid(field="name")
        made = factories.company(name)
        if name == "half":
            return Response({}, status=409)
        return Response({"id": made.public_id}, status=201, headers={"Location": "/x"})


def post(user: User, key: str | None, url: str = "/companies", **body: Any) -> Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    request = APIRequestFactory().post(url, body, format="json", headers=headers)
    force_authenticate(request, user)
    response = Companies.as_view()(request)
    assert isinstance(response, Response)
    return response


@pytest.mark.django_db
def test_the_same_key_and_body_act_once() -> None:
    user = factories.user()
    first, second = post(user, "k1", name="a", x=1), post(user, "k1", x=1, name="a")
    assert (second.status_code, second.data) == (201, first.data)
    assert (second.get("Idempotency-Replayed"), first.get("Idempotency-Replayed")) == ("true", None)
    assert Team.objects.count() == 1


@pytest.mark.django_db
def test_without_a_key_each_acts() -> None:
    user = factories.user()
    post(user, None, name="a")
    post(user, None, name="b")
    assert Team.objects.count() == 2


@pytest.mark.django_db
@pytest.mark.parametrize("other", [{"name": "b"}, {"url": "/other", "name": "a"}])
def test_the_same_key_for_another_request_is_refused(other: dict[str, Any]) -> None:
    user = factories.user()
    post(user, "k1", name="a")
    response = post(user, "k1", **other)
    assert (response.status_code, response.data["code"]) == (409, "idempotency_key_reused")
    assert Team.objects.count() == 1


@pytest.mark.django_db
def test_a_key_belongs_to_its_user() -> None:
    post(factories.user(), "k1", name="a")
    assert post(factories.user(), "k1", name="b").status_code == 201


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["", "half"])
def test_a_refusal_is_not_stored_and_leaves_nothing(name: str) -> None:
    user = factories.user()
    assert post(user, "k1", name=name).status_code in {400, 409}
    assert (IdempotencyKey.objects.count(), Team.objects.count()) == (0, 0)
    assert post(user, "k1", name="a").status_code == 201


@pytest.mark.django_db
@pytest.mark.parametrize("key", ["", "x" * 201, "é", "a\x7fb"])
def test_a_key_that_is_none_is_refused(key: str) -> None:
    response = post(factories.user(), key, name="a")
    assert (response.status_code, response.data["code"]) == (400, "idempotency_key_invalid")
    assert response.data["errors"][0]["remedy"]


@pytest.mark.django_db(transaction=True)
def test_concurrent_duplicates_act_once() -> None:
    user = factories.user()
    barrier = threading.Barrier(2)

    def send(_number: int) -> Response:
        try:
            barrier.wait(timeout=10)
            return post(user, "k1", name="a")
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(send, range(2))
    assert first.status_code == second.status_code == 201
    assert first.data == second.data
    assert Team.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_duplicate_waits_for_the_first_and_takes_over_if_it_fails() -> None:
    user = factories.user()
    first_acts, first_may_end = threading.Event(), threading.Event()

    def fail() -> Answer:
        first_acts.set()
        first_may_end.wait(timeout=10)
        raise Conflict()

    def run(act: Callable[[], Answer]) -> Answer | Conflict:
        try:
            return once(user=user, key="k1", method="POST", path="/x", payload={}, act=act)
        except Conflict as exc:
            return exc
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run, fail)
        assert first_acts.wait(timeout=10)
        second = pool.submit(run, lambda: Answer(201, "second"))
        _wait_until_blocked()
        assert not second.done()
        first_may_end.set()
        assert isinstance(first.result(timeout=10), Conflict)
        assert second.result(timeout=10) == Answer(201, "second")


def test_a_key_is_forgotten_after_a_day(advance_clock: Callable[[float], None]) -> None:
    user = factories.user()
    post(user, "k1", name="a")
    advance_clock(23 * 3600)
    assert post(user, "k1", name="b").status_code == 409
    advance_clock(3600)
    assert post(user, "k1", name="b").status_code == 201
    advance_clock(24 * 3600)
    assert idempotency_purge() == 1


def test_the_header_is_in_the_schema_beside_what_the_view_says() -> None:
    class Described(APIView):
        @extend_schema(operation_id="thing_create", request=None, responses={201: None})
        @idempotent
        def post(self, request: Request) -> Response:
            return Response(status=201)

    patterns = [path("things", Described.as_view())]
    document = SchemaGenerator(patterns=patterns).get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    operation = document["paths"]["/things"]["post"]
    assert operation["operationId"] == "thing_create"
    assert [one["name"] for one in operation["parameters"]] == ["Idempotency-Key"]


def _wait_until_blocked() -> None:
    for _try in range(200):
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock' AND pg_sleep(0.02) IS NOT NULL"
            )
            if cursor.fetchone() != (0,):
                return
    raise AssertionError("nobody waits")
