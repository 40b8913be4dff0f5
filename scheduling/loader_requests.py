"""Workloads as requests of the engine: those that wait, and those that have an attempt.

Rows rather than model instances, and of a spec only its request: twenty thousand may wait, each with a long
environment.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef

from gpuyard.fleet.models import Node, NodeState, Tier
from scheduling.asked import capabilities_text
from scheduling.engine import snapshot as engine
from scheduling.engine.decisions import BASIS_PROMISE
from scheduling.models import Verdict, Workload, WorkloadDependency
from scheduling.moments import to_us
from scheduling.rows import rows_read
from scheduling.sizes import tiers_able
from scheduling.specs import Capabilities
from scheduling.states import WorkloadState
from tenants.models import PoolDedication, Team

# What is asked for as text: many ask for the same, and it is read once.
_ASKED = """
SELECT w.id::text, w.name, w.team_id::text, w.owner_id::text, w.kind, w.priority,
  (extract(epoch FROM w.queued_at) * 1000000)::bigint, w.preemptible, w.band, w.array_id::text,
  s.document->>'request', (s.document->>'time_limit_s')::bigint
FROM scheduling_workload w JOIN scheduling_workloadspec s ON s.id = w.spec_id
"""
_WAITING = f"""{_ASKED}
WHERE w.state = 'waiting' AND NOT EXISTS (
  SELECT 1 FROM scheduling_attempt t WHERE t.workload_id = w.id AND t.state = 'claiming')
ORDER BY w.queued_at, w.id
"""  # noqa: S608 - of our own words only
_PLACED = f"""{_ASKED}
WHERE w.id IN (SELECT workload_id FROM scheduling_attempt WHERE state <> 'ended') ORDER BY w.id
"""  # noqa: S608 - of our own words only


@dataclass
class RequestReader:
    """What the requests of one snapshot have in common, read once. Ids are text."""

    tiers: Mapping[str, Tier] = field(
        default_factory=lambda: {tier.name: tier for tier in Tier.objects.all()}
    )
    node_ids: Mapping[str, str] = field(default_factory=lambda: _node_ids())
    pools: Mapping[str, tuple[str, ...]] | None = field(default_factory=lambda: _allowed_pools())
    promises_us: Mapping[str, int] = field(default_factory=lambda: _promises())
    unfinished: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _unfinished())
    _known: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # request, as text → fields of the engine's

    def read(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[engine.Request]:
        """The requests in these rows of `_ASKED`, in their order. They have been approved: `queued_at` is set."""
        for (
            key,
            name,
            team,
            owner,
            kind,
            priority,
            queued_us,
            preemptible,
            band,
            array,
            asked,
            limit_s,
        ) in rows:
            yield engine.Request(
                workload_id=key,
                name=name,
                team_id=team,
                owner_id=owner,
                kind=kind,
                priority=priority,
                queued_us=queued_us,
                preemptible=preemptible,
                band=band,
                time_limit_s=limit_s,
                pool_ids=self.pools.get(team) if self.pools is not None else None,
                promised_us=self.promises_us.get(key),
                depends_on=self.unfinished.get(array or key, ()),
                array_id=array,
                **(self._known.get(asked) or self._read(asked)),
            )

    def _read(self, text: str) -> dict[str, Any]:
        asked = json.loads(text)
        self._known[text] = {
            "replicas_min": asked["replicas_min"],
            "replicas_max": asked["replicas_max"],
            "gpus_per_replica": asked["gpus_per_replica"],
            "tiers": self._tiers(asked),
            "cpu_m": asked["cpu_m"],
            "memory_mib": asked["memory_mib"],
            **self._choices(asked),
        }
        return self._known[text]

    def _choices(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What may be left out: documents that were stored before a field came do without it."""
        topology, array = asked.get("topology") or {}, asked.get("array") or {}
        not_before = asked.get("not_before")
        return {
            "mix_tiers": asked.get("mix_tiers", False),
            "by_value": asked.get("tier_choice", "value") == "value",
            "share": asked.get("share"),
            "gpu_memory_mib": asked.get("gpu_memory_mib"),
            "node_labels": tuple(sorted(asked.get("node_labels", ()))),
            "not_labels": tuple(sorted(asked.get("not_labels", ()))),
            "not_nodes": tuple(
                sorted(self.node_ids[one] for one in asked.get("not_nodes", ()) if one in self.node_ids)
            ),
            "required_level": topology.get("required"),
            "preferred_level": topology.get("preferred"),
            "level_wait_s": topology.get("wait_s", 0),
            "spread_level": asked.get("spread_level"),
            "not_before_us": to_us(datetime.fromisoformat(not_before)) if not_before else None,
            "array_cap": array.get("parallel"),
            "min_run_s": asked.get("min_run_s", 0),
            "restart_cost_s": asked.get("restart_cost_s", 0),
            "elastic": asked.get("elastic", False),
        }

    def _tiers(self, asked: dict[str, Any]) -> tuple[str, ...]:
        """By key. What is no longer there keeps its name, or says what was wanted: the verdict tells."""
        if wanted := asked.get("capabilities"):
            capabilities = Capabilities.model_validate(wanted)
            able = tiers_able(capabilities, self.tiers.values())
            return tuple(str(tier.pk) for tier in able) or (capabilities_text(capabilities),)
        return tuple(str(self.tiers[name].pk) if name in self.tiers else name for name in asked["tiers"])


