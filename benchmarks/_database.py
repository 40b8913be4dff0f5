"""A PostgreSQL for one benchmark, and a yard in it: real rows past the services, in bulk."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scheduling.models import Workload

TIER = "h100-80g"
GPUS = 8  # in a node
_BATCH = 2_000


@contextmanager
def database() -> Iterator[None]:
    """An empty, migrated database (or the one that DATABASE_URL names, which must be empty), and Django."""
    folder = Path(tempfile.mkdtemp(prefix="gpuyard-benchmark-"))
    folder.chmod(0o755)  # PostgreSQL runs as `nobody` when we are root
    os.environ |= {"GPUYARD_STATE": str(folder), "DJANGO_SETTINGS_MODULE": "gpuyard.settings.base"}
    from gpuyard.local.services import LocalServices

    services = LocalServices(folder, purpose="benchmark")
    try:
        os.environ.update(services.start())
        import django
        from django.core.management import call_command
        from django.db import connections

        django.setup()
        call_command("migrate", database="owner", verbosity=0)
        yield
        connections.close_all()
    finally:
        services.stop()
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Shape:
    """What one workload asks: replicas of so many GPUs each."""

    gpus: int
    replicas: int = 1


def yard(node_count: int, team_count: int) -> list[Any]:
    """One company, one tier, nodes of eight ready GPUs; returns its teams, each guaranteed its part."""
    from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

    from gpuyard.core import clock
    from gpuyard.fleet.models import Condition, Gpu, GpuCondition, Island, Node, NodeState, Pool, Tier

    now = clock.now()
    tier = Tier.objects.create(
        name=TIER, model="NVIDIA H100", memory_mib=81_559, architecture="hopper", cost_rank=1
    )
    pool = Pool.objects.create(name="main")
    nodes = [
        Node(
            name=f"node-{number:05}",
            pool=pool,
            state=NodeState.READY,
            cpu_total_m=128_000,
            memory_total_mib=1_048_576,
            advertise_address="127.0.0.1",
            port_low=20_000,
            port_high=20_099,
            simulated=True,
            last_sync_at=now,
        )
        for number in range(node_count)
    ]
    Node.objects.bulk_create(nodes, batch_size=_BATCH)
    islands = [Island(node=node, index=0) for node in nodes]
    Island.objects.bulk_create(islands, batch_size=_BATCH)
    gpus = [
        Gpu(
            node=island.node,
            island=island,
            tier=tier,
            device_uuid=f"GPU-{island.node.name}-{index}",
            index=index,
            memory_mib=tier.memory_mib,
            card=island.node.id,
        )
        for island in islands
        for index in range(GPUS)
    ]
    for gpu in gpus:
        gpu.card = gpu.id
    Gpu.objects.bulk_create(gpus, batch_size=_BATCH)
    span = DateTimeTZRange(now - timedelta(days=1), None)
    GpuCondition.objects.bulk_create(
        [GpuCondition(gpu=gpu, tier=tier, condition=Condition.READY, span=span) for gpu in gpus],
        batch_size=_BATCH,
    )
    return _teams(team_count, tier, len(gpus) // team_count)


def _teams(count: int, tier: Any, guaranteed: int) -> list[Any]:
    from gpuyard.core import ids
    from gpuyard.core.money import UNITS_PER_GPU
    from tenants.models import Quota, Team

    key = ids.uuid7()
    company = Team.objects.create(
        id=key, company_id=key, path=[key], name="Company", currency="EUR", time_zone="Europe/Berlin"
    )
    Quota.objects.create(team=company, tier=tier, guaranteed=count * guaranteed * UNITS_PER_GPU)
    teams = []
    for number in range(count):
        own = ids.uuid7()
        team = Team.objects.create(
            id=own, company_id=key, parent=company, path=[key, own], name=f"team {number}"
        )
        Quota.objects.create(team=team, tier=tier, guaranteed=guaranteed * UNITS_PER_GPU)
        teams.append(team)
    return teams


def queue(teams: list[Any], shapes: list[Shape]) -> list["Workload"]:
    """One workload for each shape, the teams in turn; all wait for approval until `release`."""
    from gpuyard.core.models import User
    from scheduling.models import Kind, Workload, WorkloadSpec
    from scheduling.states import WorkloadState

    owner = User.objects.create(username="somebody")
    workloads = [
        Workload(
            company_id=teams[number % len(teams)].company_id,
            team=teams[number % len(teams)],
            owner=owner,
            name=f"work-{number}",
            kind=Kind.TRAINING,
            preemptible=True,
            state=WorkloadState.PENDING_APPROVAL,
        )
        for number in range(len(shapes))
    ]
    Workload.objects.bulk_create(workloads, batch_size=_BATCH)
    specs = [
        WorkloadSpec(workload=workload, revision=1, document=document(shape))
        for workload, shape in zip(workloads, shapes, strict=True)
    ]
    WorkloadSpec.objects.bulk_create(specs, batch_size=_BATCH)
    for workload, spec in zip(workloads, specs, strict=True):
        workload.spec = spec
    Workload.objects.bulk_update(workloads, ["spec"], batch_size=_BATCH)
    _analyse()
    return workloads


def document(shape: Shape) -> dict[str, Any]:
    """Read by the code that checks what people send, so that it is a spec of today."""
    from scheduling.specs import spec_parse

    asked = {
        "command": ["python3", "train.py"],
        "time_limit_s": 3_600,
        "request": {
            "replicas_min": shape.replicas,
            "replicas_max": shape.replicas,
            "gpus_per_replica": shape.gpus,
            "tiers": [TIER],
            "cpu_m": 8_000 * shape.gpus,
            "memory_mib": 65_536 * shape.gpus,
        },
    }
    return spec_parse(asked).as_json()


def release(at_most: int | None = None) -> int:
    """All that wait for approval (or so many of them) wait for GPUs from now on; returns how many."""
    from gpuyard.core import clock
    from scheduling.models import Workload
    from scheduling.states import WorkloadState

    pending = Workload.objects.filter(state=WorkloadState.PENDING_APPROVAL)
    if at_most is not None:
        pending = Workload.objects.filter(pk__in=pending.order_by("created_at", "id")[:at_most])
    return pending.update(state=WorkloadState.WAITING, queued_at=clock.now())


def _analyse() -> None:
    """What autovacuum does within a minute of such a load."""
    from django.db import connections

    with connections["owner"].cursor() as cursor:
        cursor.execute("ANALYZE")
