from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIClient, APIRequestFactory
from rest_framework.views import APIView

from gpuyard.api.authentication import token_digest
from gpuyard.core import clock
from tenants.models import ApiToken
from tests import factories
from tests.api.calls import token_for


class WhoAmI(APIView):
    def get(self, request: Request) -> Response:
        return Response(request.user.get_username())

    post = get


def token(**fields: Any) -> ApiToken:
    stated = {
        "name": "laptop",
        "prefix": "secr",
        "digest": token_digest("secret"),
        "scopes": ["read", "write"],
        "expires_at": clock.now() + timedelta(hours=1),
    }
    return ApiToken.objects.create(**{"user": factories.user(username="ada"), **stated, **fields})


def send(method: str = "get", authorization: str | None = "Bearer secret") -> Response:
    headers = {} if authorization is None else {"Authorization": authorization}
    response = WhoAmI.as_view()(getattr(APIRequestFactory(), method)("/x", headers=headers))
    assert isinstance(response, Response)
    return response


@pytest.mark.django_db
@pytest.mark.parametrize("authorization", ["Bearer secret", "bearer  secret "])
def test_a_token_signs_in(authorization: str) -> None:
    token()
    assert send(authorization=authorization).data == "ada"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"digest": "0" * 64}, "token_unknown"),
        ({"expires_at": "past"}, "token_expired"),
        ({"revoked_at": "past"}, "token_revoked"),
    ],
)
def test_a_token_that_does_not_hold_is_refused_with_a_remedy(fields: dict[str, Any], code: str) -> None:
    token(**{name: clock.now() if value == "past" else value for name, value in fields.items()})
    response = send()
    assert (response.status_code, response.data["code"]) == (401, code)
    assert response.data["errors"][0]["remedy"]
    assert response["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.django_db
@pytest.mark.parametrize("authorization", ["Bearer", "Bearer ", "Bearer \udcff", "Bearer " + "x" * 5000])
def test_a_header_without_a_token_of_ours_is_refused(authorization: str) -> None:
    assert send(authorization=authorization).data["code"] == "token_unknown"


@pytest.mark.django_db
@pytest.mark.parametrize("authorization", [None, "Basic YTpi"])
def test_without_a_token_one_is_asked_for(authorization: str | None) -> None:
    response = send(authorization=authorization)
    assert (response.status_code, response.data["code"]) == (401, "not_authenticated")


@pytest.mark.django_db
def test_the_token_of_somebody_who_left_is_refused() -> None:
    token(user=factories.user(is_active=False))
    assert send().data["code"] == "token_unknown"


def test_a_token_expires_with_the_platforms_time(advance_clock: Callable[[float], None]) -> None:
    token()
    assert send().status_code == 200
    advance_clock(3600)
    assert send().data["code"] == "token_expired"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("scopes", "get_status", "post_status"),
    [(["read"], 200, 403), (["write"], 403, 200), (["read", "write"], 200, 200), ([], 403, 403)],
)
def test_scopes_say_what_a_token_may_do(scopes: list[str], get_status: int, post_status: int) -> None:
    token(scopes=scopes)
    assert (send("get").status_code, send("post").status_code) == (get_status, post_status)


@pytest.mark.django_db
def test_a_missing_scope_is_named() -> None:
    token(scopes=["read"])
    data = send("post").data
    assert data["code"] == "scope_missing"
    assert "write" in data["detail"]


def made_by_a_token(scopes: str, asked: dict[str, Any]) -> Any:
    client = APIClient()
    secret = token_for(factories.user(), lifetime=timedelta(days=3), scopes=scopes)
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return client.post("/api/v1/tokens", {"name": "more", **asked}, format="json")


@pytest.mark.django_db
def test_a_token_makes_none_with_more_scopes() -> None:
    answer = made_by_a_token("write", {"scopes": ["read", "write"]})
    assert (answer.status_code, answer.json()["code"]) == (403, "scope_beyond_own")
    assert ApiToken.objects.count() == 1


@pytest.mark.django_db
def test_a_token_makes_none_that_outlives_it() -> None:
    answer = made_by_a_token("read write", {"scopes": ["read"], "lifetime_days": 366})
    assert answer.status_code == 201
    first, second = ApiToken.objects.order_by("created_at")
    assert second.expires_at == first.expires_at


