"""A POST sent twice acts once: the key and the act are one transaction.

The first request inserts its key, acts, and stores the answer before it commits. A duplicate that runs beside
it waits at the unique constraint, then finds the stored answer; if the first one fails, its key is gone with
it and the duplicate acts. Nothing is left half-done by a kill, and a refusal is never stored.

Do not use it for an answer that carries a secret: the answer would lie in the table for a day.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from django.db import IntegrityError, connection, transaction
from django.db.utils import OperationalError
from django.http import QueryDict
from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiParameter, extend_schema
from psycopg.errors import LockNotAvailable
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpuyard.core import clock
from gpuyard.core.errors import Conflict, Invalid
from gpuyard.core.models import IdempotencyKey, User

HEADER = "Idempotency-Key"
RETENTION = timedelta(hours=24)
_WAIT_MS = 10_000  # for a duplicate that is still running

_PARAMETER = OpenApiParameter(
    HEADER,
    str,
    OpenApiParameter.HEADER,
    description="Any unique text. The same request with the same key acts once and is answered alike for a day.",
)

_V = TypeVar("_V", bound=APIView)
_P = ParamSpec("_P")


@dataclass(frozen=True)
class Answer:
    """What the first request was answered, as plain JSON values."""

    status: int
    body: Any
    replayed: bool = False


def idempotent(
    handler: Callable[Concatenate[_V, Request, _P], Response],
) -> Callable[Concatenate[_V, Request, _P], Response]:
    """Decorates an APIView's `post`: honours the Idempotency-Key header, if there is one."""

    @wraps(handler)
    def wrapper(view: _V, request: Request, /, *args: _P.args, **kwargs: _P.kwargs) -> Response:
        key = request.headers.get(HEADER)
        if key is None:
            return handler(view, request, *args, **kwargs)
        first: list[Response] = []

        def act() -> Answer:
            first.append(handler(view, request, *args, **kwargs))
            return Answer(first[0].status_code, json.loads(JSONRenderer().render(first[0].data) or b"null"))

        user = request.user
        assert isinstance(user, User)
        answer = once(user=user, key=key, method="POST", path=request.path, payload=request.data, act=act)
        if not answer.replayed:
            return first[0]
        return Response(answer.body, status=answer.status, headers={"Idempotency-Replayed": "true"})

    return extend_schema(parameters=[_PARAMETER])(wrapper)


def once(*, user: User, key: str, method: str, path: str, payload: Any, act: Callable[[], Answer]) -> Answer:
    """Runs `act` in a transaction unless this key was answered within 24 hours; then returns that answer.

    Pages use it with a key in a hidden field, so that a form posted twice makes one workload.
    """
    _check_key(key)
    request_hash = _hash(payload)
    with transaction.atomic():
        row, is_first = _claim(
            IdempotencyKey(user=user, key=key, method=method, path=path, request_hash=request_hash)
        )
        if not is_first:
            if (row.method, row.path, row.request_hash) != (method, path, request_hash):
                raise Conflict(
                    "idempotency_key_reused",
                    _("This key was used for another request."),
                    field=HEADER,
                    remedy=_("Use a new key for a new request."),
                )
            return Answer(row.status or 200, row.body, replayed=True)
        answer = act()
        if answer.status >= 400:
            transaction.set_rollback(True)
        else:
            IdempotencyKey.objects.filter(pk=row.pk).update(status=answer.status, body=answer.body)
        return answer


def idempotency_purge() -> int:
    """Deletes the keys that are past their retention; returns how many."""
    deleted, _by_model = IdempotencyKey.objects.filter(created_at__lt=clock.now() - RETENTION).delete()
    return deleted


def _claim(wanted: IdempotencyKey) -> tuple[IdempotencyKey, bool]:
    """Returns (row, True) for whoever came first, (the other's committed row, False) for a duplicate."""
    while True:
        try:
            with transaction.atomic():
                _insert(wanted)
            return wanted, True
        except IntegrityError:
            stored = IdempotencyKey.objects.filter(user=wanted.user, key=wanted.key).first()
        if stored is not None and stored.created_at > clock.now() - RETENTION:
            return stored, False
        if stored is not None:
            IdempotencyKey.objects.filter(pk=stored.pk).delete()


def _insert(row: IdempotencyKey) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL lock_timeout = {_WAIT_MS}")
        try:
            row.save(force_insert=True)
        except OperationalError as exc:
            if isinstance(exc.__cause__, LockNotAvailable):
                raise Conflict(
                    "idempotency_in_progress",
                    _("The first request with this key is still running."),
                    field=HEADER,
                    remedy=_("Ask again in a few seconds."),
                ) from exc
            raise
        cursor.execute("SET LOCAL lock_timeout TO DEFAULT")


def _check_key(key: str) -> None:
    most = IdempotencyKey._meta.get_field("key").max_length
    assert most is not None
    if not (0 < len(key) <= most and key.isascii() and key.isprintable()):
        raise Invalid(
            "idempotency_key_invalid",
            _("The idempotency key is not valid."),
            field=HEADER,
            remedy=_("Send 1 to %(most)s printable ASCII characters, a UUID for example.") % {"most": most},
        )


def _hash(payload: Any) -> str:
    """SHA-256 of what was sent, whatever the order of its keys."""
    data = dict(payload.lists()) if isinstance(payload, QueryDict) else payload
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
