"""The server's side of the agent protocol, in memory, over real HTTP: the same rules, and faults on demand."""

import json
import secrets
import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Json = dict[str, Any]
Fault = Literal[
    "lost",  # the sync never arrives
    "answer_lost",  # it is applied, the answer never arrives
    "replay",  # the answer to the sync before
    "older_generation",
    "malformed",
    "error",  # 500
    "refused",  # 400
    "unauthorized",
    "stale",
]
JOIN_TOKEN = "join-me"


@dataclass
class FakeServer:
    sync_s: float = 0.1
    lease_s: float = 90.0
    generation: int = 1
    secret: str = ""
    joins: list[Json] = field(default_factory=list)
    orders: dict[str, Json] = field(default_factory=dict)
    forget: set[str] = field(default_factory=set)
    reports: dict[str, Json] = field(default_factory=dict)
    history: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    logs: dict[tuple[str, str], dict[int, Json]] = field(default_factory=lambda: defaultdict(dict))
    telemetry: list[Json] = field(default_factory=list)
    inventories: list[Json] = field(default_factory=list)
    syncs: list[Json] = field(default_factory=list)
    old_token_reports: int = 0
    faults: deque[Fault] = field(default_factory=deque)
    acks_logs: bool = True
    _seen: tuple[int, int] = (0, 0)
    _last_answer: Json | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)

    # -- for tests --

    def order(self, command: list[str], **changes: Any) -> str:
        replica_id = str(uuid.uuid4())
        order = {
            "replica_id": replica_id, "fencing_token": 5, "desired": "run", "grace_s": 2, "on_disconnect": "keep",
            "command": command, "env": {}, "working_dir": None, "gpu_uuids": [], "gpu_indexes": [],
            "cpu_m": 1000, "memory_mib": 512, "time_limit_s": None, "rank": 0, "world_size": 1,
            "workload_id": "w-7k3f9q2m", "attempt": 1, "team": "t-12345678", "ports": [], "peers": [],
        }  # fmt: skip
        with self._changed:
            self.orders[replica_id] = order | changes
            self.generation += 1
        return replica_id

    def change(self, replica_id: str, **changes: Any) -> None:
        with self._changed:
            self.orders[replica_id] |= changes
            self.generation += 1

    def withdraw(self, replica_id: str) -> None:
        with self._changed:
            del self.orders[replica_id]
            self.generation += 1

    def state(self, replica_id: str) -> str | None:
        report = self.reports.get(replica_id)
        return report["state"] if report else None

    def text(self, replica_id: str, stream: str = "stdout") -> str:
        return "".join(chunk["data"] for _, chunk in sorted(self.logs[replica_id, stream].items()))

    def wait(self, holds: Callable[[], object], timeout_s: float = 15.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while not holds():
                left_s = deadline_s - time.monotonic()
                assert left_s > 0, f"waited in vain; reports: {self.reports}"
                self._changed.wait(min(left_s, 0.2))

    # -- the protocol --

    def join(self, body: Json) -> tuple[int, Json]:
        if body["join_token"] != JOIN_TOKEN:
            return 401, {"code": "invalid_token"}
        if self.secret:
            return 409, {"code": "name_taken"}
        self.secret = secrets.token_urlsafe(32)
        self.joins.append(body)
        answer = {
            "node_id": "n-12345678",
            "node_secret": self.secret,
            "sync_s": self.sync_s,
            "lease_s": self.lease_s,
        }
        return 201, answer

    def sync(self, body: Json, authorization: str | None) -> tuple[int, Any] | None:
        """None: the connection is closed without an answer."""
        with self._changed:
            fault = self.faults.popleft() if self.faults else None
            if fault == "lost":
                return None
            if fault == "error":
                return 500, {}
            if fault == "refused":
                return 400, {"code": "invalid"}
            if fault == "unauthorized" or authorization != f"Bearer {self.secret}":
                return 401, {"code": "unauthorized"}
            if fault == "stale" or (body["boot"], body["seq"]) <= self._seen:
                return 409, {"code": "stale_sync"}
            previous = self._last_answer
            self._last_answer = self._apply(body)
            self._changed.notify_all()
            if fault == "answer_lost":
                return None
            if fault == "replay" and previous is not None:
                return 200, previous
            if fault == "older_generation":
                return 200, self._last_answer | {"generation": 0, "replicas": []}
            if fault == "malformed":
                return 200, {"boot": "three"}
            return 200, self._last_answer

    def _apply(self, body: Json) -> Json:
        self._seen = (body["boot"], body["seq"])
        self.syncs.append(body)
        self.telemetry += body["telemetry"]
        if body["inventory"] is not None:
            self.inventories.append(body["inventory"])
        for report in body["replicas"]:
            self._take_report(report)
        return {
            "boot": body["boot"], "seq": body["seq"], "generation": self.generation, "lease_s": self.lease_s,
            "sync_s": self.sync_s, "grace_default_s": 1, "replicas": [dict(order) for order in self.orders.values()],
            "log_acks": [self._take_log(chunk) for chunk in body["logs"]] if self.acks_logs else [],
            "forget": sorted(self.forget),
        }  # fmt: skip

    def _take_report(self, report: Json) -> None:
        replica_id = report["replica_id"]
        order = self.orders.get(replica_id)
        if order is not None and report["fencing_token"] != order["fencing_token"]:
            self.old_token_reports += 1
            return
        self.reports[replica_id] = report
        if not self.history[replica_id] or self.history[replica_id][-1] != report["state"]:
            self.history[replica_id].append(report["state"])

    def _take_log(self, chunk: Json) -> Json:
        stored = self.logs[chunk["replica_id"], chunk["stream"]]
        end = max((offset + held["bytes"] for offset, held in stored.items()), default=0)
        if chunk["offset"] == end:
            stored[chunk["offset"]] = chunk
            end += chunk["bytes"]
        return {"replica_id": chunk["replica_id"], "stream": chunk["stream"], "offset": end}


class _Handler(BaseHTTPRequestHandler):
    fake: FakeServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = self._answer(body)
        if answer is None:
            self.close_connection = True
            return
        content = json.dumps(answer[1]).encode()
        self.send_response(answer[0])
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _answer(self, body: Json) -> tuple[int, Any] | None:
        if self.path == "/agent/v1/join":
            return self.fake.join(body)
        if self.path == "/agent/v1/sync":
            return self.fake.sync(body, self.headers["Authorization"])
        return 404, {}

    def log_message(self, *_: object) -> None:
        pass


def serve(fake: FakeServer) -> tuple[str, ThreadingHTTPServer]:
    handler = type("Handler", (_Handler,), {"fake": fake})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}", server
