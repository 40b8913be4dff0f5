"""Applies an agent's inventory to the node's rows. The same inventory again changes nothing.

A GPU whose model and memory no tier rule covers is left out: it could be neither requested nor priced. That is
recorded once and the GPU joins as soon as a rule covers it and the agent reports again.
"""

from __future__ import annotations

import logging
import uuid

from django.db import transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from gpuyard.audit.models import Event
from gpuyard.audit.services import Actor, Subject, event_record
from gpuyard.core import clock
from gpuyard.fleet.conditions import VANISHED, condition_when_present, conditions_set
from gpuyard.fleet.models import Condition, Gpu, GpuCondition, Island, Node, Tier, TierRule
from gpuyard.fleet.reports import GpuReport, Inventory

logger = logging.getLogger(__name__)

_CARDS = uuid.UUID("6d1f2f0c-6c1e-5c0e-9d53-6b1c9f0a7e11")
_NO_TIER = "no tier rule covers its model and memory"
_ELSEWHERE = "another node already has this GPU"


def card_id(card_uuid: str) -> uuid.UUID:
    """The key of a physical GPU: the same for all its MIG instances, whichever way the driver names it."""
    return uuid.uuid5(_CARDS, card_uuid)


@transaction.atomic
def inventory_apply(*, node: Node, inventory: Inventory) -> bool:
    """Brings the node's rows in line with what its agent found; returns whether anything changed.

    The caller holds the node's row locked. A change raises the epoch, so that the pass looks again.
    """
    changed = _node_apply(node, inventory)
    changed = _gpus_apply(node, inventory) or changed
    if changed:
        node.epoch += 1
        node.save(update_fields=["epoch", *_NODE_FIELDS])
    return changed


_NODE_FIELDS = (
    "advertise_address",
    "port_low",
    "port_high",
    "simulated",
    "cpu_total_m",
    "memory_total_mib",
)


def _node_apply(node: Node, inventory: Inventory) -> bool:
    new = {
        "advertise_address": inventory.advertise_address,
        "port_low": inventory.port_range[0],
        "port_high": inventory.port_range[1],
        "simulated": inventory.simulated,
        # Never below what is in use: the node is then full until work ends.
        "cpu_total_m": max(inventory.cpu_m, node.cpu_used_m),
        "memory_total_mib": max(inventory.memory_mib, node.memory_used_mib),
    }
    old = {name: getattr(node, name) for name in _NODE_FIELDS}
    if new == old:
        return False
    for name, value in new.items():
        setattr(node, name, value)
    _record(node, "node.capacity", Subject("node", node.id, node.name), old=old, new=new)
    return True


def _gpus_apply(node: Node, inventory: Inventory) -> bool:
    known = {gpu.device_uuid: gpu for gpu in node.gpus.filter(retired_at=None).select_related("island")}
    conditions = {
        row.gpu_id: row for row in GpuCondition.objects.filter(gpu__in=known.values(), span__upper_inf=True)
    }
    reported = {one.uuid: one for one in inventory.gpus}
    rules = list(TierRule.objects.filter(span__contains=clock.now()).select_related("tier"))
    changed = _gpus_vanished(node, [g for u, g in known.items() if u not in reported], conditions)
    elsewhere = set(
        Gpu.objects.filter(device_uuid__in=reported.keys() - known.keys(), retired_at=None).values_list(
            "device_uuid", flat=True
        )
    )
    for one in reported.values():
        tier = _tier_of(one, rules)
        if one.uuid in known:
            gpu = known[one.uuid]
            changed = _gpu_update(node, gpu, one, tier or gpu.tier, conditions[gpu.id]) or changed
        elif tier is None or one.uuid in elsewhere:
            _left_out(node, one, _NO_TIER if tier is None else _ELSEWHERE)
        else:
            _gpu_add(node, one, tier)
            changed = True
    return changed


def _tier_of(one: GpuReport, rules: list[TierRule]) -> Tier | None:
    for rule in rules:
        if rule.model == one.model and rule.memory_mib_min <= one.memory_mib <= rule.memory_mib_max:
            return rule.tier
    return None


def _gpus_vanished(node: Node, gpus: list[Gpu], conditions: dict[uuid.UUID, GpuCondition]) -> bool:
    gone = [gpu for gpu in gpus if conditions[gpu.id].reason != VANISHED]
    conditions_set([gpu.id for gpu in gone], Condition.DOWN, VANISHED)
    for gpu in gone:
        _record(node, "gpu.vanish", gpu, old={"condition": conditions[gpu.id].condition})
    return bool(gone)


def _gpu_add(node: Node, one: GpuReport, tier: Tier) -> None:
    now = clock.now()
    gpu = Gpu.objects.create(
        node=node,
        tier=tier,
        device_uuid=one.uuid,
        card=card_id(one.card_uuid),
        joined_at=now,
        **_gpu_facts(node, one),
    )
    condition, reason = condition_when_present(node)
    GpuCondition.objects.create(
        gpu=gpu, tier=tier, condition=condition, reason=reason, span=DateTimeTZRange(now, None)
    )
    _record(node, "gpu.join", gpu, new={"tier": tier.name, "device": one.uuid})


def _gpu_update(node: Node, gpu: Gpu, one: GpuReport, tier: Tier, condition: GpuCondition) -> bool:
    facts = _gpu_facts(node, one)
    old = {name: getattr(gpu, name) for name in facts}
    changed = old != facts or gpu.tier_id != tier.id
    if changed:
        _record(node, "gpu.change", gpu, old={"tier": gpu.tier_id}, new={"tier": tier.id})
        is_new_tier = gpu.tier_id != tier.id
        for name, value in {**facts, "tier": tier}.items():
            setattr(gpu, name, value)
        gpu.save(update_fields=[*facts, "tier"])
        if is_new_tier:
            conditions_set([gpu.id], Condition(condition.condition), condition.reason)
    if condition.condition == Condition.DOWN and condition.reason == VANISHED:
        conditions_set([gpu.id], *condition_when_present(node))
        _record(node, "gpu.return", gpu)
        changed = True
    return changed


def _gpu_facts(node: Node, one: GpuReport) -> dict[str, object]:
    island, _created = Island.objects.get_or_create(node=node, index=one.island)
    return {
        "island": island,
        "index": one.index,
        "is_instance": one.is_instance,
        "compute_slices": one.compute_slices,
        "card_slices": one.card_slices,
        "memory_mib": one.memory_mib,
    }


def _left_out(node: Node, one: GpuReport, reason: str) -> None:
    """Says so once for each GPU and reason, not with every start of the agent."""
    said = Event.objects.filter(
        action="gpu.left_out", subject_type="node", subject_id=node.id, reason=reason, new__device=one.uuid
    ).exists()
    if not said:
        logger.warning(
            "%s: %s (%s, %s MiB) is left out: %s", node, one.uuid, one.model, one.memory_mib, reason
        )
        _record(
            node,
            "gpu.left_out",
            Subject("node", node.id, node.name),
            new={"device": one.uuid, "model": one.model, "memory_mib": one.memory_mib},
            reason=reason,
        )


def _record(
    node: Node,
    action: str,
    subject: Gpu | Subject,
    *,
    old: dict[str, object] | None = None,
    new: dict[str, object] | None = None,
    reason: str = "",
) -> None:
    event_record(
        company_id=None,
        actor=Actor(f"agent of {node.name}", node.id),
        action=action,
        subject=subject,
        old=old,
        new=new,
        reason=reason,
    )


__all__ = ["card_id", "inventory_apply"]
