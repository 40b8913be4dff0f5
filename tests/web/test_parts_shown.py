"""Parts of cards are told as parts: what is held, and how much memory that is."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from gpuyard.core.models import User
from gpuyard.fleet.models import Node
from scheduling.models import Workload
from scheduling.passes import pass_once
from tests import factories as make
from tests.web.test_scheduler_pages import browse, see

pytestmark = pytest.mark.django_db


def _part(**fields: int) -> tuple[User, Workload, Node]:
    team, tier = make.team(make.company(), "vision"), make.tier("l4-24g", memory_mib=24_576)
    node, member = make.node(tier, 1, name="node-a"), make.user("member", team)
    asked = make.workload(team, tier, owner=member, name="small", time_limit_s=None, request_fields=fields)
    return member, asked, node


@pytest.mark.parametrize(
    ("fields", "part", "memory"),
    [({"share": 250}, "0.25", "6 GiB"), ({"gpu_memory_mib": 10_240}, "0.417", "10 GiB")],
)
def test_what_is_held_of_a_card_is_told(fields: dict[str, int], part: str, memory: str) -> None:
    member, asked, node = _part(**fields)
    pass_once()
    pages = [see(member, "workload", asked.public_id), see(member, "workloads"), see(member, "home")]
    for page in pages:
        assert f"{part}\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}l4-24g, {memory}" in page
    assert f"{part} of gpu 0" in pages[0]
    assert f"then {part} GPU is free" in see(member, "workload", asked.public_id)
    on_node = see(member, "node", node.public_id)
    assert f"{part} of gpu 0" in on_node
    assert memory in on_node
    assert f"{part} of it held, small (vision)" in on_node
    assert f"{part} of it held, small (vision)" in see(member, "fleet")


def test_what_waits_for_memory_is_told_as_asked_and_counted_on_its_first_tier() -> None:
    member, _asked, node = _part(gpu_memory_mib=10_240)
    Node.objects.filter(pk=node.pk).update(cordoned=True)
    pass_once()
    assert "10 GiB of l4-24g" in see(member, "workloads")
    assert "small,vision,training,0.417,l4-24g" in see(member, "queue_csv")


def test_a_node_tells_strangers_only_that_it_is_taken() -> None:
    _member, asked, node = _part(share=250)
    pass_once()
    page = see(make.user("member", make.team()), "node", node.public_id)
    assert "another team" in page
    assert "0.25 of gpu 0" in page
    assert "small" not in page
    assert asked.public_id not in page


def test_a_node_without_work_says_so() -> None:
    assert "Nothing runs here" in see(make.user(), "node", make.node(make.tier(), 2).public_id)


@pytest.mark.parametrize("count", [1, 6])
def test_a_node_takes_as_many_queries_for_six_as_for_one(
    count: int, django_assert_max_num_queries: Any
) -> None:
    tier = make.tier()
    node = make.node(tier, count)
    for gpu in node.gpus.all():
        make.placed(make.workload(None, tier), [gpu], running=True)
    client = browse(make.admin())
    client.get(reverse("web:node", args=[node.public_id]))
    with django_assert_max_num_queries(24):
        client.get(reverse("web:node", args=[node.public_id]))
