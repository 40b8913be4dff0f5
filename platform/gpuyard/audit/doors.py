"""Through which door the present act came, so that no service has to be told.

The middleware says it for each request; outside of requests it is the system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from django.http import HttpRequest, HttpResponse

from gpuyard.audit.models import Source

_door: ContextVar[str] = ContextVar("audit_door", default=Source.SYSTEM)
_BY_PATH = (("/api/", Source.API), ("/agent/", Source.AGENT))


def address_of(request: HttpRequest | None) -> str:
    """The network address that the request came from: behind a proxy, the proxy's."""
    return str(request.META.get("REMOTE_ADDR") or "")[:45] if request else ""


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
