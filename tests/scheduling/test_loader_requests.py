"""How what people asked for reaches the engine."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from gpuyard.fleet.models import Tier
from scheduling.engine.snapshot import Request
from scheduling.loader_requests import RequestReader, requests_waiting
from scheduling.models import WorkloadDependency
from scheduling.moments import to_us
from tests import factories as make

pytestmark = pytest.mark.django_db


def _read() -> dict[str, Request]:
    return {request.workload_id: request for request in requests_waiting(RequestReader())}


def _one(*tiers: Tier, **fields: Any) -> Request:
    workload = make.workload(None, spec=make.spec_document(*tiers, request_fields=fields))
    return _read()[str(workload.pk)]


def test_every_field_of_a_request_arrives() -> None:
    tier, node = make.tier(), make.node()

    read = _one(
        tier,
        share=250,
        gpu_memory_mib=1024,
        tier_choice="order",
        node_labels=["zone=b", "disk=nvme"],
        not_labels=["x=y"],
        not_nodes=[node.name, "gone"],
        topology={"required": "block", "preferred": "rack", "wait_s": 60},
        spread_level="node",
        not_before="2026-12-01T08:00:00+01:00",
        min_run_s=600,
        restart_cost_s=30,
        elastic=True,
    )

    assert (read.tiers, read.share, read.gpu_memory_mib, read.by_value) == ((str(tier.pk),), 250, 1024, False)
    assert (read.node_labels, read.not_labels) == (("disk=nvme", "zone=b"), ("x=y",))
    assert read.not_nodes == (str(node.pk),)
    assert (read.required_level, read.preferred_level, read.level_wait_s) == ("block", "rack", 60)
    assert (read.spread_level, read.min_run_s, read.restart_cost_s) == ("node", 600, 30)
    assert (read.elastic, read.array_id, read.depends_on) == (True, None, ())
    assert read.not_before_us == 1_796_108_400_000_000


def test_a_document_from_before_these_fields_takes_their_defaults() -> None:
    read = _one(make.tier())

    assert read == Request(
        workload_id=read.workload_id,
        name=read.name,
        team_id=read.team_id,
        owner_id=read.owner_id,
        kind="training",
        priority=0,
        queued_us=read.queued_us,
        replicas_min=1,
        replicas_max=1,
        gpus_per_replica=1,
        tiers=read.tiers,
        cpu_m=1000,
        memory_mib=1024,
        preemptible=True,
        time_limit_s=3600,
        by_value=True,
    )


def test_capabilities_are_all_tiers_that_have_them_the_cheapest_first() -> None:
    small = make.tier("small", memory_mib=24_000, cost_rank=1)
    dear = make.tier("dear", memory_mib=80_000, cost_rank=9)
    plain = make.tier("plain", memory_mib=48_000, cost_rank=3)
    old = make.tier("old", memory_mib=48_000, cost_rank=2)
    Tier.objects.filter(pk__in=[small.pk, dear.pk, old.pk]).update(capabilities=["bf16", "fp8"])
    Tier.objects.filter(pk=old.pk).update(architecture="volta")

    def able(**wanted: Any) -> tuple[str, ...]:
        names = {str(tier.pk): tier.name for tier in Tier.objects.all()}
        return tuple(names.get(key, key) for key in _one(tiers=[], capabilities=wanted).tiers)

    assert able(memory_mib=40_000) == ("old", "plain", "dear")
    assert able(memory_mib=40_000, architecture="ampere") == ("plain", "dear")
    assert able(labels=["fp8"]) == ("small", "old", "dear")
    assert able(architecture="blackwell") == ("any GPU with blackwell or newer",)
    assert plain.capabilities == []


def test_only_what_has_not_succeeded_is_waited_for() -> None:
    team, tier = make.team(), make.tier()
    done, running = make.workload(team, tier, state="succeeded"), make.workload(team, tier, state="running")
    workload = make.workload(team, tier)
    for on in (done, running):
        WorkloadDependency.objects.create(workload=workload, on=on)

    assert _read()[str(workload.pk)].depends_on == (str(running.pk),)


def test_members_of_an_array_share_their_cap_and_what_they_wait_for() -> None:
    team, tier = make.team(), make.tier()
    first = make.workload(
        team, tier, spec=make.spec_document(tier, request_fields={"array": {"count": 2, "parallel": 1}})
    )
    second = make.workload(team, tier)
    for index, member in enumerate((first, second)):
        member.spec, member.array, member.array_index = first.spec, first, index
        member.save(update_fields=["spec", "array", "array_index"])
    first.state = "cancelled"
    first.save(update_fields=["state"])
    running = make.workload(team, tier, state="running")
    WorkloadDependency.objects.create(workload=first, on=running)

    read = _read()[str(second.pk)]
    assert (read.array_id, read.array_cap, read.depends_on) == (str(first.pk), 1, (str(running.pk),))


def test_the_oldest_comes_first_and_the_queries_do_not_grow_with_the_queue() -> None:
    team, tier = make.team(), make.tier()
    rows = [make.workload(team, tier) for _ in range(12)]

    with CaptureQueriesContext(
        connection,
    ) as queries:
        read = list(requests_waiting(RequestReader()))

    assert [request.workload_id for request in read] == [str(row.pk) for row in rows]
    assert read[0].queued_us == to_us(rows[0].queued_at) if rows[0].queued_at else False
    assert len(queries) == 6
