import pytest
from django.test import Client

from tenants import api
from tests import factories
from tests.api.calls import token_for


@pytest.mark.django_db
def test_a_fault_of_ours_is_told_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.MeView, "Out", None)  # a bug of the view's own
    client = Client(raise_request_exception=False)
    headers = {"Authorization": f"Bearer {token_for(factories.user())}"}
    answer = client.get("/api/v1/me", headers=headers)
    assert (answer.status_code, answer["Content-Type"]) == (500, "application/problem+json")
    assert answer.json()["code"] == "internal"
    assert answer.json()["errors"][0]["remedy"]


@pytest.mark.django_db
def test_what_is_accepted_is_not_negotiated_into_a_page() -> None:
    headers = {"Authorization": f"Bearer {token_for(factories.user())}", "Accept": "text/html"}
    answer = Client().get("/api/v1/me", headers=headers)
    assert (answer.status_code, answer["Content-Type"]) == (406, "application/problem+json")
