"""Queue, free space and passes: what is said, to whom, in how many queries."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from gpuyard.core.models import User
from scheduling.models import PassRecord
from scheduling.passes import pass_once
from tests import factories as make

pytestmark = pytest.mark.django_db


def browse(person: User) -> Client:
    client = Client()
    client.force_login(person)
    return client


def see(person: User, name: str, *args: object, **query: str) -> str:
    answer = browse(person).get(reverse(f"web:{name}", args=args), query)
    assert answer.status_code == 200
    return answer.text


# --- Free space ------------------------------------------------------------------------------------------------


def test_free_gpus_are_told_by_block() -> None:
    tier = make.tier("h100-80g")
    full, half = make.node(tier, 8, name="full"), make.node(tier, 8, name="half")
    make.node(tier, 8, name="gone", cordoned=True)
    make.placed(make.workload(None, tier), list(full.gpus.all()))
    make.placed(make.workload(None, tier), list(half.gpus.all())[:4])
    page = see(make.user(), "free_space")
    assert "4 of 24 GPUs are free; the largest block is 4 × h100-80g on one node." in page
    assert 'aria-label="half: 4 of 8 free"' in page
    assert 'aria-label="gone: out of service"' in page
    assert "4 of no use for a request of 8" in page


def test_free_space_has_its_csv() -> None:
    tier = make.tier("h100-80g")
    make.node(tier, 2, name="a", in_pool=make.pool("train"))
    text = see(make.user(), "free_space_csv", tier="h100-80g")
    assert text.splitlines()[1] == "h100-80g,a,train,yes,2,2,2"


def test_free_space_without_a_node_says_what_to_do() -> None:
    assert "No node has joined" in see(make.user(), "free_space")


@pytest.mark.parametrize("count", [1, 6])
def test_free_space_takes_as_many_queries_in_a_large_fleet(
    count: int, django_assert_max_num_queries: Any
) -> None:
    for _ in range(count):
        tier = make.tier()
        node = make.node(tier, 2)
        make.placed(make.workload(None, tier), [node.gpus.all()[0]])
    client = browse(make.user())
    client.get(reverse("web:free_space"))
    with django_assert_max_num_queries(14):
        client.get(reverse("web:free_space"))


# --- Passes ----------------------------------------------------------------------------------------------------


def a_pass() -> int:
    tier = make.tier("h100-80g")
    make.node(tier, 4, name="node-a")
    make.workload(None, tier, name="starts", gpus=4)
    make.workload(None, tier, name="waits", gpus=4)
    return pass_once().pass_number


def test_a_pass_is_told_with_its_starts() -> None:
    number = a_pass()
    page = see(make.admin(), "pass", number)
    assert "starts</a>" in page
    assert "h100-80g on node-a" in page
    assert "1 started" in page
    assert "1 started" in see(make.admin(), "passes")


def test_only_passes_with_stops() -> None:
    number = a_pass()
    assert "No pass took anything back" in see(make.admin(), "passes", show="stops")
    PassRecord.objects.filter(number=number).update(stopped=2)
    assert "2 taken back" in see(make.admin(), "passes", show="stops")
    assert f"\n{number}," in see(make.admin(), "passes_csv", show="stops")


def test_a_pass_is_replayed_from_its_page() -> None:
    number = a_pass()
    client = browse(make.admin())
    page = client.post(reverse("web:pass_replay", args=[number]), follow=True).text
    assert f"Pass {number} again: the same plan, 1 start, 1 verdict" in page
    PassRecord.objects.update(snapshot=None)
    page = client.post(reverse("web:pass_replay", args=[number]), follow=True).text
    assert "is not kept any more" in page


def test_a_pass_that_is_not_kept_is_not_there() -> None:
    assert browse(make.admin()).get(reverse("web:pass", args=[9])).status_code == 404


@pytest.mark.parametrize("count", [1, 6])
def test_a_pass_takes_as_many_queries_for_six_starts_as_for_one(
    count: int, django_assert_max_num_queries: Any
) -> None:
    tier = make.tier()
    make.node(tier, 8)
    for _ in range(count):
        make.workload(None, tier)
    number = pass_once().pass_number
    client = browse(make.admin())
    client.get(reverse("web:pass", args=[number]))
    with django_assert_max_num_queries(20):
        client.get(reverse("web:pass", args=[number]))
