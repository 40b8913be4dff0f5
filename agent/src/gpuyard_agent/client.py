"""The two calls to the server, and what can go wrong with them."""

import ipaddress
import json
import random
from typing import Final

import httpx

from gpuyard_agent import __version__
from gpuyard_agent.protocol import (
    JoinAnswer,
    JoinRequest,
    MalformedAnswer,
    SyncAnswer,
    SyncRequest,
    read_join_answer,
    read_sync_answer,
)

CONNECT_TIMEOUT_S: Final = 3.0
ANSWER_TIMEOUT_S: Final = 10.0


class ServerError(Exception):
    """The call had no usable answer; the same call may do better later."""


class RequestRefused(ServerError):
    """The server found something in the request that it does not take; the same request will fare no better."""


class Unauthorized(ServerError):
    """The server does not accept this node's secret or join token."""


class NameTaken(ServerError):
    """A node with this name has joined already."""


class StaleSync(ServerError):
    """The server has seen a newer sync of this node."""


class ServerClient:
    def __init__(self, base_url: str) -> None:
        self._http = httpx.Client(
            base_url=base_url,
            timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            headers={"User-Agent": f"gpuyard-agent/{__version__}"},
            follow_redirects=False,  # the secret goes to this server only
            trust_env=not is_loopback(httpx.URL(base_url).host),  # no proxy on the way to this machine
        )

    def join(self, request: JoinRequest) -> JoinAnswer:
        response = self._post("/agent/v1/join", request, {})
        if response.status_code == 409:
            raise NameTaken(_detail(response))
        _raise_unless(response, 201)
        return read_join_answer(_body(response))

    def sync(self, node_secret: str, request: SyncRequest) -> SyncAnswer:
        response = self._post("/agent/v1/sync", request, {"Authorization": f"Bearer {node_secret}"})
        if response.status_code == 409:
            raise StaleSync(_detail(response))
        _raise_unless(response, 200)
        return read_sync_answer(_body(response))

    def close(self) -> None:
        self._http.close()

    def _post(self, path: str, request: JoinRequest | SyncRequest, headers: dict[str, str]) -> httpx.Response:
        content = json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
        try:
            return self._http.post(
                path, content=content, headers={"Content-Type": "application/json", **headers}
            )
        except httpx.HTTPError as error:
            raise ServerError(f"no answer: {error or type(error).__name__}") from error


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _raise_unless(response: httpx.Response, expected: int) -> None:
    if response.status_code in (401, 403):
        raise Unauthorized(_detail(response))
    if response.status_code in (400, 413, 422):
        raise RequestRefused(_detail(response))
    if response.status_code != expected:
        raise ServerError(_detail(response))


def _detail(response: httpx.Response) -> str:
    text = " ".join(response.text.split())
    return f"{response.status_code} {text[:300]}"


def _body(response: httpx.Response) -> object:
    try:
        return response.json()
    except ValueError as error:
        raise MalformedAnswer("the answer is no JSON") from error


class Backoff:
    """Doubles up to a limit, and spreads, so that a thousand nodes do not come back in one second."""

    def __init__(self, *, first_s: float = 1.0, limit_s: float = 30.0) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._failures = 0
        self._random = random.SystemRandom()

    def next_s(self) -> float:
        delay_s = min(self._limit_s, self._first_s * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return delay_s * self._random.uniform(0.75, 1.25)

    def reset(self) -> None:
        self._failures = 0
