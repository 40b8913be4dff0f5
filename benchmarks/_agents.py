"""Nodes that are not there: their agents speak the real protocol over HTTP, and their programs only take time."""

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

TIER_MODEL, TIER_MEMORY_MIB = "NVIDIA H100 80GB HBM3", 81_559
GPUS = 8
TIMEOUT_S = 30.0

Json = dict[str, Any]


@dataclass
class Program:
    """A replica that runs for a while and exits with 0."""

    token: int
    began_s: float
    ends_s: float
    stopped: bool = False
    ended_s: float | None = None

    def look(self, now_s: float) -> None:
        if self.ended_s is None and (self.stopped or now_s >= self.ends_s):
            self.ended_s = now_s if self.stopped else self.ends_s

    def report(self, replica_id: str, now_s: float) -> Json:
        said: Json = {
            "replica_id": replica_id,
            "fencing_token": self.token,
            "state": "running" if self.ended_s is None else "exited",
            "running_ago_s": round(now_s - self.began_s, 3),
        }
        if self.ended_s is not None:
            said |= {
                "ended_ago_s": round(now_s - self.ended_s, 3),
                "exit_reason": "stopped" if self.stopped else "exited",
                "exit_code": None if self.stopped else 0,
                "clean": True,
            }
        return said


@dataclass
class FakeAgent:
    """One node of eight GPUs. `run_s`: between how many seconds its programs run."""

    name: str
    run_s: tuple[float, float]
    secret: str = ""
    seq: int = 0
    sync_s: float = 2.0
    programs: dict[str, Program] = field(default_factory=dict)
    latencies_s: list[float] = field(default_factory=list)
    failures: int = 0
    most_at_once: int = 0  # GPUs given to replicas at one time: never more than it has

    async def live(self, client: httpx.AsyncClient, join_token: str, stop: asyncio.Event) -> None:
        """Joins, then syncs at the server's pace until `stop`; an agent that is refused tries again."""
        joined = await client.post(
            "join", json={"join_token": join_token, "name": self.name, "inventory": self._inventory()}
        )
        joined.raise_for_status()
        self.secret = joined.json()["node_secret"]
        self.dice = random.Random(self.name)
        due_s = time.monotonic() + self.dice.random() * self.sync_s  # not all of them at once
        while not stop.is_set():
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            due_s = max(due_s + self.sync_s, time.monotonic())
            await self._turn(client)

    async def _turn(self, client: httpx.AsyncClient) -> None:
        self.seq += 1
        began_s = time.monotonic()
        for program in self.programs.values():
            program.look(began_s)
        body = {
            "boot": 1,
            "seq": self.seq,
            "agent_version": "benchmark",
            "inventory": self._inventory() if self.seq == 1 else None,
            "telemetry": self._telemetry(),
            "replicas": [one.report(key, began_s) for key, one in self.programs.items()],
        }
        try:
            answer = await client.post("sync", json=body, headers={"Authorization": f"Bearer {self.secret}"})
            answer.raise_for_status()
        except httpx.HTTPError:
            self.failures += 1
            return
        self.latencies_s.append(time.monotonic() - began_s)
        self._apply(answer.json())

    def _apply(self, answer: Json) -> None:
        now_s = time.monotonic()
        self.sync_s = answer["sync_s"]
        gpus = 0
        for order in answer["replicas"]:
            known = self.programs.get(order["replica_id"])
            if known is None:
                ends_s = now_s + self.dice.uniform(*self.run_s)
                known = self.programs[order["replica_id"]] = Program(order["fencing_token"], now_s, ends_s)
            known.stopped = known.stopped or (order["desired"] == "stop" and known.ended_s is None)
            gpus += len(order["gpu_uuids"]) if known.ended_s is None else 0
        self.most_at_once = max(self.most_at_once, gpus)
        for replica_id in answer["forget"]:
            self.programs.pop(replica_id, None)

    def _telemetry(self) -> list[Json]:
        return [
            {
                "gpu_uuid": f"GPU-{self.name}-{index}",
                "ended_ago_s": 0.0,
                "duration_s": self.sync_s,
                "utilisation_pct": 90.0 if self.programs else 0.0,
                "memory_used_mib": 1_000,
                "power_w": None,
                "temperature_c": None,
            }
            for index in range(GPUS)
        ]

    def _inventory(self) -> Json:
        return {
            "hostname": self.name,
            "advertise_address": "127.0.0.1",
            "port_range": [20_000, 20_099],
            "cpu_m": 12_000 * GPUS,
            "memory_mib": 65_536 * GPUS,
            "simulated": True,
            "gpus": [
                {
                    "uuid": f"GPU-{self.name}-{index}",
                    "index": index,
                    "model": TIER_MODEL,
                    "memory_mib": TIER_MEMORY_MIB,
                    "architecture": "hopper",
                    "tier_hint": "h100-80g",
                    "island": 0,
                    "card_uuid": f"GPU-{self.name}-{index}",
                    "is_instance": 0,
                    "compute_slices": 7,
                    "card_slices": 7,
                }
                for index in range(GPUS)
            ],
        }


async def fleet_live(url: str, agents: list[FakeAgent], join_token: str, stop: asyncio.Event) -> None:
    limits = httpx.Limits(max_connections=len(agents))
    async with (
        httpx.AsyncClient(base_url=f"{url}/agent/v1/", timeout=TIMEOUT_S, limits=limits) as client,
        asyncio.TaskGroup() as lives,
    ):
        for agent in agents:
            lives.create_task(agent.live(client, join_token, stop))
