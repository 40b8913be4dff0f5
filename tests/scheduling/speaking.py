"""Speaks the agents' protocol to the server, as the agent would, for tests that need no processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.test import Client

from gpuyard.fleet.models import Node
from gpuyard.fleet.services import secret_digest
from scheduling.models import Replica


@dataclass
class Speaker:
    """The agent of one node, which counts its syncs."""

    node: Node
    secret: str
    boot: int = 1
    seq: int = 0

    def sync(self, *replicas: dict[str, Any], **message: Any) -> dict[str, Any]:
        """A sync that must be accepted; returns the answer."""
        response = self.try_sync(*replicas, **message)
        assert response.status_code == 200, response.content
        answer: dict[str, Any] = response.json()
        return answer

    def try_sync(self, *replicas: dict[str, Any], **message: Any) -> Any:
        self.seq += 1
        return self.send(self.message(*replicas, **message))

    def message(self, *replicas: dict[str, Any], **message: Any) -> dict[str, Any]:
        return {
            "boot": self.boot,
            "boot_id": "kernel-boot",
            "seq": self.seq,
            "agent_version": "0.1.0",
            "inventory": None,
            "telemetry": [],
            "replicas": list(replicas),
            "logs": [],
            **message,
        }

    def send(self, body: dict[str, Any]) -> Any:
        """Sends a message as it is, again if need be."""
        return Client().post(
            "/agent/v1/sync",
            body,
            content_type="application/json",
            headers={"Authorization": f"Bearer {self.secret}"},
        )


def speaker(node: Node) -> Speaker:
    """Gives a node a secret, and returns its agent."""
    secret = f"secret of {node.name}"
    node.secret_digest = secret_digest(secret)
    node.save(update_fields=["secret_digest"])
    return Speaker(node, secret)


def report(replica: Replica, state: str, **fields: Any) -> dict[str, Any]:
    """What an agent says of a replica."""
    return {
        "replica_id": str(replica.pk),
        "fencing_token": replica.fencing_token,
        "state": state,
        "exit_code": None,
        "exit_reason": None,
        "signal": None,
        "running_ago_s": None,
        "ended_ago_s": None,
        "clean": False,
        "healthy": None,
        "message": "",
        **fields,
    }


def exited(replica: Replica, code: int | None = 0, **fields: Any) -> dict[str, Any]:
    """A replica that ended of its own, with nothing left of it."""
    return report(
        replica,
        "exited",
        **{"exit_code": code, "exit_reason": "exited", "clean": True, "ended_ago_s": 0.0, **fields},
    )


def rows_dump(*, without: Sequence[str] = ()) -> dict[str, list[str]]:
    """Every row of every table, as text: two dumps are equal if nothing changed."""
    with connection.cursor() as cursor:
        dump = {}
        for table in connection.introspection.table_names(cursor):
            if table in without:
                continue
            cursor.execute(f'SELECT t::text FROM "{table}" t ORDER BY 1')
            dump[table] = [row[0] for row in cursor.fetchall()]
    return dump


def inventory(*gpus: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "hostname": "host",
        "advertise_address": "127.0.0.1",
        "port_range": [20_000, 20_099],
        "cpu_m": 64_000,
        "memory_mib": 262_144,
        "simulated": True,
        "gpus": list(gpus),
        **fields,
    }


def gpu_report(
    index: int = 0, *, model: str = "NVIDIA L4", of: str = "node", **fields: Any
) -> dict[str, Any]:
    device = f"GPU-{of}-{index}"
    return {
        "uuid": device,
        "index": index,
        "model": model,
        "memory_mib": 23_034,
        "architecture": "ada",
        "tier_hint": "l4-24g",
        "island": 0,
        "card_uuid": device,
        "is_instance": 0,
        "compute_slices": 7,
        "card_slices": 7,
        **fields,
    }