def requests_waiting(reader: RequestReader) -> Iterator[engine.Request]:
    """Whatever waits for GPUs and has no claim on any, the oldest first."""
    return reader.read(rows_read(_WAITING))


def requests_placed(reader: RequestReader) -> Iterator[engine.Request]:
    """The requests of what runs, leaves or claims: what they would need again. None has a promise any more."""
    return replace(reader, promises_us={}).read(rows_read(_PLACED))


def _node_ids() -> dict[str, str]:
    rows = Node.objects.exclude(state=NodeState.RETIRED).values_list("id", "name", "public_id")
    return {name: str(key) for key, *names in rows for name in names}


def _promises() -> dict[str, int]:
    promises = Verdict.objects.filter(eta_basis=BASIS_PROMISE, eta__isnull=False)
    return {
        str(key): to_us(eta) for key, eta in promises.values_list("workload_id", "eta") if eta is not None
    }


def _unfinished() -> dict[str, tuple[str, ...]]:
    """Workload (the first member, of an array) → those that must succeed first and have not yet."""
    waiting = Workload.objects.filter(state=WorkloadState.WAITING)
    rows = WorkloadDependency.objects.filter(
        Exists(waiting.filter(pk=OuterRef("workload_id")))
        | Exists(waiting.filter(array_id=OuterRef("workload_id")))
    ).exclude(on__state=WorkloadState.SUCCEEDED)
    found: dict[str, list[str]] = defaultdict(list)
    for workload_id, on_id in rows.order_by("on_id").values_list("workload_id", "on_id"):
        found[str(workload_id)].append(str(on_id))
    return {key: tuple(ons) for key, ons in found.items()}


def _allowed_pools() -> dict[str, tuple[str, ...]] | None:
    """Team → the pools it may use: those dedicated to nobody, and those dedicated to it or to an ancestor.

    None if no pool is dedicated at all.
    """
    dedicated: dict[UUID, set[UUID]] = defaultdict(set)
    for row in PoolDedication.objects.all():
        dedicated[row.pool_id].add(row.team_id)
    if not dedicated:
        return None
    pool_ids = set(Node.objects.values_list("pool_id", flat=True)) | set(dedicated)
    return {
        str(team.id): tuple(
            sorted(
                str(pool) for pool in pool_ids if pool not in dedicated or dedicated[pool] & set(team.path)
            )
        )
        for team in Team.objects.all()
    }
