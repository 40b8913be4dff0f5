"""What the agent sends is what the server takes: checked with the server's own message classes."""

import sys
import uuid

from scheduling.agents.protocol import JoinRequest, ReplicaReport, SyncRequest
from tests.agent.conftest import Node
from tests.agent.fake_server import FakeServer

NOISY = "import sys, time; sys.stdout.buffer.write(b'a\\0b\\xff\\x1b' * 1000); time.sleep(0.3); sys.exit(3)"


def test_the_server_takes_what_the_agent_sends(server: FakeServer, node: Node) -> None:
    gpu = server.joins[0]["inventory"]["gpus"][0]
    ids = [
        server.order([sys.executable, "-S", "-c", NOISY], gpu_uuids=[gpu["uuid"]], gpu_indexes=[0]),
        server.order(["no-such-program"]),
        server.order(["sleep", "60"], desired="stop"),
    ]
    node.turn_until(lambda: all(server.reports.get(one, {}).get("clean") for one in ids))
    JoinRequest.model_validate(server.joins[0])
    for body in server.syncs:
        SyncRequest.model_validate(body)
    assert [server.reports[one]["exit_reason"] for one in ids] == ["exited", "start_failed", "stopped"]


def test_the_server_knows_every_exit_reason() -> None:
    for reason in (
        "exited",
        "signal",
        "time_limit",
        "lease",
        "start_failed",
        "stopped",
        "shim_lost",
        "lost_on_reboot",
    ):
        report = {
            "replica_id": str(uuid.UUID(int=1)),
            "fencing_token": 1,
            "state": "exited",
            "exit_reason": reason,
        }
        assert ReplicaReport.model_validate(report).exit_reason == reason
