"""What an agent's inventory makes of the node's rows."""

from __future__ import annotations

from typing import Any

import pytest

from gpuyard.audit.models import Event
from gpuyard.fleet.inventory import inventory_apply
from gpuyard.fleet.models import Gpu, GpuCondition, Node
from gpuyard.fleet.reports import Inventory
from gpuyard.fleet.selectors import gpus_left_out
from tests import factories as make
from tests.scheduling.speaking import gpu_report, inventory, rows_dump

pytestmark = pytest.mark.django_db


def _apply(node: Node, *gpus: dict[str, Any], **fields: Any) -> bool:
    node.refresh_from_db()
    return inventory_apply(node=node, inventory=Inventory.model_validate(inventory(*gpus, **fields)))


def _node() -> Node:
    make.tier("l4-24g", rule_for="NVIDIA L4")
    return make.node()


def _condition(gpu: Gpu) -> str:
    return GpuCondition.objects.get(gpu=gpu, span__upper_inf=True).condition


def test_gpus_join_with_tier_island_and_condition() -> None:
    node = _node()
    assert _apply(node, gpu_report(0), gpu_report(1, island=1))
    first, second = Gpu.objects.order_by("index")
    assert (first.tier.name, first.island and first.island.index, second.island and second.island.index) == (
        "l4-24g",
        0,
        1,
    )
    condition = GpuCondition.objects.get(gpu=first)
    assert (condition.condition, condition.span.lower) == ("ready", first.joined_at)
    assert first.card != second.card


def test_the_same_inventory_again_changes_nothing() -> None:
    node = _node()
    gpus = [gpu_report(0), gpu_report(1), gpu_report(2, model="Unknown GPU")]
    _apply(node, *gpus)
    before = rows_dump()
    assert not _apply(node, *reversed(gpus))
    assert rows_dump() == before


def test_a_change_raises_the_epoch() -> None:
    node = _node()
    epoch = node.epoch
    _apply(node, gpu_report(0))
    _apply(node, gpu_report(0), cpu_m=32_000)
    node.refresh_from_db()
    assert (node.epoch, node.cpu_total_m) == (epoch + 2, 32_000)


def test_an_unknown_model_is_left_out_and_said_once() -> None:
    node = _node()
    for _ in range(2):
        _apply(node, gpu_report(0, model="Mystery"), gpu_report(1))
    assert Gpu.objects.count() == 1
    event = Event.objects.get(action="gpu.left_out")
    assert event.new
    assert event.new["model"] == "Mystery"
    (left_out,) = gpus_left_out(make.user())
    assert (left_out.node_name, left_out.model) == (node.name, "Mystery")


def test_a_gpu_that_was_left_out_joins_once_a_rule_covers_it() -> None:
    node = _node()
    _apply(node, gpu_report(0, model="Mystery"))
    make.tier("mystery", rule_for="Mystery")
    assert _apply(node, gpu_report(0, model="Mystery"))
    assert Gpu.objects.get().tier.name == "mystery"
    assert gpus_left_out(make.user()) == []


def test_memory_decides_too() -> None:
    node = _node()
    make.tier("big", rule_for="NVIDIA A100").rules.update(memory_mib_min=60_000)
    _apply(
        node,
        gpu_report(0, model="NVIDIA A100", memory_mib=40_960),
        gpu_report(1, model="NVIDIA A100", memory_mib=81_920),
    )
    assert [gpu.index for gpu in Gpu.objects.all()] == [1]


def test_a_gpu_of_another_node_is_left_out() -> None:
    _apply(_node(), gpu_report(0))
    other = make.node()
    _apply(other, gpu_report(0))
    assert not other.gpus.exists()
    assert Event.objects.filter(action="gpu.left_out", subject_id=other.pk).exists()


def test_a_gpu_vanishes_and_returns() -> None:
    node = _node()
    _apply(node, gpu_report(0), gpu_report(1))
    gpu = Gpu.objects.get(index=1)
    assert _apply(node, gpu_report(0))
    assert _condition(gpu) == "down"
    assert not _apply(node, gpu_report(0))
    assert _apply(node, gpu_report(0), gpu_report(1))
    assert _condition(gpu) == "ready"
    assert Gpu.objects.count() == 2


def test_totals_never_fall_below_what_is_used() -> None:
    node = _node()
    Node.objects.update(cpu_used_m=9_000, memory_used_mib=9_000)
    _apply(node, cpu_m=4_000, memory_mib=4_000)
    node.refresh_from_db()
    assert (node.cpu_total_m, node.memory_total_mib) == (9_000, 9_000)


def test_mig_instances_share_their_card() -> None:
    node = _node()
    parts = [gpu_report(i, card_uuid="GPU-card", is_instance=1, compute_slices=3) for i in range(2)]
    _apply(node, *parts)
    assert len({gpu.card for gpu in Gpu.objects.all()}) == 1
    assert {gpu.compute_slices for gpu in Gpu.objects.all()} == {3}
