"""Moves the conditions of a node's GPUs. `gpu_condition_set` in the database keeps each GPU's history gapless.

A reason tells apart what is down: a GPU that vanished stays down when its lost node comes back without it.
Callers hold the node's row locked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from django.db import connection
from django.db.models import QuerySet
from django.utils.translation import gettext_noop

from gpuyard.core import ids
from gpuyard.fleet.models import Condition, Gpu, GpuCondition, Node

VANISHED = gettext_noop("The node no longer reports this GPU.")
NODE_LOST = gettext_noop("The node is lost.")


def condition_when_present(node: Node) -> tuple[Condition, str]:
    """The condition of a GPU that is there and well, and why."""
    return (Condition.CORDONED, node.cordon_reason) if node.cordoned else (Condition.READY, "")


def conditions_cordon(node: Node) -> None:
    """After `cordoned` was set or cleared: ready ⇄ cordoned. What is down stays down."""
    condition, reason = condition_when_present(node)
    other = Condition.READY if condition == Condition.CORDONED else Condition.CORDONED
    conditions_set(_gpus_with(node, condition=other), condition, reason)


def conditions_lost(node: Node) -> None:
    """The node is lost: all that was not down is now."""
    gpus = _open(node).exclude(condition=Condition.DOWN).order_by("gpu_id").values_list("gpu_id", flat=True)
    conditions_set(gpus, Condition.DOWN, NODE_LOST)


def conditions_back(node: Node) -> None:
    """The node is back: what was down because of it no longer is."""
    gpus = _gpus_with(node, condition=Condition.DOWN, reason=NODE_LOST)
    conditions_set(gpus, *condition_when_present(node))


def conditions_set(gpu_ids: Iterable[UUID], condition: Condition, reason: str) -> None:
    """Ends each GPU's open condition and opens this one at the same instant."""
    targets = list(gpu_ids)
    if not targets:
        return
    tiers = dict(Gpu.objects.filter(id__in=targets).values_list("id", "tier_id"))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT gpu_condition_set(gpu, new_id, tier, %s, %s)"
            " FROM unnest(%s::uuid[], %s::uuid[], %s::uuid[]) AS target (gpu, new_id, tier)",
            [
                condition.value,
                reason[:200],
                targets,
                [ids.uuid7() for _ in targets],
                [tiers[gpu_id] for gpu_id in targets],
            ],
        )


def _open(node: Node) -> QuerySet[GpuCondition]:
    return GpuCondition.objects.filter(gpu__node=node, gpu__retired_at=None, span__upper_inf=True)


def _gpus_with(node: Node, **wanted: str) -> Sequence[UUID]:
    return list(_open(node).filter(**wanted).order_by("gpu_id").values_list("gpu_id", flat=True))
