from typing import Any

import pytest

from gpuyard_agent.protocol import MalformedAnswer, read_join_answer, read_sync_answer

ORDER: dict[str, Any] = {
    "replica_id": "00000000-0000-0000-0000-000000000001", "fencing_token": 5, "desired": "run", "grace_s": 3,
    "on_disconnect": "keep", "command": ["true"], "env": {"A": "b"}, "working_dir": None, "gpu_uuids": ["GPU-1"],
    "gpu_indexes": [0], "cpu_m": 1, "memory_mib": 1, "time_limit_s": None, "rank": 0, "world_size": 1,
    "workload_id": "w-1", "attempt": 1, "team": "t-1", "ports": [{"name": "http", "port": 1}],
    "peers": [{"rank": 0, "address": "a", "port": 1}],
}  # fmt: skip
ANSWER: dict[str, Any] = {
    "boot": 1, "seq": 2, "generation": 3, "lease_s": 90, "sync_s": 2, "grace_default_s": 10, "replicas": [ORDER],
    "log_acks": [{"replica_id": ORDER["replica_id"], "stream": "stdout", "offset": 7}], "forget": [],
}  # fmt: skip


def test_a_whole_answer_is_read() -> None:
    answer = read_sync_answer({**ANSWER, "of_a_later_version": True})
    assert (answer.generation, answer.lease_s, answer.replicas[0].command) == (3, 90.0, ("true",))
    assert answer.replicas[0].ports[0].health_path is None


@pytest.mark.parametrize("field", sorted(ANSWER))
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(MalformedAnswer, match=field):
        read_sync_answer({name: value for name, value in ANSWER.items() if name != field})


@pytest.mark.parametrize(
    "changes",
    [
        {"replica_id": "../../etc"},
        {"replica_id": "00000000000000000000000000000001"},
        {"fencing_token": "5"},
        {"fencing_token": True},
        {"desired": "restart"},
        {"grace_s": -1},
        {"grace_s": float("nan")},
        {"command": []},
        {"command": "true"},
        {"command": [1]},
        {"env": {"A": 1}},
        {"time_limit_s": "8h"},
        {"ports": [{"name": "http"}]},
        {"peers": [{}]},
    ],
)
def test_a_wrong_order_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(MalformedAnswer):
        read_sync_answer({**ANSWER, "replicas": [ORDER | changes]})


@pytest.mark.parametrize(
    "body", [None, [], "text", {}, {"node_id": "n", "node_secret": None, "sync_s": 2, "lease_s": 90}]
)
def test_a_wrong_join_answer_is_refused(body: object) -> None:
    with pytest.raises(MalformedAnswer):
        read_join_answer(body)
