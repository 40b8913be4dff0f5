"""The page of one node: everybody reads it, admins change labels and place."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from gpuyard.core.models import User
from gpuyard.fleet.models import FabricDomain, Node
from tests import factories as make

pytestmark = pytest.mark.django_db


def _client(person: User) -> Client:
    browser = Client()
    browser.force_login(person)
    return browser


def _place(browser: Client, node: Node, **typed: str) -> int:
    return browser.post(reverse("web:node_place", args=[node.public_id]), typed).status_code


def test_an_admin_says_what_a_node_is_called_and_where_it_stands() -> None:
    node, admin = make.node(name="node-1"), _client(make.admin())
    block = make.domain("block", "b1")

    assert (
        _place(
            admin, node, labels="zone=a\ndisk=nvme", new_level="rack", new_name="r1", new_inside=str(block.pk)
        )
        == 302
    )

    node.refresh_from_db()
    rack = FabricDomain.objects.get(level="rack")
    assert (node.labels, node.domain, rack.parent) == (["disk=nvme", "zone=a"], rack, block)
    page = _client(make.user()).get(reverse("web:node", args=[node.public_id])).content.decode()
    assert "disk=nvme, zone=a" in page
    assert "block b1, rack r1" in page
    assert "Change it" not in page


def test_what_is_wrong_is_told_and_what_was_typed_stays() -> None:
    node, admin = make.node(), _client(make.admin())

    answer = admin.post(reverse("web:node_place", args=[node.public_id]), {"labels": "zone"})

    assert answer.status_code == 422
    assert "Write key=value" in answer.content.decode()
    assert ">zone</textarea>" in answer.content.decode()
    node.refresh_from_db()
    assert node.epoch == 1


def test_others_change_nothing() -> None:
    node = make.node()
    assert _place(_client(make.user()), node, labels="zone=a") == 403
    node.refresh_from_db()
    assert node.labels == []


def test_a_wrong_label_makes_no_domain_and_nonsense_moves_nothing() -> None:
    rack = make.domain("rack", "r1")
    node, admin = make.node(domain=rack), _client(make.admin())

    assert _place(admin, node, labels="zone", new_level="rack", new_name="r2", domain=str(rack.pk)) == 422
    assert list(FabricDomain.objects.values_list("name", flat=True)) == ["r1"]
    assert _place(admin, node, labels="", domain="r1") == 404
    node.refresh_from_db()
    assert node.domain == rack
