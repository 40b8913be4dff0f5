"""The environment of a replica: a small clean base, what the user asked for, then what the platform says.

Nothing of the agent's own environment passes but PATH and LANG, so no credential that the agent was started
with can reach a replica.
"""

import os
import re

from gpuyard_agent.protocol import Peer, ReplicaOrder

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
RENDEZVOUS = "rendezvous"


def replica_environment(
    order: ReplicaOrder, *, visible_devices: str, work_folder: str, temporary: str
) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", DEFAULT_PATH),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "HOME": work_folder,
        "TMPDIR": temporary,
        **order.env,
        **_identity(order, visible_devices),
        **_ports(order),
        **_rank(order),
    }


def _identity(order: ReplicaOrder, visible_devices: str) -> dict[str, str]:
    return {
        "CUDA_VISIBLE_DEVICES": visible_devices,
        "GPUYARD_WORKLOAD": order.workload_id,
        "GPUYARD_ATTEMPT": str(order.attempt),
        "GPUYARD_REPLICA": order.replica_id,
        "GPUYARD_TEAM": order.team,
    }


def _ports(order: ReplicaOrder) -> dict[str, str]:
    return {f"GPUYARD_PORT_{_variable_name(port.name)}": str(port.port) for port in order.ports}


def _rank(order: ReplicaOrder) -> dict[str, str]:
    peers = sorted(order.peers, key=lambda peer: peer.rank)
    variables = {
        "GPUYARD_RANK": str(order.rank),
        "GPUYARD_WORLD_SIZE": str(order.world_size),
        "GPUYARD_PEERS": ",".join(_host_and_port(peer) for peer in peers),
        "RANK": str(order.rank),
        "WORLD_SIZE": str(order.world_size),
        "LOCAL_RANK": "0",
        "NODE_RANK": str(order.rank),
    }
    if peers:
        variables |= {"MASTER_ADDR": peers[0].address, "MASTER_PORT": str(peers[0].port)}
    return variables


def _host_and_port(peer: Peer) -> str:
    host = f"[{peer.address}]" if ":" in peer.address else peer.address
    return f"{host}:{peer.port}"


def _variable_name(port_name: str) -> str:
    return re.sub(r"[^A-Z0-9]", "_", port_name.upper())
