from __future__ import annotations

from typing import Any

import pytest
from django.core.cache import cache
from redis import RedisError
from rest_framework.test import APIClient

from gpuyard.api import throttling
from tests import factories
from tests.api.calls import token_for

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def three_a_minute(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.GPUYARD_API_RATE = 3
    monkeypatch.setattr("time.time", lambda: 1_000_000_010.0)  # 20 s before the minute is over


def _asked(client: APIClient) -> tuple[int, str]:
    answer = client.get("/api/v1/me")
    assert answer["RateLimit-Limit"] == "3"
    assert 0 < int(answer["RateLimit-Reset"]) <= 60
    return answer.status_code, answer["RateLimit-Remaining"]


def _client(person: Any = None) -> APIClient:
    client = APIClient()
    secret = token_for(person or factories.user())
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return client


def test_each_answer_says_what_is_left_and_the_last_says_when_to_come_back() -> None:
    client = _client()
    assert [_asked(client) for _n in range(4)] == [(200, "2"), (200, "1"), (200, "0"), (429, "0")]
    answer = client.get("/api/v1/me")
    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json()["code"] == "throttled"
    assert answer["Retry-After"] == answer["RateLimit-Reset"]


def test_each_token_has_its_own_count_and_the_session_another() -> None:
    person = factories.user()
    for client in (_client(person), _client(person), _client()):
        assert _asked(client) == (200, "2")
    browser = APIClient()
    browser.force_login(person)
    assert _asked(browser) == (200, "2")


def test_with_redis_down_the_process_counts_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def down(*args: Any, **kwargs: Any) -> None:
        asked.append(args)
        raise RedisError("down")

    monkeypatch.setattr(throttling, "_redis_from", 0.0)
    monkeypatch.setattr(type(cache._connections["default"]), "add", down)  # type: ignore[attr-defined]
    client = _client()
    assert [_asked(client)[0] for _n in range(4)] == [200, 200, 200, 429]
    assert len(asked) == 1  # and not a second time before long


def test_without_a_limit_nothing_is_counted(settings: Any) -> None:
    settings.GPUYARD_API_RATE = 0
    assert "RateLimit-Limit" not in _client().get("/api/v1/me")
