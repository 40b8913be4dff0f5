"""Through which door the present act came, so that no service has to be told.

The middleware says it for each request; outside of requests it is the system.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from gpuyard.audit.models import Source

_door: ContextVar[str] = ContextVar("audit_door", default=Source.SYSTEM)
_BY_PATH = (("/api/", Source.API), ("/agent/", Source.AGENT))


def address_of(request: HttpRequest | None) -> str:
    """The network address that the request came from.

    Behind proxies of ours (GPUYARD_TRUSTED_PROXIES) it is the last one in X-Forwarded-For that is none of them: what
    stands before it was written by the caller.
    """
    if request is None:
        return ""
    address = str(request.META.get("REMOTE_ADDR") or "")
    hops = [one.strip() for one in request.headers.get("X-Forwarded-For", "").split(",") if one.strip()]
    while hops and _is_proxy(address):
        address = hops.pop()
    return address[:45]


def _is_proxy(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(found in ipaddress.ip_network(one, strict=False) for one in settings.GPUYARD_TRUSTED_PROXIES)


def door_now() -> str:
    """The source that an event gets unless its service knows better."""
    return _door.get()


@contextmanager
def door(source: str) -> Iterator[None]:
    """What happens inside came through this door."""
    token = _door.set(source)
    try:
        yield
    finally:
        _door.reset(token)


def door_middleware(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """By the path: the REST API, the agents, or else the pages."""

    def middleware(request: HttpRequest) -> HttpResponse:
        source = next((known for path, known in _BY_PATH if request.path.startswith(path)), Source.WEB)
        with door(source):
            return get_response(request)

    return middleware
