"""A program that takes webhooks, as somebody else would write it from docs/api.md: it imports nothing of ours.

Run as a process: it prints its port, then a JSON line for each request. The first `sys.argv[2]` requests are
answered 503, the others 204.
"""

import hashlib
import hmac
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

SECRET, FAILURES = sys.argv[1], int(sys.argv[2])


def say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def is_genuine(header: str, body: bytes) -> bool:
    pairs = [part.split("=", 1) for part in header.split(",")]
    moment = next(value for key, value in pairs if key == "t")
    wanted = hmac.new(SECRET.encode(), moment.encode() + b"." + body, hashlib.sha256).hexdigest()
    is_signed = any(hmac.compare_digest(wanted, value) for key, value in pairs if key == "v1")
    return is_signed and abs(time.time() - int(moment)) <= 300


class Receiver(BaseHTTPRequestHandler):
    seen = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        genuine = is_genuine(self.headers["GPUYard-Signature"], body)
        Receiver.seen += 1
        status = 503 if Receiver.seen <= FAILURES else 204
        say({"genuine": genuine, "status": status, "body": json.loads(body)})
        self.send_response(status)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


if __name__ == "__main__":
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    say(server.server_address[1])
    server.serve_forever()
