import os
from pathlib import Path
from typing import Any

import pytest

from gpuyard_agent import files
from gpuyard_agent.environment import replica_environment
from tests.agent.conftest import AgentProcess, Node
from tests.agent.fake_server import FakeServer
from tests.agent.test_reconcile import make_order

PEERS = [
    {"rank": 1, "address": "10.0.0.2", "port": 20005},
    {"rank": 0, "address": "10.0.0.1", "port": 20001},
]


def environment_of(**changes: Any) -> dict[str, str]:
    return replica_environment(
        make_order(**changes), visible_devices="0,1", work_folder="/work", temporary="/tmp/x"
    )


def test_ranks_of_a_gang() -> None:
    env = environment_of(rank=1, world_size=2, peers=PEERS, ports=[{"name": "rendezvous", "port": 20005}])
    assert env["GPUYARD_PEERS"] == "10.0.0.1:20001,10.0.0.2:20005"
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.1", "20001")
    assert (env["RANK"], env["NODE_RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"]) == ("1", "1", "0", "2")
    assert (env["GPUYARD_RANK"], env["GPUYARD_WORLD_SIZE"]) == ("1", "2")
    assert env["GPUYARD_PORT_RENDEZVOUS"] == "20005"


def test_names_of_ports_become_variables() -> None:
    env = environment_of(ports=[{"name": "grpc-web.v2", "port": 20001, "health_path": None}])
    assert env["GPUYARD_PORT_GRPC_WEB_V2"] == "20001"


def test_an_ipv6_peer_is_bracketed() -> None:
    assert (
        environment_of(peers=[{"rank": 0, "address": "fd00::1", "port": 1}])["GPUYARD_PEERS"] == "[fd00::1]:1"
    )


def test_the_platform_wins_over_the_user_and_the_user_over_the_base() -> None:
    env = environment_of(env={"RANK": "7", "CUDA_VISIBLE_DEVICES": "0,1,2,3", "HOME": "/data", "MINE": "yes"})
    assert (env["RANK"], env["CUDA_VISIBLE_DEVICES"]) == ("0", "0,1")
    assert (env["HOME"], env["MINE"], env["TMPDIR"]) == ("/data", "yes", "/tmp/x")


def test_two_ranks_find_one_another(server: FakeServer, node: Node) -> None:
    gpus = server.joins[0]["inventory"]["gpus"]
    show = [
        "sh",
        "-c",
        "echo $RANK/$WORLD_SIZE $CUDA_VISIBLE_DEVICES $MASTER_ADDR:$MASTER_PORT $PWD $HOME; ls $TMPDIR",
    ]
    ids = [
        server.order(
            show, rank=rank, world_size=2, peers=PEERS, gpu_indexes=[2 * rank, 2 * rank + 1],
            gpu_uuids=[gpu["uuid"] for gpu in gpus[2 * rank : 2 * rank + 2]],
        )
        for rank in (0, 1)
    ]  # fmt: skip
    node.turn_until(lambda: all(server.state(one) == "exited" for one in ids) and all(map(server.text, ids)))
    work = [f"{node.state.replica_root}/{one}/work" for one in ids]
    assert server.text(ids[0]) == f"0/2 0,1 10.0.0.1:20001 {work[0]} {work[0]}\n"
    assert server.text(ids[1]) == f"1/2 2,3 10.0.0.1:20001 {work[1]} {work[1]}\n"


def test_no_secret_reaches_a_replica(
    server: FakeServer, agent_process: AgentProcess, state_dir: Path, tmp_path: Path
) -> None:
    replica_id = server.order(["sh", "-c", "env; cat /proc/$PPID/environ | tr '\\0' '\\n'"])
    agent_process.start(AWS_SECRET_ACCESS_KEY="hidden")
    server.wait(lambda: server.state(replica_id) == "exited" and "GPUYARD_REPLICA" in server.text(replica_id))
    node = files.read_json(str(state_dir / "node.json"))
    assert os.stat(state_dir / "node.json").st_mode & 0o777 == 0o600
    for secret in (node["node_secret"], "join-me", "hidden", "JOIN_TOKEN"):
        assert secret not in server.text(replica_id)
    assert node["node_secret"] not in (tmp_path / "agent.log").read_text()


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "GPUYARD_JOIN_TOKEN"])
def test_the_agents_own_variables_stay_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "hidden")
    assert name not in environment_of()
