"""A tiny event loop around `plan`: work arrives, starts when the plan says so, and ends after its run time.

What is told to stop leaves after `grace_s` and waits again with the time that it still needs; what claims its GPUs
starts with the first pass that finds them left.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from scheduling.engine.decisions import Claim, Grow, ReplicaPlacement, Start, Stop
from scheduling.engine.plan import Plan, Policy, plan
from scheduling.engine.snapshot import WHOLE, Gpu, Live, Node, Quota, Request, Running, Snapshot, Team, Tier
from tests.engine.build import H100, NOW_US, TEAMS

Feed = Callable[
    ["Yard"], Iterable[tuple[Request, int]]
]  # new requests, each with its true run time in seconds


@dataclass
class Job:
    """A workload that has a live attempt. `left_s`: what it still needs once it runs."""

    request: Request
    left_s: int
    borrowed: bool
    rows: list[Live]
    since_us: int
    state: str = "running"
    leaves_us: int | None = None  # when it, or what it gives back, is gone
    parts: tuple[int, ...] | None = None  # the replicas that leave; None: all

    @property
    def ends_us(self) -> int:
        return self.since_us + self.left_s * 1_000_000


@dataclass
class Yard:
    nodes: tuple[Node, ...]
    gpus: tuple[Gpu, ...]
    quotas: tuple[Quota, ...] = ()
    teams: tuple[Team, ...] = TEAMS
    tiers: tuple[Tier, ...] = (H100,)
    policy: Policy = field(default_factory=Policy)
    now_us: int = NOW_US
    grace_s: int = 30
    waiting: dict[str, tuple[Request, int]] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    moves: dict[str, Job] = field(default_factory=dict)  # what claims GPUs while it still leaves others
    started_us: dict[str, int] = field(default_factory=dict)
    reserved_us: dict[str, list[int]] = field(default_factory=dict)
    evicted_us: dict[str, list[int]] = field(default_factory=dict)

    @property
    def running(self) -> dict[str, Job]:
        return {name: job for name, job in self.jobs.items() if job.state != "claiming"}

    def add(self, request: Request, run_s: int) -> None:
        self.waiting[request.workload_id] = (replace(request, queued_us=self.now_us), run_s)

    def live(self) -> list[Live]:
        return [row for job in (*self.jobs.values(), *self.moves.values()) for row in job.rows]

    def snapshot(self) -> Snapshot:
        held: Counter[str] = Counter()
        cpu_m: Counter[str] = Counter()
        memory_mib: Counter[str] = Counter()
        for row in self.live():
            for gpu_id in row.gpu_ids:
                held[gpu_id] += row.slots
            cpu_m[row.node_id] += row.cpu_m
            memory_mib[row.node_id] += row.memory_mib
        return Snapshot(
            tiers=self.tiers,
            nodes=tuple(
                replace(
                    node,
                    cpu_free_m=max(0, node.cpu_total_m - cpu_m[node.id]),
                    memory_free_mib=max(0, node.memory_total_mib - memory_mib[node.id]),
                )
                for node in self.nodes
            ),
            gpus=tuple(
                replace(gpu, free=not held[gpu.id], slots_free=max(0, WHOLE - held[gpu.id]))
                for gpu in self.gpus
            ),
            teams=self.teams,
            quotas=self.quotas,
            live=tuple(self.live()),
            requests=tuple(request for request, _ in self.waiting.values()),
            running=tuple(
                Running(name, job.state, job.since_us, job.borrowed) for name, job in self.jobs.items()
            ),
            placed=tuple(job.request for job in self.jobs.values()),
        )

    def decide(self) -> Plan:
        self._leave()
        decided = plan(self.snapshot(), self.policy, self.now_us)
        self.apply(decided)
        for reservation in decided.reservations:
            self.reserved_us.setdefault(reservation.workload_id, []).append(reservation.start_us)
        self._keep_promises(decided)
        return decided

    def apply(self, decided: Plan) -> None:
        for stop in decided.stops:
            self._stop(stop)
        placed: list[Start | Claim] = [*decided.starts, *decided.claims]
        for start in placed:
            self._place(start)
        for grow in decided.grows:
            self._grow(grow)

    def _place(self, start: Start | Claim) -> None:
        is_claim, old = isinstance(start, Claim), self.jobs.get(start.workload_id)
        if old is not None:
            assert is_claim
            assert old.state == "stopping"
            request, run_s = old.request, old.left_s
        else:
            request, run_s = self.waiting.pop(start.workload_id)
        rows = [self._row(request, replica, start.borrowed) for replica in start.replicas]
        if is_claim:
            rows = [replace(row, state="claimed") for row in rows]
        state = "claiming" if is_claim else "running"
        jobs = self.jobs if old is None else self.moves
        jobs[request.workload_id] = Job(request, run_s, start.borrowed, rows, self.now_us, state)
        self.started_us[request.workload_id] = self.now_us

    def _row(self, request: Request, replica: ReplicaPlacement, borrowed: bool) -> Live:
        limit_s = request.time_limit_s
        return Live(
            request.workload_id,
            request.team_id,
            replica.tier_id,
            len(replica.gpu_ids) * replica.units_per_gpu,
            "held",
            replica.node_id,
            borrowed,
            self.now_us,
            None if limit_s is None else self.now_us + limit_s * 1_000_000,
            replica.cpu_m,
            replica.memory_mib,
            request.kind,
            request.preemptible,
            request.band,
            replica.index,
            replica.gpu_ids,
            replica.slots,
        )

    def _stop(self, stop: Stop) -> None:
        job = self.jobs[stop.workload_id]
        if job.state == "claiming":  # nothing runs yet: the claim is dropped at once
            del self.jobs[stop.workload_id]
            self.waiting[stop.workload_id] = (job.request, job.left_s)
            return
        job.leaves_us, job.parts = self.now_us + self.grace_s * 1_000_000, stop.replicas
        if stop.replicas is None:
            job.state = "stopping"
            self.evicted_us.setdefault(stop.workload_id, []).append(self.now_us)
        job.rows = [
            replace(row, state="stopping") if stop.replicas is None or row.replica in stop.replicas else row
            for row in job.rows
        ]

    def _grow(self, grow: Grow) -> None:
        job = self.jobs[grow.workload_id]
        assert not {row.replica for row in job.rows} & {replica.index for replica in grow.replicas}
        job.rows += [self._row(job.request, replica, True) for replica in grow.replicas]

    def _leave(self) -> None:
        """What is over is gone, what had to leave too; claims whose GPUs have been left start."""
        for name, job in list(self.jobs.items()):
            if job.state == "running" and job.ends_us <= self.now_us:
                del self.jobs[name]
            elif job.leaves_us is not None and job.leaves_us <= self.now_us:
                job.rows = [row for row in job.rows if row.state != "stopping"]
                job.leaves_us = None
                if job.state == "stopping":
                    del self.jobs[name]
                    spent_s = (self.now_us - job.since_us) // 1_000_000
                    left_s = max(1, job.left_s - spent_s)
                    if name in self.moves:
                        self.jobs[name] = replace(self.moves.pop(name), left_s=left_s)
                    else:
                        self.waiting[name] = (job.request, left_s)
        self._start_claims()

    def _start_claims(self) -> None:
        busy = {gpu_id for row in self.live() if row.state != "claimed" for gpu_id in row.gpu_ids}
        for job in self.jobs.values():
            if job.state == "claiming" and not any(busy.intersection(row.gpu_ids) for row in job.rows):
                job.state, job.since_us = "running", self.now_us
                job.rows = [replace(row, state="held", started_us=self.now_us) for row in job.rows]

    def _keep_promises(self, decided: Plan) -> None:
        """What the loader does between two passes."""
        for verdict in decided.verdicts:
            request, run_s = self.waiting[verdict.workload_id]
            promised = verdict.eta_us if verdict.eta_basis == "promise" else None
            self.waiting[verdict.workload_id] = (replace(request, promised_us=promised), run_s)

    def next_us(self) -> int:
        """When something ends or leaves next."""
        ends = [job.ends_us for job in self.jobs.values() if job.state == "running"]
        leaves = [job.leaves_us for job in self.jobs.values() if job.leaves_us is not None]
        return heapq.nsmallest(1, [*ends, *leaves])[0]

    def run(self, feed: Feed, until: Callable[["Yard"], bool], turns: int = 400) -> None:
        """Feed, plan, jump to the next end; at most so many turns."""
        for _ in range(turns):
            for request, run_s in feed(self):
                self.add(request, run_s)
            self.decide()
            if until(self):
                return
            self.now_us = self.next_us()
            self._leave()
        raise AssertionError("it never came to an end")
