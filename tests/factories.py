"""Small typed makers of rows for tests: straight into the tables, past the services.

Each has defaults for all that a test does not care about, and names are numbered: two calls never collide.
What is made is whole: a GPU has its condition, an allocation its attempt and replica, a node its counters.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.db import connection
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

from billing.models import CostRate, PriceRate, ServiceClass
from gpuyard.core import clock, ids
from gpuyard.core.models import User, UserKind
from gpuyard.core.money import SLOTS_PER_GPU, UNITS_PER_GPU
from gpuyard.fleet.models import (
    Condition,
    FabricDomain,
    Gpu,
    GpuCondition,
    Island,
    Node,
    NodeState,
    Pool,
    Tier,
    TierRule,
)
from gpuyard.notify.models import Attempt as Sending
from gpuyard.notify.models import Endpoint, Message, Notification
from gpuyard.notify.vault import sealed
from scheduling.models import Allocation, Attempt, Kind, Replica, Workload, WorkloadSpec
from scheduling.states import AllocationState, AttemptState, ReplicaState, WorkloadState
from tenants.models import ApprovalPolicy, Membership, PoolDedication, Quota, ServiceAccount, Team

_numbers = itertools.count(1)
LONG_AGO = timedelta(days=30)

AUTO = {"rules": [{"name": "everything", "when": {}, "then": {"auto": True}}]}
"""An approval document that lets everything through."""
MANAGER = {
    "rules": [
        {"name": "ask the manager", "when": {}, "then": {"steps": [{"role": "manager", "level": "team"}]}}
    ]
}
"""An approval document that asks the team's manager for everything."""


def _name(word: str) -> str:
    return f"{word}-{next(_numbers)}"


def _long_ago(at: datetime | None) -> datetime:
    return at or clock.now() - LONG_AGO


# --- People and teams ------------------------------------------------------------------------------------


def company(name: str | None = None, *, currency: str = "EUR", time_zone: str = "Europe/Berlin") -> Team:
    """A company; without an approval policy (see `approval_policy`)."""
    key = ids.uuid7()
    return Team.objects.create(
        id=key,
        company_id=key,
        path=[key],
        name=name or _name("company"),
        currency=currency,
        time_zone=time_zone,
    )


def team(parent: Team | None = None, name: str | None = None) -> Team:
    """A team below `parent` (or below a new company)."""
    above = parent or company()
    key = ids.uuid7()
    return Team.objects.create(
        id=key, company_id=above.company_id, parent=above, path=[*above.path, key], name=name or _name("team")
    )


def user(
    role: str | None = None, on: Team | None = None, *, username: str | None = None, **fields: Any
) -> User:
    """A person (password "password"); with `role` and `on`, one who has that role on that team and below."""
    person = User(username=username or _name(role or "user"), **fields)
    person.set_password("password")
    person.save()
    if role and on:
        membership(person, on, role)
    return person


def admin(**fields: Any) -> User:
    """A platform admin."""
    return user(username=fields.pop("username", None) or _name("admin"), is_platform_admin=True, **fields)


def service_account(on: Team, name: str | None = None, *, role: str = "member") -> ServiceAccount:
    """A program with one role on the team; see `tests.api.calls.token_for`."""
    name = name or _name("program")
    account = user(role, on, username=f"{name}@{on.public_id}", kind=UserKind.SERVICE)
    account.set_unusable_password()
    account.save()
    return ServiceAccount.objects.create(user=account, team=on, name=name)


def membership(person: User, on: Team, role: str = "member") -> Membership:
    return Membership.objects.create(user=person, team=on, role=role)


def approval_policy(
    on: Team, document: dict[str, Any] | None = None, *, version: int = 1, active: bool = True
) -> ApprovalPolicy:
    """A version of a company's approval rules; by default everything is let through."""
    return ApprovalPolicy.objects.create(
        company_id=on.company_id, version=version, document=document or AUTO, active=active
    )


def quota(
    on: Team, tier: Tier | None = None, *, guaranteed_gpus: int = 0, limit_gpus: int | None = None
) -> Quota:
    """Whole GPUs here, units in the row. The parent's guarantee comes first, or the trigger refuses."""
    return Quota.objects.create(
        team=on,
        tier=tier,
        guaranteed=guaranteed_gpus * UNITS_PER_GPU,
        limit=None if limit_gpus is None else limit_gpus * UNITS_PER_GPU,
    )


# --- Fleet -----------------------------------------------------------------------------------------------


def tier(
    name: str | None = None,
    *,
    memory_mib: int = 81559,
    cost_rank: int = 0,
    rule_for: str | None = None,
    architecture: str = "hopper",
) -> Tier:
    """A tier; with `rule_for`, also the rule by which GPUs of that model have it."""
    made = Tier.objects.create(
        name=name or _name("tier"),
        model=rule_for or "NVIDIA H100 80GB HBM3",
        memory_mib=memory_mib,
        architecture=architecture,
        cost_rank=cost_rank,
    )
    if rule_for:
        TierRule.objects.create(tier=made, model=rule_for, span=DateTimeTZRange(_long_ago(None), None))
    return made


