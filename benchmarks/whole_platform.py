"""The whole platform at work: `python benchmarks/whole_platform.py [--nodes 100] [--workloads 2000] [--quick]`.

PostgreSQL, Valkey, web server, workers and beat run as `manage.py up` runs them; agents of nodes that are not there
join and sync over HTTP; people submit through the REST API. All work must start and end, and afterwards nothing may
be held and the books and the audit log must hold: then the exit code is 0. One JSON line comes last.
"""

import argparse
import asyncio
import io
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _agents
from benchmarks._agents import FakeAgent
from benchmarks._measure import Result

TIER = "h100-80g"
TEAMS = 5
ENDED = ("succeeded", "failed", "cancelled", "rejected", "expired")
# (replicas, GPUs of each, how often)
SHAPES = ((1, 1, 10), (1, 2, 4), (1, 4, 2), (1, 8, 1), (2, 4, 1), (4, 8, 1), (3, 1, 1))
PEOPLE = 4  # who submit at the same time


@dataclass(frozen=True)
class Team:
    public_id: str
    token: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--workloads", type=int, default=2_000)
    parser.add_argument("--quick", action="store_true", help="10 nodes, 60 workloads")
    parser.add_argument("--within", type=float, default=1_500, metavar="S", help="give up after S seconds")
    given = parser.parse_args()
    if given.quick:
        given.nodes, given.workloads = 10, 60
    folder = Path(tempfile.mkdtemp(prefix="gpuyard-whole-"))
    folder.chmod(0o755)  # PostgreSQL runs as `nobody` when we are root
    os.environ |= {"GPUYARD_STATE": str(folder / "state"), "DJANGO_SETTINGS_MODULE": "gpuyard.settings.base"}
    for name in ("DATABASE_URL", "MIGRATE_DATABASE_URL", "REDIS_URL"):
        os.environ.pop(name, None)
    try:
        result = _run(given)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


def _run(given: argparse.Namespace) -> Result:
    from gpuyard.local.commands import platform_services

    with platform_services(["manage.py", "up", "--port", "0"]):
        import django

        django.setup()
        from gpuyard.local import supervisor

        running = supervisor.current()
        running.echo = False
        running.start()
        teams, join_token = _people(given.nodes)
        agents = [FakeAgent(f"node-{number:03}", run_s=(0.5, 1.5)) for number in range(given.nodes)]
        with _fleet(running.url, agents, join_token):
            _wait_for_nodes(given.nodes)
            begin = time.monotonic()
            submit_s = _submit(running.url, teams, given.workloads)
            states = _wait_for_end(given.workloads, begin + given.within)
            seconds = time.monotonic() - begin
            left = _wait_for_nothing_left()
        return _result(given, agents, states, left, seconds, submit_s)


# --- Who is there ------------------------------------------------------------------------------------------