@pytest.mark.django_db
def test_the_use_of_a_token_is_noted_once_a_minute() -> None:
    made = token()
    send()
    made.refresh_from_db()
    first = made.last_used_at
    assert first is not None
    send()
    made.refresh_from_db()
    assert made.last_used_at == first
    ApiToken.objects.update(last_used_at=first - timedelta(minutes=2))
    send()
    made.refresh_from_db()
    assert made.last_used_at is not None
    assert made.last_used_at > first


# --- Areas and networks ----------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("scopes", "path", "status"),
    [
        ("workloads:read", "workloads", 200),
        ("workloads:read", "queue", 200),
        ("workloads:read", "costs", 403),
        ("workloads:write", "workloads", 403),
        ("read", "costs", 200),
        ("costs:read", "costs", 200),
        ("costs:read audit:read", "events", 403),  # as a member may not; see the code below
    ],
)
def test_a_scope_reaches_into_its_area_only(scopes: str, path: str, status: int) -> None:
    client = APIClient()
    person = factories.user("member", factories.team())
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token_for(person, scopes=scopes)}")
    answer = client.get(f"/api/v1/{path}")
    assert answer.status_code == status
    if status == 403:
        assert answer.json()["code"] == ("log_not_yours" if path == "events" else "scope_missing")


def ask_from(address: str, networks: list[str], **headers: str) -> Any:
    made = token(networks=networks)
    client = APIClient(REMOTE_ADDR=address)
    client.credentials(HTTP_AUTHORIZATION="Bearer secret", **headers)
    answer = client.get("/api/v1/me")
    made.refresh_from_db()
    return answer, made.last_used_from


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("address", "networks", "status"),
    [
        ("10.1.2.3", [], 200),
        ("10.1.2.3", ["10.1.0.0/16"], 200),
        ("::ffff:10.1.2.3", ["10.1.0.0/16"], 200),
        ("10.2.2.3", ["10.1.0.0/16", "10.2.2.3/32"], 200),
        ("10.2.2.4", ["10.1.0.0/16", "10.2.2.3/32"], 403),
        ("2001:db8::1", ["10.1.0.0/16"], 403),
        ("2001:db8::1", ["2001:db8::/64"], 200),
        ("", ["10.1.0.0/16"], 403),
    ],
)
def test_a_token_works_from_its_networks_only(address: str, networks: list[str], status: int) -> None:
    answer, used_from = ask_from(address, networks)
    assert (answer.status_code, used_from) == (status, address)
    if status == 403:
        assert answer.json()["code"] == "network_refused"
        assert answer.json()["errors"][0]["remedy"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("proxies", "forwarded", "status"),
    [
        ([], "10.1.2.3", 403),  # nobody's word is believed
        (["192.0.2.0/24"], "10.1.2.3", 200),
        (["192.0.2.0/24"], "10.1.2.3, 198.51.100.7", 403),  # written by the caller, who is 198.51.100.7
        (["192.0.2.0/24"], "10.1.2.3, 192.0.2.9", 200),
    ],
)
def test_behind_a_proxy_the_callers_address_counts(
    proxies: list[str], forwarded: str, status: int, settings: Any
) -> None:
    settings.GPUYARD_TRUSTED_PROXIES = proxies
    answer, _from = ask_from("192.0.2.1", ["10.1.0.0/16"], HTTP_X_FORWARDED_FOR=forwarded)
    assert answer.status_code == status


@pytest.mark.django_db
@pytest.mark.parametrize("network", ["10.1.0.0/33", "example.org", "", "10.1.0.0 10.2.0.0"])
def test_what_is_no_network_is_named(network: str) -> None:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token_for(factories.user())}")
    asked = {"name": "ci", "scopes": ["read"], "networks": [network]}
    answer = client.post("/api/v1/tokens", asked, format="json")
    assert (answer.status_code, answer.json()["errors"][0]["field"].split(".")[0]) == (400, "networks")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("networks", "status", "stored"),
    [([], 201, ["10.1.0.0/16"]), (["10.1.2.3"], 201, ["10.1.2.3/32"]), (["10.0.0.0/8"], 403, None)],
)
def test_a_token_makes_none_for_other_networks(networks: list[str], status: int, stored: Any) -> None:
    token(networks=["10.1.0.0/16"])
    client = APIClient(REMOTE_ADDR="10.1.2.3")
    client.credentials(HTTP_AUTHORIZATION="Bearer secret")
    asked = {"name": "ci", "scopes": ["read", "costs:read"], "networks": networks}
    answer = client.post("/api/v1/tokens", asked, format="json")
    assert answer.status_code == status
    assert answer.json().get("networks") == stored