def pool(name: str | None = None, *, only_for: Team | None = None) -> Pool:
    """A pool; with `only_for`, dedicated to that subtree."""
    made = Pool.objects.create(name=name or _name("pool"))
    if only_for:
        PoolDedication.objects.create(pool=made, team=only_for)
    return made


def domain(level: str, name: str | None = None, *, inside: FabricDomain | None = None) -> FabricDomain:
    """A domain of the fabric."""
    return FabricDomain.objects.create(level=level, name=name or _name(level), parent=inside)


def node(
    of: Tier | None = None,
    gpus: int = 0,
    *,
    name: str | None = None,
    in_pool: Pool | None = None,
    state: str = NodeState.READY,
    cpu_m: int = 64_000,
    memory_mib: int = 262_144,
    since: datetime | None = None,
    **fields: Any,
) -> Node:
    """A node that has just synced, with `gpus` ready GPUs of one tier on one island."""
    made = Node.objects.create(
        name=name or _name("node"),
        pool=in_pool or pool(),
        state=state,
        cpu_total_m=cpu_m,
        memory_total_mib=memory_mib,
        **{
            "advertise_address": "127.0.0.1",
            "port_low": 20_000,
            "port_high": 20_099,
            "simulated": True,
            "last_sync_at": clock.now(),
            **fields,
        },
    )
    for index in range(gpus):
        gpu(made, of or tier(), index=index, since=since)
    return made


def gpu(
    on: Node | None = None,
    of: Tier | None = None,
    *,
    index: int = 0,
    condition: str = Condition.READY,
    since: datetime | None = None,
) -> Gpu:
    """A whole GPU and its first condition, from `since` (30 days ago) on."""
    key = ids.uuid7()
    host, its_tier = on or node(), of or tier()
    island, _created = Island.objects.get_or_create(node=host, index=0)
    made = Gpu.objects.create(
        id=key,
        card=key,
        node=host,
        island=island,
        tier=its_tier,
        device_uuid=f"GPU-{uuid.uuid4()}",
        index=index,
        memory_mib=its_tier.memory_mib,
    )
    GpuCondition.objects.create(
        gpu=made, tier=its_tier, condition=condition, span=DateTimeTZRange(_long_ago(since), None)
    )
    return made


def instance(of: Gpu, its_tier: Tier, *, slices: int = 3) -> Gpu:
    """A MIG instance of a card that is listed whole too."""
    made = gpu(of.node, its_tier, index=of.index)
    made.card, made.is_instance, made.compute_slices = of.card, 1, slices
    made.save(update_fields=["card", "is_instance", "compute_slices"])
    return made


# --- Money -----------------------------------------------------------------------------------------------


def cost_rate(of: Tier, rate: str = "1.000000", *, since: datetime | None = None) -> CostRate:
    return CostRate.objects.create(tier=of, rate=Decimal(rate), span=DateTimeTZRange(_long_ago(since), None))


def price_rate(
    on: Team, of: Tier, rate: str = "2.000000", *, kind: str = "any", since: datetime | None = None
) -> PriceRate:
    return PriceRate.objects.create(
        team=on,
        tier=of,
        kind=kind,
        service_class=ServiceClass.ANY,
        rate=Decimal(rate),
        span=DateTimeTZRange(_long_ago(since), None),
    )


def rates(on: Team, *tiers: Tier, cost: str = "1.000000", price: str = "2.000000") -> None:
    """A cost and a price for each tier, for a company or team."""
    for one in tiers:
        cost_rate(one, cost)
        price_rate(on, one, price)


# --- Telling people ----------------------------------------------------------------------------------------


def endpoint(name: str, *, team: Team | None = None, owner: User | None = None) -> Endpoint:
    """A webhook of a team, or of a person; nothing is there."""
    return Endpoint.objects.create(
        kind="webhook",
        name=name,
        user=None if team else owner or user(),
        team_id=team.pk if team else None,
        company_id=team.company_id if team else None,
        host="127.0.0.1",
        url_sealed=sealed("https://127.0.0.1:1/"),
        secret_sealed=sealed("whsec_of-a-test"),
    )


def message(to: Endpoint, *, title: str = "News", state: str = "failed") -> Message:
    """What was sent there, with one line of the log."""
    now = clock.now()
    made = Message.objects.create(
        endpoint=to, title=title, item_count=1, state=state, due_at=now, ended_at=now, tries=7
    )
    Sending.objects.create(
        message=made, at=now, is_sent=False, status=503, latency_ms=12, error="answered 503"
    )
    return made


def notification(person: User, subject: str = "News", *, event: str = "workload.failed") -> Notification:
    """What somebody was told."""
    return Notification.objects.create(
        user=person, event=event, subject=subject, dedupe_key=_name("news"), routed_at=clock.now()
    )


# --- Workloads and what they hold -------------------------------------------------------------------------


