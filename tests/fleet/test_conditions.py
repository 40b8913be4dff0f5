"""Cordon, drain, lost and back: the epoch moves, and each GPU's condition has no gap."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from django.db import connection

from gpuyard.core.errors import Conflict, Forbidden
from gpuyard.core.models import User
from gpuyard.fleet.conditions import VANISHED, conditions_set
from gpuyard.fleet.models import Condition, GpuCondition, Node
from gpuyard.fleet.services import (
    node_cordon,
    node_drain,
    node_lock,
    node_mark_lost,
    node_mark_ready,
    node_uncordon,
)
from tests import factories as make
from tests.scheduling.speaking import rows_dump

pytestmark = pytest.mark.django_db


def _history(node: Node) -> list[str]:
    """The conditions of the node's only GPU in order, after checking that they follow one another without a gap."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")
    rows = list(GpuCondition.objects.filter(gpu__node=node).order_by("span"))
    for before, after in pairwise(rows):
        assert before.span.upper == after.span.lower
    assert rows[-1].span.upper is None
    return [row.condition for row in rows]


@pytest.fixture
def admin() -> User:
    return make.admin()


def test_cordon_and_uncordon(admin: User) -> None:
    node = make.node(make.tier(), 1)
    epoch = node.epoch
    node = node_cordon(actor=admin, node_id=node.pk, reason="New fans")
    assert (node.cordoned, node.cordon_reason, node.epoch) == (True, "New fans", epoch + 1)
    node = node_uncordon(actor=admin, node_id=node.pk)
    assert (node.cordoned, node.cordon_reason, node.epoch) == (False, "", epoch + 2)
    assert _history(node) == ["ready", "cordoned", "ready"]


@pytest.mark.parametrize("act", [node_cordon, node_drain])
def test_twice_is_once(admin: User, act: Callable[..., Node]) -> None:
    node = make.node(make.tier(), 1)
    act(actor=admin, node_id=node.pk, reason="x")
    before = rows_dump()
    act(actor=admin, node_id=node.pk, reason="x")
    assert rows_dump() == before


def test_a_drained_node_is_cordoned(admin: User) -> None:
    node = make.node(make.tier(), 1)
    node = node_drain(actor=admin, node_id=node.pk, reason="Leaves")
    assert (node.cordoned, node.draining) == (True, True)
    assert _history(node) == ["ready", "cordoned"]
    assert node_uncordon(actor=admin, node_id=node.pk).draining is False


def test_lost_and_back(admin: User) -> None:
    node = make.node(make.tier(), 1)
    node = node_lock(node.pk)
    epoch = node.epoch
    node_mark_lost(node)
    node_mark_ready(node)
    node.refresh_from_db()
    assert (node.state, node.epoch) == ("ready", epoch + 2)
    assert _history(node) == ["ready", "down", "ready"]


def test_cordoned_while_lost_comes_back_cordoned(admin: User) -> None:
    node = node_lock(make.node(make.tier(), 1).pk)
    node_mark_lost(node)
    node = node_cordon(actor=admin, node_id=node.pk, reason="Look at it")
    node_mark_ready(node)
    assert _history(node) == ["ready", "down", "cordoned"]
    node_uncordon(actor=admin, node_id=node.pk)
    assert _history(node) == ["ready", "down", "cordoned", "ready"]


def test_a_vanished_gpu_stays_down_through_all_of_it(admin: User) -> None:
    node = node_lock(make.node(make.tier(), 1).pk)
    conditions_set([node.gpus.get().pk], Condition.DOWN, VANISHED)
    node_mark_lost(node)
    node_mark_ready(node)
    node_cordon(actor=admin, node_id=node.pk, reason="x")
    node_uncordon(actor=admin, node_id=node.pk)
    assert _history(node) == ["ready", "down"]


def test_only_admins_cordon() -> None:
    with pytest.raises(Forbidden):
        node_cordon(actor=make.user(), node_id=make.node().pk, reason="x")


def test_a_retired_node_is_left_alone(admin: User) -> None:
    node = make.node(state="retired", retired_at="2026-01-01T00:00:00Z")
    with pytest.raises(Conflict):
        node_uncordon(actor=admin, node_id=node.pk)