def _people(node_count: int) -> tuple[list[Team], str]:
    """A company whose teams are guaranteed four fifths of the fleet together, and may borrow the rest."""
    from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

    from billing.services import cost_rate_set, price_rate_set
    from gpuyard.core import clock
    from gpuyard.core.money import UNITS_PER_GPU
    from gpuyard.fleet.models import Pool, Tier, TierRule
    from gpuyard.fleet.services import join_token_create
    from tenants.models import Role
    from tenants.quotas import quota_set
    from tenants.rules import approval_policy_activate
    from tenants.services import (
        company_create,
        membership_add,
        team_create,
        user_create,
    )
    from tenants.tokens import token_create

    admin = user_create(actor=None, username="admin", password="gpu-yard-2026-x", is_platform_admin=True)
    company = company_create(actor=admin, name="Company", currency="EUR", time_zone="Europe/Berlin")
    rules = {"rules": [{"name": "everything", "when": {}, "then": {"auto": True}}]}
    approval_policy_activate(actor=admin, company=company, document=rules)
    tier = Tier.objects.create(
        name=TIER,
        model=_agents.TIER_MODEL,
        memory_mib=_agents.TIER_MEMORY_MIB,
        architecture="hopper",
        cost_rank=1,
    )
    TierRule.objects.create(tier=tier, model=tier.model, span=DateTimeTZRange(clock.now(), None))
    cost_rate_set(actor=admin, tier=tier, rate=Decimal("2.85"), reason="benchmark")
    price_rate_set(actor=admin, team=company, tier=tier, rate=Decimal("4.60"), reason="benchmark")
    each = node_count * _agents.GPUS * 4 // (5 * TEAMS)
    quota_set(actor=admin, team=company, tier=tier, guaranteed=each * TEAMS * UNITS_PER_GPU, limit=None)
    teams = []
    for number in range(TEAMS):
        team = team_create(actor=admin, parent=company, name=f"team {number}")
        quota_set(actor=admin, team=team, tier=tier, guaranteed=each * UNITS_PER_GPU, limit=None)
        member = user_create(actor=admin, username=f"member-{number}", password="gpu-yard-2026-x")
        membership_add(actor=admin, team=team, user=member, role=Role.MEMBER)
        _token, secret = token_create(
            actor=member, name="benchmark", scopes=["read", "write"], lifetime=timedelta(days=1)
        )
        teams.append(Team(team.public_id, secret))
    pool = Pool.objects.create(name="main")
    _joins, join_token = join_token_create(actor=admin, pool=pool, uses=node_count)
    return teams, join_token


class _fleet:
    """The agents live in a thread for the length of the block."""

    def __init__(self, url: str, agents: list[FakeAgent], join_token: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        life = _agents.fleet_live(url, agents, join_token, self._stop)
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(life,))

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *raised: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        self._loop.close()


def _wait_for_nodes(count: int) -> None:
    from gpuyard.fleet.models import Node, NodeState

    deadline = time.monotonic() + 120
    while (ready := Node.objects.filter(state=NodeState.READY).count()) < count:
        assert time.monotonic() < deadline, f"{ready} of {count} nodes are ready"
        time.sleep(0.2)


# --- What is asked -----------------------------------------------------------------------------------------


def _submit(url: str, teams: list[Team], count: int) -> float:
    """Through the API, several people at once; returns the seconds that it took."""
    import httpx

    from gpuyard.demo.client import Api

    rng = random.Random(1)
    shapes = rng.choices(SHAPES, [often for _, _, often in SHAPES], k=count)
    bodies = [
        (number % len(teams), _body(teams[number % len(teams)], number, replicas, gpus, rng))
        for number, (replicas, gpus, _often) in enumerate(shapes)
    ]

    def work(person: int) -> None:
        apis = [Api(url, team.token) for team in teams]
        for team, body in bodies[person::PEOPLE]:
            for turn in range(5):  # a connection that was closed meanwhile; the key makes it the same request
                try:
                    apis[team].post("workloads", body, key=body["name"])
                    break
                except httpx.TransportError:
                    if turn == 4:
                        raise
        for api in apis:
            api.close()

    begin = time.monotonic()
    with ThreadPoolExecutor(PEOPLE) as pool:
        list(pool.map(work, range(PEOPLE)))
    return time.monotonic() - begin


def _body(team: Team, number: int, replicas: int, gpus: int, rng: random.Random) -> dict[str, Any]:
    return {
        "team": team.public_id,
        "name": f"work-{number}",
        "kind": "training",
        "priority": rng.choice((0, 0, 0, 10, 100)),
        "preemptible": rng.random() < 0.7,
        "spec": {
            "command": ["true"],
            "time_limit_s": 600,
            "request": {
                "replicas_min": replicas,
                "replicas_max": replicas,
                "gpus_per_replica": gpus,
                "tiers": [TIER],
                "cpu_m": 2_000 * gpus,
                "memory_mib": 8_192 * gpus,
            },
        },
    }


# --- What comes of it ----------------------------------------------------------------------------------------


