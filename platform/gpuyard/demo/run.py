"""The demo's main job: join the nodes, submit the scenario as its users, watch it to its end, check the books."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuyard.demo.client import Api
from gpuyard.demo.scenario import SCENARIO, Asked
from gpuyard.demo.seed import TIERS, Seeded, join_token
from gpuyard.fleet.models import Node, NodeState
from gpuyard.local.supervisor import Supervisor

ENDED = frozenset({"succeeded", "failed", "cancelled", "rejected", "expired"})
_NODES_READY_WITHIN_S = 60.0
_ALL_ENDED_WITHIN_S = 200.0

Say = Callable[[str], None]


class DemoFailed(Exception):
    """Something of the demo did not go as it must."""


@dataclass
class Submitted:
    """One request and the newest that is known of it."""

    asked: Asked
    api: Api
    id: str
    detail: dict[str, Any]
    stopped: bool = False

    @property
    def state(self) -> str:
        state = str(self.detail["state"])
        return "unschedulable" if state == "waiting" and self.never_fits else state

    @property
    def never_fits(self) -> bool:
        verdict = self.detail.get("verdict") or {}
        return any(blocker["code"] == "never_fits_node" for blocker in verdict.get("blockers", []))

    @property
    def is_done(self) -> bool:
        return self.state in ENDED or self.state == "unschedulable"


# --- Nodes -------------------------------------------------------------------------------------------------


def nodes_start(supervisor: Supervisor, made: Seeded, say: Say) -> None:
    """Starts a real agent for each node, and waits until the platform has all of them."""
    token = join_token(made)
    since = _now()
    for tier in TIERS:
        supervisor.add_agent(f"node-{tier.name}", simulate=f"{tier.gpus}x{tier.name}", join_token=token)
    wanted = {f"node-{tier.name}" for tier in TIERS}
    deadline = time.monotonic() + _NODES_READY_WITHIN_S
    while set(_synced(since)) != wanted:
        if time.monotonic() > deadline:
            raise DemoFailed(
                f"Only {sorted(_synced(since))} of {sorted(wanted)} joined. See {supervisor.folder}/logs."
            )
        time.sleep(0.2)
    say(f"{len(wanted)} nodes with {sum(tier.gpus for tier in TIERS)} simulated GPUs joined.")


def _now() -> datetime:
    from gpuyard.core import clock

    return clock.now()


def _synced(since: datetime) -> list[str]:
    rows = Node.objects.filter(state=NodeState.READY, last_sync_at__gte=since)
    return list(rows.values_list("name", flat=True))


# --- Workloads -----------------------------------------------------------------------------------------------


def submit(url: str, made: Seeded, say: Say) -> list[Submitted]:
    """Submits the scenario, each request by its own user."""
    run = secrets.token_hex(4)
    submitted = []
    for asked in SCENARIO:
        api = Api(url, made.tokens[asked.by])
        body = asked.body(made.teams[asked.team].public_id)
        detail = api.post("workloads", body, key=f"demo-{run}-{asked.name}")
        submitted.append(Submitted(asked, api, detail["id"], detail))
        say(f"{asked.by} asks for {asked.name} ({detail['id']}): {detail['state']}")
    return submitted


def decide(url: str, made: Seeded, submitted: list[Submitted], say: Say) -> None:
    """The managers decide on what waits for them."""
    for one in submitted:
        if one.asked.decision is None:
            continue
        manager, approve, reason = one.asked.decision
        api = Api(url, made.tokens[manager])
        case = api.get(f"workloads/{one.id}")["case"]
        api.post(f"cases/{case['id']}/decision", {"approve": approve, "reason": reason})
        say(f"{manager} {'approves' if approve else 'rejects'} {one.asked.name}: {reason}")
        api.close()


def watch(submitted: list[Submitted], progress: Callable[[list[Submitted]], None]) -> None:
    """Follows all to their ends; owners stop what does not end by itself."""
    deadline = time.monotonic() + _ALL_ENDED_WITHIN_S
    while True:
        for one in submitted:
            if one.state not in ENDED:
                one.detail = one.api.get(f"workloads/{one.id}")
                _stop_if_time(one)
        progress(submitted)
        if all(one.is_done for one in submitted):
            return
        if time.monotonic() > deadline:
            left = {one.asked.name: one.state for one in submitted if not one.is_done}
            raise DemoFailed(f"Not ended in {_ALL_ENDED_WITHIN_S:.0f} s: {left}")
        time.sleep(0.7)


def _stop_if_time(one: Submitted) -> None:
    if one.stopped or one.asked.stop_when is None or one.state != "running":
        return
    log = one.api.get(f"workloads/{one.id}/log", replica=0, stream="stdout")["text"]
    if one.asked.stop_when(one.detail, log):
        one.api.post(f"workloads/{one.id}/stop", {"reason": "the demo has seen enough of it"})
        one.stopped = True


def surprises(submitted: list[Submitted]) -> list[str]:
    """What ended otherwise than the scenario says."""
    return [
        f"{one.asked.name} is {one.state}, not {one.asked.ends} ({one.detail.get('state_reason')})"
        for one in submitted
        if one.state != one.asked.ends
    ]


def outcome(submitted: list[Submitted], books: dict[str, Any]) -> dict[str, Any]:
    """The demo's last line."""
    states = Counter(one.state for one in submitted)
    return {
        "workloads": len(submitted),
        "succeeded": states["succeeded"],
        "failed": states["failed"],
        "rejected": states["rejected"],
        "unschedulable": states["unschedulable"],
        "gpu_hours": books["gpu_hours"],
        "charged": books["charged"],
        "allocated_cost": books["allocated_cost"],
        "unallocated_cost": books["unallocated_cost"],
        "fleet_cost": books["fleet_cost"],
        "conserved": books["conserved"],
        "double_allocations": books["double_allocations"],
    }
