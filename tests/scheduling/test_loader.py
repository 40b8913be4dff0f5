"""What a pass is told of the database."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from gpuyard.core import clock
from gpuyard.fleet.models import FabricDomain, Node
from scheduling.engine.snapshot import Gpu
from scheduling.loader import snapshot_load
from scheduling.models import Allocation, Attempt, Eviction
from scheduling.moments import to_us
from tests import factories as make


def _shared(on: Node, *pieces: tuple[int, int], team: object = None) -> list[Allocation]:
    tier = on.gpus.all()[0].tier
    of = make.team() if team is None else team
    rank = make.replica(make.attempt(make.workload(of, tier), tier), on)  # type: ignore[arg-type]
    return [make.allocation(rank, on.gpus.all()[0], shares=piece) for piece in pieces]


def _gpu() -> Gpu:
    return snapshot_load().snapshot.gpus[0]


@pytest.mark.django_db
def test_what_is_left_of_a_shared_card_is_told_with_whose_it_is() -> None:
    node = make.node(make.tier(), 2)
    rows = _shared(node, (0, 250), (500, 600))
    shared, whole = snapshot_load().snapshot.gpus
    assert (shared.free, shared.slots_free, shared.shared_by) == (False, 650, str(rows[0].team_id))
    assert (whole.free, whole.slots_free, whole.shared_by) == (True, 0, None)


@pytest.mark.django_db
def test_a_card_that_is_held_whole_has_nothing_left() -> None:
    tier = make.tier()
    node = make.node(tier, 1)
    make.placed(make.workload(make.team(), tier), [node.gpus.get()])
    assert (_gpu().free, _gpu().slots_free) == (False, 0)


@pytest.mark.django_db
def test_a_card_takes_no_share_while_two_teams_are_on_it_one_after_the_other() -> None:
    node = make.node(make.tier(), 1)
    (leaving,) = _shared(node, (0, 500))
    Allocation.objects.filter(pk=leaving.pk).update(state="stopping")
    other = make.replica(make.attempt(make.workload(make.team(), leaving.tier), leaving.tier), node)
    make.allocation(other, node.gpus.get(), shares=(0, 300), state="claimed")
    assert _gpu().slots_free == 0


@pytest.mark.django_db
def test_two_teams_are_never_on_one_card() -> None:
    node = make.node(make.tier(), 1)
    _shared(node, (0, 250))
    with pytest.raises(IntegrityError, match="scheduling_share"), transaction.atomic():
        _shared(node, (500, 600))


@pytest.mark.django_db
def test_each_replica_has_its_own_row_with_its_gpus() -> None:
    tier = make.tier()
    node = make.node(tier, 4)
    gpus = list(node.gpus.all())
    made = make.placed(make.workload(make.team(), tier, gpus=2, replicas=2), gpus[:2], gpus[2:], running=True)
    first, second = snapshot_load().snapshot.live
    assert (first.replica, second.replica) == (0, 1)
    assert first.gpu_ids == tuple(str(gpu.id) for gpu in gpus[:2])
    assert (first.units, first.slots, first.cpu_m) == (14_000, 1000, 1000)
    assert made.running_at is not None
    assert first.ends_us == to_us(made.running_at + timedelta(seconds=3600))


@pytest.mark.django_db
def test_levels_are_told_widest_first_and_each_node_knows_its_domains() -> None:
    zone = FabricDomain.objects.create(level="zone", name="z1")
    block = FabricDomain.objects.create(level="block", name="b1", parent=zone)
    rack = FabricDomain.objects.create(level="rack", name="r1", parent=block)
    tier = make.tier()
    make.node(tier, 1, name="a", domain=rack)
    make.node(tier, 1, name="b", domain=zone)
    make.node(tier, 1, name="c")
    snapshot = snapshot_load().snapshot
    assert snapshot.levels == ("zone", "block", "rack")
    assert {node.name: node.domains for node in snapshot.nodes} == {
        "a": ("z1", "b1", "r1"),
        "b": ("z1", "", ""),
        "c": ("", "", ""),
    }


def _evict(attempt: Attempt, *, ago_s: float = 0, replicas: list[int] | None = None) -> None:
    workload = attempt.workload
    Eviction.objects.create(
        company_id=workload.company_id,
        team_id=workload.team_id,
        workload=workload,
        attempt=attempt,
        pass_number=1,
        reason="return",
        replicas=replicas,
        units=7000,
        at=clock.now() - timedelta(seconds=ago_s),
    )


@pytest.mark.django_db
def test_what_runs_is_told_with_its_request_and_its_evictions() -> None:
    tier = make.tier()
    node = make.node(tier, 1)
    workload = make.workload(make.team(), tier, preemptible=True)
    attempt = make.placed(workload, [node.gpus.get()], running=True)
    _evict(attempt)
    _evict(attempt, ago_s=7 * 86_400)
    _evict(attempt, replicas=[1])
    snapshot = snapshot_load().snapshot
    (running,), (placed,), (team,) = snapshot.running, snapshot.placed, snapshot.evictions
    assert (running.workload_id, running.state, running.evictions) == (str(workload.id), "running", 1)
    assert (placed.workload_id, placed.gpus_per_replica, placed.preemptible) == (str(workload.id), 1, True)
    assert (team.team_id, team.count) == (str(workload.team_id), 1)


@pytest.mark.django_db
def test_what_was_taken_back_is_never_forgotten() -> None:
    tier = make.tier()
    attempt = make.attempt(make.workload(make.team(), tier), tier)
    _evict(attempt)
    with pytest.raises(Exception, match="permission denied"), transaction.atomic():
        Eviction.objects.all().delete()


@pytest.mark.django_db
def test_the_mix_counts_replicas_of_each_shape() -> None:
    tier = make.tier()
    for _ in range(2):
        make.workload(make.team(), tier, gpus=4, replicas=3)
    make.workload(make.team(), tier, gpus=1, state="succeeded")
    rows = snapshot_load().snapshot.mix
    assert [(row.gpus, row.slots, row.count) for row in rows] == [(1, 1000, 1), (4, 1000, 6)]
    assert rows[0].tiers == (str(tier.id),)


@pytest.mark.django_db
def test_a_share_counts_in_the_mix_by_the_larger_of_parts_and_memory() -> None:
    tier = make.tier(memory_mib=40_000)
    document = make.spec_document(tier)
    document["request"] |= {"share": 100, "gpu_memory_mib": 10_000, "gpus_per_replica": 1}
    make.workload(make.team(), tier, spec=document)
    (row,) = snapshot_load().snapshot.mix
    assert (row.gpus, row.slots, row.count) == (1, 250, 1)
