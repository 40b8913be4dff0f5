"""Asks services whether they are well: GET on each port that has a health path."""

import logging
import threading
from collections.abc import Collection, Mapping
from typing import Final

import httpx

from gpuyard_agent import clock
from gpuyard_agent.protocol import ReplicaOrder

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 2.0
TIMEOUT_S: Final = 2.0


def health_urls(order: ReplicaOrder, address: str) -> tuple[str, ...]:
    host = f"[{address}]" if ":" in address else address
    return tuple(
        f"http://{host}:{port.port}{_rooted(port.health_path)}" for port in order.ports if port.health_path
    )


def _rooted(path: str) -> str:
    return path if path.startswith("/") else f"/{path}"


class HealthChecker:
    """One thread per check, so that a service that never answers delays neither the sync nor other services."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: dict[str, bool] = {}
        self._started_s: dict[str, float] = {}
        self._in_flight: set[str] = set()

    def update(self, targets: Mapping[str, Collection[str]]) -> None:
        """`targets`: replica → URLs. Starts the checks that are due and forgets replicas that are not named."""
        now_s = clock.now_s()
        with self._lock:
            for replica_id in self._results.keys() - targets.keys():
                del self._results[replica_id]
            due = [
                replica_id
                for replica_id, urls in targets.items()
                if urls
                and replica_id not in self._in_flight
                and now_s - self._started_s.get(replica_id, float("-inf")) >= INTERVAL_S
            ]
            self._in_flight.update(due)
            self._started_s = {name: at for name, at in self._started_s.items() if name in targets}
            self._started_s.update(dict.fromkeys(due, now_s))
        for replica_id in due:
            threading.Thread(
                target=self._check, args=(replica_id, tuple(targets[replica_id])), daemon=True
            ).start()

    def healthy(self, replica_id: str) -> bool | None:
        """None until the first answer, and for replicas without a health path."""
        with self._lock:
            return self._results.get(replica_id)

    def _check(self, replica_id: str, urls: tuple[str, ...]) -> None:
        is_healthy = all(_answers(url) for url in urls)
        with self._lock:
            self._in_flight.discard(replica_id)
            if replica_id in self._started_s:
                self._results[replica_id] = is_healthy


def _answers(url: str) -> bool:
    try:
        with httpx.stream("GET", url, timeout=TIMEOUT_S, trust_env=False) as response:
            return response.status_code < 400
    except (httpx.HTTPError, httpx.InvalidURL):
        return False
