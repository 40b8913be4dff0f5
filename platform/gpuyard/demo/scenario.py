"""What the demo's users ask for: each a real program of this repository, as a body of `POST /api/v1/workloads`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_name("programs")
HOUR_S = 3600


def _program(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-u", str(PROGRAMS / f"{name}.py"), *arguments]


@dataclass(frozen=True)
class Asked:
    """One request: who asks, for which team, and how it is expected to end."""

    by: str
    team: str
    name: str
    kind: str
    ends: str  # the state, or "unschedulable"
    command: list[str]
    request: dict[str, Any]
    time_limit_s: int = HOUR_S
    ports: tuple[dict[str, str], ...] = ()
    justification: str = ""
    # by whom it is decided, and how, if a manager must
    decision: tuple[str, bool, str] | None = None
    # It may borrow, for it may be interrupted. False: it stays inside the guarantee of its team.
    preemptible: bool = True
    # when its owner stops it: a claim about its state and log
    stop_when: Callable[[dict[str, Any], str], bool] | None = None

    def body(self, team_id: str) -> dict[str, Any]:
        """The request's body, for the team of this public id."""
        return {
            "team": team_id,
            "name": self.name,
            "kind": self.kind,
            "justification": self.justification,
            "preemptible": self.preemptible,
            "spec": {
                "command": self.command,
                "ports": list(self.ports),
                "time_limit_s": self.time_limit_s,
                "request": self.request,
            },
        }


def _gpus(count: int, *tiers: str, replicas: int = 1, mix_tiers: bool = False) -> dict[str, Any]:
    return {
        "replicas_min": replicas,
        "replicas_max": replicas,
        "gpus_per_replica": count,
        "tiers": list(tiers),
        "cpu_m": 1000 * count,
        "memory_mib": 4096 * count,
        "mix_tiers": mix_tiers,
    }


SCENARIO = (
    Asked(
        by="vision-member",
        team="vision",
        name="train-spirals",
        kind="training",
        ends="succeeded",
        command=_program("train", "--seconds", "15"),
        request=_gpus(2, "h100-80g"),
    ),
    # five on each of two nodes: no single node has ten
    Asked(
        by="nlp-member",
        team="nlp",
        name="gang-two-nodes",
        kind="training",
        ends="succeeded",
        command=_program("gang"),
        request=_gpus(5, "h100-80g", "a100-40g", replicas=2, mix_tiers=True),
    ),
    Asked(
        by="recsys-member",
        team="recsys",
        name="rank-api",
        kind="inference",
        ends="succeeded",
        command=_program("serve"),
        request=_gpus(2, "l4-24g"),
        ports=({"name": "http", "health_path": "/healthz"},),
        preemptible=False,
        stop_when=lambda detail, log: bool(detail.get("healthy")) and "GET /healthz" in log,
    ),
    Asked(
        by="nlp-member",
        team="nlp",
        name="notebook",
        kind="development",
        ends="succeeded",
        command=_program("session", "--busy-seconds", "8"),
        request=_gpus(1, "a100-40g"),
        preemptible=False,
        stop_when=lambda detail, log: "waiting for input" in log and detail.get("run_s", 0) > 30,
    ),
    Asked(
        by="vision-member",
        team="vision",
        name="broken-labels",
        kind="training",
        ends="failed",
        command=_program("fail"),
        request=_gpus(1, "l4-24g"),
    ),
    # two are in use, four exist: it waits its turn and says for whom
    Asked(
        by="recsys-member",
        team="recsys",
        name="embed-catalogue",
        kind="training",
        ends="succeeded",
        command=_program("train", "--seconds", "6", "--seed", "11"),
        request=_gpus(4, "l4-24g"),
    ),
    Asked(
        by="nlp-member",
        team="nlp",
        name="sixteen-on-one-node",
        kind="training",
        ends="unschedulable",
        command=_program("train"),
        request=_gpus(16, "h100-80g"),
    ),
    Asked(
        by="vision-member",
        team="vision",
        name="pretrain-8h",
        kind="training",
        ends="succeeded",
        command=_program("train", "--seconds", "8", "--seed", "3"),
        request=_gpus(1, "h100-80g"),
        time_limit_s=8 * HOUR_S,
        justification="The detection backbone for the spring release.",
        decision=("vision-manager", True, "Agreed in planning."),
    ),
    Asked(
        by="recsys-member",
        team="recsys",
        name="sweep-48h",
        kind="training",
        ends="rejected",
        command=_program("train", "--seconds", "8"),
        request=_gpus(2, "a100-40g"),
        time_limit_s=48 * HOUR_S,
        justification="A wide sweep, just to see.",
        decision=("recsys-manager", False, "Too long for a look. Try two hours on one l4-24g first."),
    ),
)
