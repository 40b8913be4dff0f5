"""`/agent/v1/`: what node agents call. Plain views: one secret per node, no sessions, no browser."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from django.core.exceptions import RequestDataTooBig
from django.db.utils import OperationalError
from django.http import HttpRequest, JsonResponse
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_exempt
from psycopg.errors import DeadlockDetected
from pydantic import BaseModel, ValidationError

from gpuyard.core.errors import DomainError, Invalid
from gpuyard.core.policy import document_errors
from gpuyard.core.problems import CONTENT_TYPE, problem_data
from gpuyard.fleet.services import LEASE_S, SYNC_S, AgentRefused, node_join
from scheduling.agents.protocol import JoinRequest, SyncRequest
from scheduling.agents.sync import node_sync

logger = logging.getLogger(__name__)

_Message = TypeVar("_Message", bound=BaseModel)
_View = Callable[[HttpRequest], JsonResponse]


def _agent_view(view: _View) -> _View:
    """POST only, no CSRF (no cookie is looked at), refusals as problem+json."""

    @csrf_exempt
    @wraps(view)
    def wrapped(request: HttpRequest) -> JsonResponse:
        try:
            if request.method != "POST":
                raise DomainError("method_not_allowed", _("Only POST is allowed here."), status=405)
            return view(request)
        except DomainError as error:
            return _problem(error, request)

    return wrapped


@_agent_view
def join(request: HttpRequest) -> JsonResponse:
    """Takes a node in with a join token; its secret is shown once."""
    message = _read(JoinRequest, request)
    joined = node_join(join_token=message.join_token, name=message.name, inventory=message.inventory)
    answer = {
        "node_id": joined.node.public_id,
        "node_secret": joined.secret,
        "sync_s": SYNC_S,
        "lease_s": LEASE_S,
    }
    return JsonResponse(answer, status=201)


@_agent_view
def sync(request: HttpRequest) -> JsonResponse:
    """Takes a report and answers with what shall run."""
    secret = _secret(request)
    message = _read(SyncRequest, request)
    try:
        synced = node_sync(secret=secret, request=message)
    except OperationalError as error:
        if not isinstance(error.__cause__, DeadlockDetected):
            raise
        logger.warning("a sync met a deadlock and is applied again")
        synced = node_sync(secret=secret, request=message)
    return JsonResponse(synced.answer)


def _secret(request: HttpRequest) -> str:
    scheme, _space, secret = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise AgentRefused(
            "agent_secret_missing",
            _("The node's secret is missing."),
            remedy=_("Send `Authorization: Bearer <node secret>`."),
        )
    return secret.strip()


def _read(message_class: type[_Message], request: HttpRequest) -> _Message:
    try:
        return message_class.model_validate(json.loads(request.body))
    except RequestDataTooBig as exc:
        raise Invalid(
            "too_large", _("The message is too large."), remedy=_("Send fewer log chunks."), status=413
        ) from exc
    except ValidationError as exc:
        raise Invalid(errors=document_errors(exc)) from exc
    except (ValueError, RecursionError) as exc:
        raise Invalid(
            "parse_error",
            _("The message is not JSON."),
            remedy=_("Send one well-formed JSON document in UTF-8."),
        ) from exc


def _problem(error: DomainError, request: HttpRequest) -> JsonResponse:
    data: dict[str, Any] = problem_data(error, instance=request.path)
    response = JsonResponse(data, status=error.status, content_type=CONTENT_TYPE)
    if error.status == 401:
        response["WWW-Authenticate"] = 'Bearer realm="gpuyard agents"'
    return response
