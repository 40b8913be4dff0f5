"""Joining the fleet."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from gpuyard.audit.models import Event
from gpuyard.core.errors import Forbidden
from gpuyard.fleet.models import Gpu, JoinToken, Node
from gpuyard.fleet.services import join_token_create, node_secret_revoke
from tests import factories as make
from tests.scheduling.speaking import Speaker, gpu_report, inventory

pytestmark = pytest.mark.django_db


def _token(uses: int = 1, lifetime: timedelta = timedelta(hours=1)) -> str:
    make.tier("l4-24g", rule_for="NVIDIA L4")
    return join_token_create(actor=make.admin(), pool=make.pool(), uses=uses, lifetime=lifetime)[1]


def _join(token: str, name: str = "node-a", **body: Any) -> Any:
    message = {"join_token": token, "name": name, "inventory": inventory(gpu_report(0, of=name)), **body}
    return Client().post("/agent/v1/join", message, content_type="application/json")


def test_a_node_joins_and_syncs_with_its_secret() -> None:
    response = _join(_token())
    assert response.status_code == 201
    joined = response.json()
    node = Node.objects.get(public_id=joined["node_id"])
    assert (joined["sync_s"], joined["lease_s"]) == (2.0, 90)
    assert (node.state, node.cpu_total_m, node.port_low) == ("joined", 64_000, 20_000)
    assert Gpu.objects.get().tier.name == "l4-24g"
    assert joined["node_secret"] not in str(Node.objects.values().get())

    Speaker(node, joined["node_secret"]).sync()
    node.refresh_from_db()
    assert node.state == "ready"


@pytest.mark.parametrize("token", ["", "unknown", "ü", "\ud800"])
def test_an_unknown_token_is_refused(token: str) -> None:
    response = _join(token)
    assert response.status_code in (400, 401)
    assert response.json()["errors"][0]["field"] == "join_token"
    assert not Node.objects.exists()


def test_a_token_serves_as_often_as_it_says() -> None:
    token = _token(uses=2)
    assert [_join(token, name).status_code for name in ("a", "b", "c")] == [201, 201, 401]


def test_an_expired_token_is_refused() -> None:
    assert _join(_token(lifetime=timedelta(seconds=-1))).status_code == 401


def test_a_name_joins_once_and_the_token_is_not_used_up() -> None:
    token = _token(uses=2)
    _join(token)
    response = _join(token)
    assert response.status_code == 409
    assert response.json()["errors"][0]["field"] == "name"
    assert JoinToken.objects.get().uses_left == 1


def test_after_its_secret_was_revoked_a_node_joins_again() -> None:
    token = _token(uses=2)
    old = Speaker(Node(), _join(token).json()["node_secret"])
    old.sync()
    node_secret_revoke(actor=make.admin(), node_id=Node.objects.get().pk, reason="Disk replaced")
    assert old.try_sync().status_code == 401
    new = Speaker(Node.objects.get(), _join(token).json()["node_secret"])
    assert new.sync()["seq"] == 1
    assert Node.objects.count() == Gpu.objects.count() == 1


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 65, "-a", "a\x00"])
def test_a_bad_name_is_refused(name: str) -> None:
    response = _join(_token(), name)
    assert response.status_code == 400
    assert response.json()["errors"][0]["field"] == "name"


def test_only_admins_create_tokens() -> None:
    with pytest.raises(Forbidden):
        join_token_create(actor=make.user(), pool=make.pool())


def test_joining_is_recorded_without_the_secret() -> None:
    token = _token()
    secret = _join(token).json()["node_secret"]
    events = list(Event.objects.values())
    assert {"join_token.create", "node.join", "gpu.join"} <= {event["action"] for event in events}
    assert secret not in str(events)
    assert token not in str(events)


def test_only_post_is_taken() -> None:
    assert Client().get("/agent/v1/join").status_code == 405
