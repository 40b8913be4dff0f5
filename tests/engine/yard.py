"""A tiny event loop around `plan`: work arrives, starts when the plan says so, and ends after its run time."""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from scheduling.engine.plan import Plan, Policy, plan
from scheduling.engine.snapshot import UNITS_PER_GPU, Gpu, Live, Node, Quota, Request, Snapshot, Team, Tier
from tests.engine.build import H100, NOW_US, TEAMS

Feed = Callable[
    ["Yard"], Iterable[tuple[Request, int]]
]  # new requests, each with its true run time in seconds


@dataclass
class Yard:
    nodes: tuple[Node, ...]
    gpus: tuple[Gpu, ...]
    quotas: tuple[Quota, ...] = ()
    teams: tuple[Team, ...] = TEAMS
    tiers: tuple[Tier, ...] = (H100,)
    policy: Policy = field(default_factory=Policy)
    now_us: int = NOW_US
    waiting: dict[str, tuple[Request, int]] = field(default_factory=dict)
    running: dict[str, tuple[int, tuple[Live, ...], frozenset[str]]] = field(default_factory=dict)  # end, …
    started_us: dict[str, int] = field(default_factory=dict)
    reserved_us: dict[str, list[int]] = field(default_factory=dict)

    def add(self, request: Request, run_s: int) -> None:
        self.waiting[request.workload_id] = (replace(request, queued_us=self.now_us), run_s)

    def snapshot(self) -> Snapshot:
        taken = {gpu for _, _, gpus in self.running.values() for gpu in gpus}
        return Snapshot(
            tiers=self.tiers,
            nodes=self.nodes,
            gpus=tuple(replace(gpu, free=gpu.id not in taken) for gpu in self.gpus),
            teams=self.teams,
            quotas=self.quotas,
            live=tuple(live for _, held, _ in self.running.values() for live in held),
            requests=tuple(request for request, _ in self.waiting.values()),
        )

    def decide(self) -> Plan:
        decided = plan(self.snapshot(), self.policy, self.now_us)
        for start in decided.starts:
            request, run_s = self.waiting.pop(start.workload_id)
            limit_s = request.time_limit_s
            ends_us = None if limit_s is None else self.now_us + limit_s * 1_000_000
            held = tuple(
                Live(
                    request.workload_id,
                    request.team_id,
                    replica.tier_id,
                    len(replica.gpu_ids) * UNITS_PER_GPU,
                    "held",
                    replica.node_id,
                    start.borrowed,
                    self.now_us,
                    ends_us,
                    kind=request.kind,
                )
                for replica in start.replicas
            )
            gpus = frozenset(gpu_id for replica in start.replicas for gpu_id in replica.gpu_ids)
            self.running[request.workload_id] = (self.now_us + run_s * 1_000_000, held, gpus)
            self.started_us[request.workload_id] = self.now_us
        for reservation in decided.reservations:
            self.reserved_us.setdefault(reservation.workload_id, []).append(reservation.start_us)
        self._keep_promises(decided)
        return decided

    def _keep_promises(self, decided: Plan) -> None:
        """What the loader does between two passes."""
        for verdict in decided.verdicts:
            request, run_s = self.waiting[verdict.workload_id]
            promised = verdict.eta_us if verdict.eta_basis == "promise" else None
            self.waiting[verdict.workload_id] = (replace(request, promised_us=promised), run_s)

    def run(self, feed: Feed, until: Callable[["Yard"], bool], turns: int = 400) -> None:
        """Feed, plan, jump to the next end; at most so many turns."""
        for _ in range(turns):
            for request, run_s in feed(self):
                self.add(request, run_s)
            self.decide()
            if until(self):
                return
            ends = [end for end, _, _ in self.running.values()]
            self.now_us = heapq.nsmallest(1, ends)[0]
            self.running = {name: row for name, row in self.running.items() if row[0] > self.now_us}
        raise AssertionError("it never came to an end")