def _wait_for_end(count: int, deadline: float) -> Counter[str]:
    from scheduling.models import Workload

    while True:
        states = Counter(Workload.objects.values_list("state", flat=True))
        if sum(states[state] for state in ENDED) == count or time.monotonic() > deadline:
            return states
        time.sleep(0.5)


def _left() -> dict[str, int]:
    from gpuyard.fleet.models import Node
    from scheduling.models import Allocation, PortLease, Replica, Verdict
    from scheduling.states import ALLOCATION_LIVE

    return {
        "held": Allocation.objects.filter(state__in=ALLOCATION_LIVE).count(),
        "leases": PortLease.objects.count(),
        "replicas": Replica.objects.exclude(state="exited").count(),
        "verdicts": Verdict.objects.count(),
        "counters": Node.objects.exclude(cpu_used_m=0, memory_used_mib=0).count(),
    }


def _wait_for_nothing_left() -> dict[str, int]:
    deadline = time.monotonic() + 20
    while any((left := _left()).values()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def _verified() -> dict[str, bool]:
    """Both are also made clean: what has ended is metered first."""
    from django.core.management import call_command

    found = {}
    for name, options in (("verify_books", {"meter": True}), ("verify_audit", {})):
        said = io.StringIO()
        try:
            with redirect_stdout(said):
                call_command(name, **options)
            found[name] = True
        except SystemExit as ended:
            found[name] = not ended.code
            sys.stderr.write(said.getvalue())
    return found


def _result(
    given: argparse.Namespace,
    agents: list[FakeAgent],
    states: Counter[str],
    left: dict[str, int],
    seconds: float,
    submit_s: float,
) -> Result:
    verified = _verified()
    latencies = sorted(one for agent in agents for one in agent.latencies_s)
    overfull = [agent.name for agent in agents if agent.most_at_once > _agents.GPUS]
    is_whole = states["succeeded"] == given.workloads and not any(left.values()) and not overfull
    return {
        "nodes": given.nodes,
        "workloads": given.workloads,
        "states": dict(states),
        "seconds": round(seconds, 1),
        "submit_s": round(submit_s, 1),
        "workloads_per_min": round(60 * given.workloads / seconds),
        "wait_s": _waits(),
        "sync_s": _percentiles(latencies),
        "syncs": len(latencies),
        "failed_syncs": sum(agent.failures for agent in agents),
        "passes": _passes(),
        "left": left,
        "overfull_nodes": overfull,
        **verified,
        "ok": is_whole and all(verified.values()),
    }


def _percentiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {
        f"p{part}": round(values[min(len(values) - 1, len(values) * part // 100)], 3) for part in (50, 95, 99)
    }


def _waits() -> dict[str, float]:
    """From being let into the queue to the first attempt."""
    from scheduling.models import Attempt

    rows = Attempt.objects.filter(number=1).values_list("created_at", "workload__queued_at")
    return _percentiles(sorted((at - queued_at).total_seconds() for at, queued_at in rows if queued_at))


def _passes() -> dict[str, float]:
    """How many left a record, their mean milliseconds, and the part of the time that they took."""
    from scheduling.models import PassRecord

    rows = list(
        PassRecord.objects.order_by("number").values_list("started_at", "load_ms", "plan_ms", "commit_ms")
    )
    if not rows:
        return {}
    load_ms = sum(row[1] for row in rows)
    plan_ms = sum(row[2] for row in rows)
    commit_ms = sum(row[3] for row in rows)
    span_ms = (rows[-1][0] - rows[0][0]).total_seconds() * 1000
    return {
        "records": len(rows),
        "load_ms": round(load_ms / len(rows), 1),
        "plan_ms": round(plan_ms / len(rows), 1),
        "commit_ms": round(commit_ms / len(rows), 1),
        "busy": round((load_ms + plan_ms + commit_ms) / span_ms, 2) if span_ms else 1.0,
    }


if __name__ == "__main__":
    sys.exit(main())
