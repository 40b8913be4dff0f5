import sys
import time

import pytest

from gpuyard_agent.devices.base import Use
from gpuyard_agent.devices.simulated import BadSimulation, parse_simulation
from tests.agent.conftest import Node
from tests.agent.fake_server import FakeServer

BUSY = [sys.executable, "-S", "-c", "while True: pass"]
# its children do the work and end: what they used must not be lost
BUSY_CHILDREN = ["sh", "-c", f"while true; do {sys.executable} -S -c 'sum(range(1000000))'; done"]


def test_models_and_islands() -> None:
    gpus = parse_simulation("8xh100-80g:island=4,2xl4-24g", "node-a").gpus()
    assert [gpu["index"] for gpu in gpus] == list(range(10))
    assert [gpu["island"] for gpu in gpus] == [0] * 4 + [1] * 4 + [2, 3]
    assert (gpus[0]["model"], gpus[0]["memory_mib"], gpus[0]["architecture"]) == (
        "NVIDIA H100 80GB HBM3",
        81559,
        "hopper",
    )
    assert {gpu["island"] for gpu in parse_simulation("8xa100-40g", "x").gpus()} == {0}


def test_a_node_keeps_its_uuids_and_shares_none() -> None:
    first, again, other = (
        {gpu["uuid"] for gpu in parse_simulation("8xh100-80g", name).gpus()} for name in ("a", "a", "b")
    )
    assert first == again
    assert not first & other


@pytest.mark.parametrize(
    "text", ["", "8", "0xh100-80g", "8xh900", "8xh100-80g:island=3", "8 x h100-80g", "9999xt4-16g"]
)
def test_a_bad_simulation_says_so(text: str) -> None:
    with pytest.raises(BadSimulation, match="--simulate"):
        parse_simulation(text, "node-a")


def test_unknown_use_is_unknown_and_no_use_is_zero() -> None:
    backend = parse_simulation("2xl4-24g", "node-a")
    held = backend.gpus()[0]["uuid"]
    unknown, idle = backend.sample(duration_s=2.0, use_by_gpu={held: Use(cpu_s=None, resident_mib=None)})
    assert (unknown.utilisation_pct, unknown.memory_used_mib) == (None, None)
    assert (idle.utilisation_pct, idle.memory_used_mib) == (0.0, 0)


def test_utilisation_never_passes_100() -> None:
    backend = parse_simulation("1xl4-24g", "node-a")
    use = {backend.gpus()[0]["uuid"]: Use(cpu_s=9.0, resident_mib=10**6)}
    sample = backend.sample(duration_s=2.0, use_by_gpu=use)[0]
    assert (sample.utilisation_pct, sample.memory_used_mib) == (100.0, 23034)


@pytest.mark.parametrize("busy_program", [BUSY, BUSY_CHILDREN])
def test_busy_is_busy_and_idle_is_idle(server: FakeServer, node: Node, busy_program: list[str]) -> None:
    uuids = [gpu["uuid"] for gpu in server.joins[0]["inventory"]["gpus"]]
    busy = server.order(busy_program, gpu_uuids=[uuids[0]], gpu_indexes=[0])
    idle = server.order(["sleep", "60"], gpu_uuids=[uuids[1]], gpu_indexes=[1])
    node.turn_until(lambda: server.state(busy) == server.state(idle) == "running")
    node.turn()
    server.telemetry.clear()
    time.sleep(0.8)
    node.turn()
    used = {bucket["gpu_uuid"]: bucket["utilisation_pct"] for bucket in server.telemetry}
    assert used[uuids[0]] > 5
    assert used[uuids[1]] == 0
    assert used[uuids[2]] == 0


def test_after_adoption_the_first_sample_is_unknown(server: FakeServer, node: Node) -> None:
    gpu = server.joins[0]["inventory"]["gpus"][0]
    replica_id = server.order(["sleep", "60"], gpu_uuids=[gpu["uuid"]], gpu_indexes=[0])
    node.turn_until(lambda: server.state(replica_id) == "running")
    node.agent._meter._last = None
    server.telemetry.clear()
    node.turn()
    assert [b["utilisation_pct"] for b in server.telemetry if b["gpu_uuid"] == gpu["uuid"]] == [None]


def test_unanswered_telemetry_is_sent_later_with_its_age(server: FakeServer, node: Node) -> None:
    node.turn()
    node.turn()
    server.telemetry.clear()
    server.faults.append("lost")
    node.turn()
    time.sleep(0.3)
    node.turn()
    ages = [bucket["ended_ago_s"] for bucket in server.telemetry]
    assert len(ages) == 8
    assert ages[0] >= 0.3 > ages[-1]
