import sys

import pytest

from gpuyard_agent.health import health_urls
from tests.agent.conftest import Node
from tests.agent.fake_server import FakeServer
from tests.agent.test_reconcile import make_order

SERVICE = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if not os.path.exists('ill') else 503)
        self.end_headers()
http.server.HTTPServer(('127.0.0.1', int(os.environ['GPUYARD_PORT_HTTP'])), Handler).serve_forever()
"""


@pytest.fixture
def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_service_becomes_well_and_ill(server: FakeServer, node: Node, free_port: int) -> None:
    ports = [{"name": "http", "port": free_port, "health_path": "/healthz"}]
    service = server.order([sys.executable, "-c", SERVICE], ports=ports)
    batch = server.order(["sleep", "60"])
    node.turn_until(lambda: server.state(service) == "running" and server.reports[service]["healthy"])
    assert server.reports[batch]["healthy"] is None
    open(f"{node.state.replica_root}/{service}/work/ill", "w").close()
    node.turn_until(lambda: server.reports[service]["healthy"] is False)


def test_only_ports_with_a_path_are_asked() -> None:
    order = make_order(
        ports=[
            {"name": "rendezvous", "port": 20000},
            {"name": "http", "port": 20001, "health_path": "healthz"},
        ]
    )
    assert health_urls(order, "fd00::1") == ("http://[fd00::1]:20001/healthz",)
