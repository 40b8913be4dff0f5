"""From what is due to messages, and from messages out of the house.

Two steps: whatever is due for a target becomes one message (never two open ones at once), then messages are sent, each
under a lease, because no lock is held while a network answers. A worker that dies in between leaves a lease that
passes, and the message goes out again: receivers know it by its id.
"""

from __future__ import annotations

import json
import logging
import smtplib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.core.mail import EmailMultiAlternatives
from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils.translation import gettext as _

from gpuyard.core import clock
from gpuyard.core.errors import Invalid
from gpuyard.core.states import state_move
from gpuyard.notify import selectors
from gpuyard.notify.addresses import place_parse
from gpuyard.notify.contents import MOST_ITEMS, MOST_LINES, as_json, as_mail, as_slack, content, title_of
from gpuyard.notify.models import (
    MESSAGE_EDGES,
    Attempt,
    Delivery,
    Endpoint,
    EndpointKind,
    Message,
    MessageState,
    Notification,
)
from gpuyard.notify.posting import PostFailed, post
from gpuyard.notify.routing import route
from gpuyard.notify.signing import HEADER, signature
from gpuyard.notify.vault import opened

logger = logging.getLogger(__name__)

HOUR = timedelta(hours=1)
MAILS_AN_HOUR = 20  # for a person; what is beyond goes together, when the hour has passed
POSTS_AN_HOUR = 60  # for an endpoint
MOST_TRIES = 7
_FIRST_WAIT_S = 30
_LONGEST_WAIT_S = 6 * 3600
_LEASE = timedelta(minutes=2)
_TURN_S = 20.0  # of one task: other tasks share its worker
_OPEN = (MessageState.QUEUED, MessageState.SENDING)


def deliver_all() -> int:
    """Routes, bundles and sends whatever is due; returns how many messages were tried. Safe beside itself."""
    route()
    bundle_due()
    return send_due()


def wait_after(tries: int) -> timedelta:
    """How long to wait after so many tries: 30 s, 2 m, 8 m, 32 m, 2 h 8 m, 6 h."""
    return timedelta(seconds=min(_FIRST_WAIT_S * 4 ** (tries - 1), _LONGEST_WAIT_S))


# --- Bundling ------------------------------------------------------------------------------------------------


def bundle_due() -> int:
    """Makes a message for each target that has something due and no open message; returns how many."""
    now = clock.now()
    same = Q(user=OuterRef("user")) | Q(endpoint=OuterRef("endpoint"))
    is_open = Message.objects.filter(same, state__in=_OPEN)
    due = Delivery.objects.filter(~Exists(is_open), message__isnull=True, due_at__lte=now)
    targets = due.order_by("user_id", "endpoint_id").values_list("user_id", "endpoint_id").distinct()
    return sum(_bundle(user_id, endpoint_id, now) for user_id, endpoint_id in targets)


@transaction.atomic
def _bundle(user_id: UUID | None, endpoint_id: UUID | None, now: datetime) -> bool:
    _target_lock(user_id or endpoint_id)
    its = Q(user_id=user_id) if user_id else Q(endpoint_id=endpoint_id)
    messages = Message.objects.filter(its)
    due = Delivery.objects.filter(its, message__isnull=True, due_at__lte=now)
    if messages.filter(state__in=_OPEN).exists():
        return False  # somebody else was quicker
    if free_at := _free_at(messages, now, MAILS_AN_HOUR if user_id else POSTS_AN_HOUR):
        due.update(due_at=free_at)
        return False
    rows = list(due.select_related("notification").order_by("id"))
    if not rows:
        return False
    subjects = [one.subject for one in content(rows[0].pk, _news(rows), len(rows)).items]
    message = Message.objects.create(
        user_id=user_id,
        endpoint_id=endpoint_id,
        title=title_of(subjects),
        item_count=len(rows),
        due_at=now,
    )
    Delivery.objects.filter(pk__in=[row.pk for row in rows]).update(message=message)
    return True


def _target_lock(target_id: UUID | None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"notify.target {target_id}"]
        )


def _free_at(messages: QuerySet[Message], now: datetime, most: int) -> datetime | None:
    """When the target may hear of us again; None: now."""
    recent = selectors.sent_since(messages, now - HOUR)
    return recent[len(recent) - most] + HOUR if len(recent) >= most else None


def _news(rows: list[Delivery]) -> list[Notification]:
    return [row.notification for row in rows]


# --- Sending -------------------------------------------------------------------------------------------------


def send_due() -> int:
    """Sends due messages one by one, those that never failed first; returns how many were tried."""
    until = time.monotonic() + _TURN_S
    tried = 0
    while time.monotonic() < until and (message := _claim()):
        _finish(message, _try(message))
        tried += 1
    return tried


