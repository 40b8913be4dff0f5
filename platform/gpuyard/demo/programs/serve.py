"""A small inference server: answers /healthz, and /predict?x=…&y=… with which spiral a point is on.

Listens on the port that the platform gives it (GPUYARD_PORT_HTTP) until SIGTERM, then ends with 0.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType
from typing import Any
from urllib.parse import parse_qs, urlsplit


def classify(x: float, y: float) -> int:
    """0 or 1: the arm of the spiral whose angle at this radius is nearer."""
    radius = math.hypot(x, y) * 3 * math.pi
    turn = (math.atan2(y, x) - radius) % (2 * math.pi)
    return int(math.pi / 2 < turn < 3 * math.pi / 2)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/healthz":
            self._answer(200, {"status": "ok"})
        elif url.path == "/predict":
            self._predict(parse_qs(url.query))
        else:
            self._answer(404, {"error": "try /predict?x=0.1&y=0.2"})

    def _predict(self, query: dict[str, list[str]]) -> None:
        try:
            x, y = float(query["x"][0]), float(query["y"][0])
        except (KeyError, ValueError):
            self._answer(400, {"error": "x and y must be numbers"})
            return
        self._answer(200, {"arm": classify(x, y)})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        print(format % args, flush=True)


def main() -> int:
    port = int(os.environ.get("GPUYARD_PORT_HTTP", "8080"))
    server = ThreadingHTTPServer(("0.0.0.0", port), Handler)  # noqa: S104  a service is there to be reached

    def stop(_signal: int, _frame: FrameType | None) -> None:
        print("stopping", flush=True)
        threading.Thread(target=server.shutdown).start()  # shutdown() waits for the loop that we are in

    signal.signal(signal.SIGTERM, stop)
    print(f"serving on port {port}", flush=True)
    server.serve_forever(poll_interval=0.2)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
