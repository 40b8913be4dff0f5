"""How many requests a token, or a person in a browser, may send in a minute; each answer says how many are left.

Counted in Redis for all processes together. With Redis down each process counts for itself: the limit then is that of
one process, and nobody waits for Redis.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.conf import settings
from django.core.cache import cache
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from redis import RedisError
from rest_framework.throttling import BaseThrottle

from tenants.models import ApiToken

if TYPE_CHECKING:  # the framework loads this module while it loads its views
    from rest_framework.request import Request
    from rest_framework.views import APIView

WINDOW_S = 60
_REDIS_AGAIN_S = 10  # after a failure, so that not each request waits for its time-out
_SEEN = "_yard_rate"


@dataclass(frozen=True)
class Rate:
    """Where a caller stands in the present minute."""

    limit: int
    used: int
    reset_s: int

    @property
    def remaining(self) -> int:
        return max(self.limit - self.used, 0)


class _Own:
    """This process's own counts, of one window only."""

    def __init__(self) -> None:
        self.window = 0
        self.counts: dict[str, int] = {}

    def add(self, key: str, window: int) -> int:
        if window != self.window:
            self.window, self.counts = window, {}
        self.counts[key] = used = self.counts.get(key, 0) + 1
        return used


_own = _Own()
_redis_from = 0.0  # monotonic; not asked before


def _count(key: str, window: int) -> int:
    global _redis_from
    if time.monotonic() >= _redis_from:
        name = f"rate:{key}:{window}"
        try:
            cache.add(name, 0, timeout=2 * WINDOW_S)
            return cache.incr(name)
        except (RedisError, OSError, ValueError):  # ValueError: it ended between the two
            _redis_from = time.monotonic() + _REDIS_AGAIN_S
    return _own.add(key, window)


class CallerThrottle(BaseThrottle):
    """One count for each token, and one for each person's browser sessions. Sets `Rate` on the request."""

    _reset_s = 0

    def allow_request(self, request: Request, view: APIView) -> bool:
        limit = settings.GPUYARD_API_RATE
        if not limit or not request.user or not request.user.is_authenticated:
            return True
        by_token = isinstance(request.auth, ApiToken)
        key = f"token:{request.auth.pk}" if by_token else f"user:{request.user.pk}"
        now = time.time()
        window = int(now // WINDOW_S)
        self._reset_s = math.ceil((window + 1) * WINDOW_S - now)
        rate = Rate(limit, _count(key, window), self._reset_s)
        setattr(request._request, _SEEN, rate)
        return rate.used <= limit

    def wait(self) -> float:
        return float(self._reset_s - 1)  # `exception_handler` rounds up


def rate_middleware(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    """Writes what the throttle found on whatever is answered."""

    def middleware(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        rate: Rate | None = getattr(request, _SEEN, None)
        if rate is not None:
            response["RateLimit-Limit"] = str(rate.limit)
            response["RateLimit-Remaining"] = str(rate.remaining)
            response["RateLimit-Reset"] = str(rate.reset_s)
        return response

    return middleware