@transaction.atomic
def _claim() -> Message | None:
    now = clock.now()
    ready = Q(state=MessageState.QUEUED, due_at__lte=now) | Q(state=MessageState.SENDING, lease_until__lt=now)
    rows = Message.objects.filter(ready).order_by("tries", "due_at", "id")
    message = rows.select_for_update(skip_locked=True, of=("self",)).first()
    if message is None:
        return None
    # Not `state_move`: a message whose lease has passed is `sending` before and after.
    changes = {"state": MessageState.SENDING, "lease_until": now + _LEASE, "tries": message.tries + 1}
    Message.objects.filter(pk=message.pk).update(**changes)
    return Message.objects.select_related("user", "endpoint").get(pk=message.pk)


@dataclass(frozen=True)
class Outcome:
    """How one try went. `is_gone`: there is nobody to try again for."""

    at: datetime
    latency_ms: int
    error: str = ""
    status: int | None = None
    is_gone: bool = False


def _try(message: Message) -> Outcome:
    at, began = clock.now(), time.monotonic()
    status, error, is_gone = None, "", False
    try:
        status = _send(message, at)
    except _Gone as exc:
        error, is_gone = str(exc), True
    except PostFailed as exc:
        error, status, is_gone = exc.words, exc.status, exc.status == 410
    except Invalid as exc:
        error = str(exc)
    except smtplib.SMTPException as exc:
        error = f"{type(exc).__name__}"
    except OSError as exc:
        error = type(exc).__name__
    return Outcome(at, round((time.monotonic() - began) * 1000), error[:200], status, is_gone)


class _Gone(Exception):
    """The target is not there any more."""


def _send(message: Message, at: datetime) -> int | None:
    rows = list(message.deliveries.select_related("notification"))
    if message.user is not None:
        _send_mail(message, rows)
        return None
    endpoint = message.endpoint
    assert endpoint is not None  # a CHECK says so
    if endpoint.removed_at is not None:
        raise _Gone(_("the endpoint was removed"))
    how: dict[str, Callable[..., int]] = {
        EndpointKind.WEBHOOK: _send_webhook,
        EndpointKind.SLACK: _send_slack,
    }
    return how[endpoint.kind](message, endpoint, rows, at)


def _send_mail(message: Message, rows: list[Delivery]) -> None:
    user = message.user
    if user is None or not user.is_active or not user.email:
        raise _Gone(_("the person has no address any more"))
    subject, text, html = as_mail(content(message.pk, _news(rows), MOST_LINES))
    mail = EmailMultiAlternatives(subject, text, to=[user.email])
    mail.attach_alternative(html, "text/html")
    mail.send()


def _send_webhook(message: Message, endpoint: Endpoint, rows: list[Delivery], at: datetime) -> int:
    told = content(message.pk, _news(rows), MOST_ITEMS)
    body = _encoded(as_json(told, at))
    active = [opened(endpoint.secret_sealed)]
    if endpoint.old_secret_until and endpoint.old_secret_until > at:
        active.append(opened(endpoint.old_secret_sealed))
    headers = {
        **_HEADERS,
        HEADER: signature(body, active, int(at.timestamp())),
        "GPUYard-Message": str(message.pk),
    }
    return post(place_parse(opened(endpoint.url_sealed)), body, headers)


def _send_slack(message: Message, endpoint: Endpoint, rows: list[Delivery], at: datetime) -> int:
    body = _encoded(as_slack(content(message.pk, _news(rows), MOST_LINES)))
    return post(place_parse(opened(endpoint.url_sealed)), body, _HEADERS)


_HEADERS = {"Content-Type": "application/json", "User-Agent": "GPUYard"}


def _encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


@transaction.atomic
def _finish(message: Message, outcome: Outcome) -> None:
    """Stores how it went; of a try whose lease somebody else took over meanwhile, only the line of the log."""
    Attempt.objects.create(
        message=message,
        at=outcome.at,
        is_sent=not outcome.error,
        status=outcome.status,
        latency_ms=outcome.latency_ms,
        error=outcome.error,
    )
    mine = Message.objects.filter(lease_until=message.lease_until)
    if not mine.filter(pk=message.pk, state=MessageState.SENDING).exists():
        return
    new, changes = _after(message, outcome)
    state_move(mine, message.pk, old=MessageState.SENDING, new=new, edges=MESSAGE_EDGES, **changes)


def _after(message: Message, outcome: Outcome) -> tuple[str, dict[str, Any]]:
    if not outcome.error:
        return MessageState.SENT, {"ended_at": outcome.at}
    if outcome.is_gone:
        return MessageState.DROPPED, {"ended_at": outcome.at}
    if message.tries >= MOST_TRIES:
        return MessageState.FAILED, {"ended_at": outcome.at}
    return MessageState.QUEUED, {"due_at": clock.now() + wait_after(message.tries)}