def spec_document(
    *tiers: Tier | str,
    gpus: int = 1,
    replicas: int = 1,
    replicas_max: int | None = None,
    time_limit_s: int | None = 3600,
    cpu_m: int = 1000,
    memory_mib: int = 1024,
    request_fields: dict[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """A spec as the API takes it; `fields` replace whole members (`command=[…]`), `request_fields` of its request."""
    return {
        "command": ["python3", "-u", "train.py"],
        "image": None,
        "env": {},
        "working_dir": None,
        "ports": [],
        "checkpoint_dir": None,
        "time_limit_s": time_limit_s,
        "request": {
            "replicas_min": replicas,
            "replicas_max": replicas if replicas_max is None else replicas_max,
            "gpus_per_replica": gpus,
            "tiers": [one if isinstance(one, str) else one.name for one in tiers],
            "cpu_m": cpu_m,
            "memory_mib": memory_mib,
            **(request_fields or {}),
        },
        **fields,
    }


def workload(
    on: Team | None = None,
    *tiers: Tier | str,
    owner: User | None = None,
    name: str | None = None,
    kind: str = Kind.TRAINING,
    state: str = WorkloadState.WAITING,
    priority: int = 0,
    preemptible: bool = True,
    spec: dict[str, Any] | None = None,
    fields: dict[str, Any] | None = None,
    **request: Any,
) -> Workload:
    """A stored workload with its spec; `request` goes to `spec_document` (`gpus=4, replicas=2`)."""
    of = on or team()
    now = clock.now()
    made = Workload.objects.create(
        company_id=of.company_id,
        team=of,
        owner=owner or user("member", of),
        name=name or _name("workload"),
        kind=kind,
        state=state,
        priority=priority,
        preemptible=preemptible,
        **{"queued_at": None if state == WorkloadState.PENDING_APPROVAL else now, **(fields or {})},
    )
    document = spec or spec_document(*(tiers or ("h100-80g",)), **request)
    made.spec = WorkloadSpec.objects.create(workload=made, revision=1, document=document)
    made.save(update_fields=["spec"])
    return made


def fencing_token() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('scheduling_fencing_token')")
        (token,) = cursor.fetchone()
    return int(token)


def attempt(
    of: Workload, its_tier: Tier, *, state: str = AttemptState.STARTING, borrowed: bool = False
) -> Attempt:
    """The workload's next attempt."""
    return Attempt.objects.create(
        workload=of,
        number=of.attempts.count() + 1,
        state=state,
        pass_number=1,
        tier=its_tier,
        borrowed=borrowed,
        running_at=clock.now() if state == AttemptState.RUNNING else None,
    )


def replica(of: Attempt, on: Node, *, index: int = 0, state: str = ReplicaState.ASSIGNED) -> Replica:
    """A replica whose CPU and memory are counted on its node."""
    assert of.workload.spec is not None
    request = of.workload.spec.document["request"]
    on.refresh_from_db()
    on.cpu_used_m += request["cpu_m"]
    on.memory_used_mib += request["memory_mib"]
    on.save(update_fields=["cpu_used_m", "memory_used_mib"])
    return Replica.objects.create(
        attempt=of,
        index=index,
        spec=of.workload.spec,
        node=on,
        cpu_m=request["cpu_m"],
        memory_mib=request["memory_mib"],
        state=state,
        fencing_token=fencing_token(),
        running_at=clock.now() if state == ReplicaState.RUNNING else None,
    )


def allocation(
    of: Replica,
    on: Gpu,
    *,
    state: str = AllocationState.HELD,
    since: datetime | None = None,
    shares: tuple[int, int] | None = None,
    scope: uuid.UUID | None = None,
    **fields: Any,
) -> Allocation:
    """A whole GPU (or the slots `shares` of one) for a replica, held or claimed: it begins as nothing else."""
    parent = of.attempt.workload
    return Allocation.objects.create(
        company_id=parent.company_id,
        team_id=parent.team_id,
        workload=parent,
        attempt=of.attempt,
        replica=of,
        gpu=on,
        card=on.card,
        is_instance=on.is_instance,
        tier=on.tier,
        slots=Multirange([Range(*(shares or (0, SLOTS_PER_GPU)))]),
        scope=None if shares is None else scope or parent.team_id,
        units=UNITS_PER_GPU if shares is None else 7 * (shares[1] - shares[0]),
        span=DateTimeTZRange(since or clock.now(), None),
        state=state,
        expires_at=clock.now() + timedelta(minutes=5) if state == AllocationState.CLAIMED else None,
        **fields,
    )


def placed(
    of: Workload, *gpu_groups: Sequence[Gpu], running: bool = False, since: datetime | None = None
) -> Attempt:
    """Places a workload as the pass does: one replica for each group of GPUs (of one node each)."""
    word = "running" if running else "starting"
    made = attempt(of, gpu_groups[0][0].tier, state=word)
    for index, gpus in enumerate(gpu_groups):
        rank = replica(made, gpus[0].node, index=index, state="running" if running else "assigned")
        for one in gpus:
            allocation(rank, one, since=since, running_at=clock.now() if running else None)
    of.state = word
    of.started_at = clock.now() if running else None
    of.save(update_fields=["state", "started_at"])
    return made
