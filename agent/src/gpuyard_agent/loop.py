"""The agent's loop: look, tell the server, do what it answers, wait."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuyard_agent import __version__, clock
from gpuyard_agent.checkpoints import CheckpointWatch
from gpuyard_agent.client import Backoff, RequestRefused, ServerClient, ServerError, StaleSync, Unauthorized
from gpuyard_agent.devices.base import DeviceBackend, Use
from gpuyard_agent.devices.usage import UsageMeter
from gpuyard_agent.executor import Executor
from gpuyard_agent.health import HealthChecker, health_urls
from gpuyard_agent.protocol import (
    Inventory,
    MalformedAnswer,
    ReplicaReport,
    SyncAnswer,
    SyncRequest,
    TelemetryBucket,
)
from gpuyard_agent.reconcile import Known, reconcile
from gpuyard_agent.records import shortened
from gpuyard_agent.runner.base import Observation
from gpuyard_agent.state import StateFolder
from gpuyard_agent.waiter import Waiter

logger = logging.getLogger(__name__)

SYNC_LIMITS_S: Final = (0.05, 60.0)
UNAUTHORIZED_WAIT_S: Final = 60.0
INVENTORY_AGAIN_S: Final = 60.0  # an unchanged one too: the server may have new rules for what it left out
KEPT_BUCKETS: Final = 4000  # of telemetry without an answer; one sync must stay far below 2.5 MB


@dataclass(frozen=True)
class Settings:
    hostname: str
    advertise_address: str
    port_range: tuple[int, int]
    cpu_m: int
    memory_mib: int


@dataclass(frozen=True)
class Turn:
    was_answered: bool
    next_in_s: float


@dataclass
class _Sample:
    ended_s: float
    buckets: list[TelemetryBucket] = field(default_factory=list)


class Agent:
    def __init__(
        self,
        *,
        state: StateFolder,
        client: ServerClient,
        devices: DeviceBackend,
        executor: Executor,
        settings: Settings,
    ) -> None:
        self._state = state
        self._client = client
        self._devices = devices
        self._executor = executor
        self._settings = settings
        self._logs = executor.logs
        self._health = HealthChecker()
        self._checkpoints = CheckpointWatch()
        self._meter = UsageMeter()
        self._backoff = Backoff()
        self._boot_id = clock.boot_id()
        self._boot = 0
        self._seq = 0
        self._generation = -1
        self._sync_s = 2.0
        self._node_secret = ""
        self._sampled_s: float | None = None
        self._samples: list[_Sample] = []
        self._answered_inventory: Inventory | None = None
        self._answered_inventory_s = 0.0  # when that was sent
        self._leave_out_logs = False

    def start(self, *, node_secret: str, sync_s: float) -> None:
        self._node_secret = node_secret
        self._sync_s = _within(sync_s, SYNC_LIMITS_S)
        self._boot = self._state.next_boot()
        logger.info("boot %d, %d replicas found here", self._boot, len(self._executor.folders))

    def run(self, waiter: Waiter) -> None:
        """Turn after turn until told to stop; replicas run on without the agent."""
        due_s = clock.now_s()
        while not waiter.should_stop:
            due_s = max(due_s, clock.now_s()) + self.turn_and_log().next_in_s
            waiter.wait(due_s - clock.now_s())

    def turn_and_log(self) -> Turn:
        """One turn that cannot end the agent."""
        try:
            self.turn()
        except Unauthorized as error:
            logger.error("the server does not accept this node (%s); its work goes on here", error)
            return Turn(False, UNAUTHORIZED_WAIT_S)
        except StaleSync as error:
            logger.warning("the server has seen a newer sync of this node: %s", error)
            return Turn(False, self._sync_s)
        except RequestRefused as error:
            # Better without them than never again: a node that cannot sync cannot be told to stop anything.
            self._samples.clear()
            self._leave_out_logs = True
            logger.error(
                "sync %d.%d was refused, the next goes without logs: %s", self._boot, self._seq, error
            )
            return Turn(False, self._backoff.next_s())
        except (ServerError, MalformedAnswer) as error:
            wait_s = self._backoff.next_s()
            logger.warning("sync %d.%d: %s; again in %.1f s", self._boot, self._seq, error, wait_s)
            return Turn(False, wait_s)
        except Exception:
            logger.exception("sync %d.%d: this turn failed", self._boot, self._seq)
            return Turn(False, self._backoff.next_s())
        self._backoff.reset()
        return Turn(True, self._sync_s)

    def turn(self) -> None:
        seen = self._executor.observe()
        self._check_health(seen)
        self._look_for_checkpoints(seen)
        self._take_sample(seen)
        inventory = self.inventory()
        sent_s = clock.now_s()
        request = self._request(seen, inventory, sent_s)
        answer = self._client.sync(self._node_secret, request)
        if not self._is_current(answer):
            return
        if request["inventory"] is not None:
            self._answered_inventory, self._answered_inventory_s = inventory, sent_s
        self._samples.clear()
        self._leave_out_logs = False
        self._apply(answer, seen, sent_s)

    # -- what is sent --

    def inventory(self) -> Inventory:
        return {
            "hostname": self._settings.hostname,
            "advertise_address": self._settings.advertise_address,
            "port_range": list(self._settings.port_range),
            "cpu_m": self._settings.cpu_m,
            "memory_mib": self._settings.memory_mib,
            "simulated": self._devices.simulated,
            "gpus": list(self._devices.gpus()),
        }

    def _request(self, seen: Mapping[str, Observation], inventory: Inventory, now_s: float) -> SyncRequest:
        self._seq += 1
        folders = self._executor.folders
        ended = [(folders[replica_id], observation.clean) for replica_id, observation in seen.items()]
        return {
            "boot": self._boot,
            "boot_id": self._boot_id,
            "seq": self._seq,
            "agent_version": __version__,
            "inventory": inventory if self._is_inventory_due(inventory, now_s) else None,
            "telemetry": _aged(self._samples, now_s),
            "replicas": [
                self._report(replica_id, observation, now_s) for replica_id, observation in seen.items()
            ],
            "logs": [] if self._leave_out_logs else self._logs.collect(ended),
        }

    def _is_inventory_due(self, inventory: Inventory, now_s: float) -> bool:
        return (
            inventory != self._answered_inventory or now_s - self._answered_inventory_s >= INVENTORY_AGAIN_S
        )

    def _report(self, replica_id: str, observation: Observation, now_s: float) -> ReplicaReport:
        return {
            "replica_id": replica_id,
            "fencing_token": self._executor.folders[replica_id].order.fencing_token,
            "state": observation.state,
            "exit_code": observation.exit_code,
            "exit_reason": observation.exit_reason,
            "signal": observation.signal,
            "running_ago_s": _ago(observation.started_s, now_s),
            "ended_ago_s": _ago(observation.ended_s, now_s),
            "clean": observation.clean,
            "healthy": self._health.healthy(replica_id),
            "message": shortened(observation.message),
            "checkpoint_ago_s": _ago(self._checkpoints.written_s(replica_id), now_s),
        }

    def _check_health(self, seen: Mapping[str, Observation]) -> None:
        address = self._settings.advertise_address
        self._health.update(
            {
                replica_id: health_urls(self._executor.folders[replica_id].order, address)
                for replica_id, observation in seen.items()
                if observation.state == "running"
            }
        )

    def _look_for_checkpoints(self, seen: Mapping[str, Observation]) -> None:
        folders = {
            replica_id: self._executor.folders[replica_id].checkpoint_folder
            for replica_id, observation in seen.items()
            if observation.state == "running"
        }
        self._checkpoints.update({name: path for name, path in folders.items() if path is not None})

    def _take_sample(self, seen: Mapping[str, Observation]) -> None:
        holders = {
            replica_id: observation for replica_id, observation in seen.items() if not observation.clean
        }
        use = self._meter.measure({replica_id: held.owner_pid for replica_id, held in holders.items()})
        now_s = clock.now_s()
        if self._sampled_s is not None:
            duration_s = now_s - self._sampled_s
            gpus = self._devices.sample(duration_s=duration_s, use_by_gpu=self._use_by_gpu(use))
            buckets: list[TelemetryBucket] = [
                {
                    "gpu_uuid": gpu.gpu_uuid,
                    "ended_ago_s": 0.0,
                    "duration_s": duration_s,
                    "utilisation_pct": gpu.utilisation_pct,
                    "memory_used_mib": gpu.memory_used_mib,
                    "power_w": gpu.power_w,
                    "temperature_c": gpu.temperature_c,
                }
                for gpu in gpus
            ]
            kept_samples = max(1, KEPT_BUCKETS // max(1, len(buckets)))
            self._samples = [*self._samples, _Sample(now_s, buckets)][-kept_samples:]
        self._sampled_s = now_s

    def _use_by_gpu(self, use: Mapping[str, Use]) -> dict[str, Use]:
        by_gpu: dict[str, Use] = {}
        for replica_id, used in use.items():
            for gpu_uuid in self._executor.folders[replica_id].order.gpu_uuids:
                by_gpu[gpu_uuid] = _sum(by_gpu.get(gpu_uuid), used)
        return by_gpu

    # -- what comes back --

    def _is_current(self, answer: SyncAnswer) -> bool:
        if (answer.boot, answer.seq) != (self._boot, self._seq):
            logger.warning("ignored the answer to sync %d.%d while waiting for %d.%d",
                           answer.boot, answer.seq, self._boot, self._seq)  # fmt: skip
            return False
        if answer.generation < self._generation:
            logger.warning("ignored generation %d, applied %d before", answer.generation, self._generation)
            return False
        return True

    def _apply(self, answer: SyncAnswer, seen: Mapping[str, Observation], sent_s: float) -> None:
        # from the sending: the server cannot have counted the lease from earlier than that
        lease_deadline_s = sent_s + answer.lease_s
        try:
            self._state.extend_lease(lease_deadline_s)
        except OSError as error:
            logger.error("the lease could not be written: %s", error)
        self._generation = answer.generation
        self._sync_s = _within(answer.sync_s, SYNC_LIMITS_S)
        folders = self._executor.folders
        self._logs.acknowledge(folders.values(), answer.log_acks)
        known = [
            Known(
                replica_id=replica_id,
                fencing_token=folders[replica_id].order.fencing_token,
                state=observation.state,
                clean=observation.clean,
                stop_grace_s=self._executor.stop_grace_s(replica_id),
            )
            for replica_id, observation in seen.items()
        ]
        self._executor.execute(reconcile(known, answer), lease_deadline_s=lease_deadline_s)


def _aged(samples: Sequence[_Sample], now_s: float) -> list[TelemetryBucket]:
    return [
        {**bucket, "ended_ago_s": round(now_s - sample.ended_s, 3)}
        for sample in samples
        for bucket in sample.buckets
    ]


def _ago(moment_s: float | None, now_s: float) -> float | None:
    return None if moment_s is None else round(max(0.0, now_s - moment_s), 3)


def _sum(one: Use | None, other: Use) -> Use:
    if one is None:
        return other
    cpu_s = None if one.cpu_s is None or other.cpu_s is None else one.cpu_s + other.cpu_s
    known_mib = [use.resident_mib for use in (one, other) if use.resident_mib is not None]
    return Use(cpu_s, sum(known_mib) if known_mib else None)


def _within(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])
