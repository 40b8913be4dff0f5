"""What was refused and what was taken away stands in the log, whichever view answered.

Refused: 403, 404 on a write (a stranger's object is not there), and credentials that were not accepted. Counted by
actor, kind of address and minute, so that a scanner cannot flood the log. Taken away: every download, with its
filter and how many rows it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http import HTTPMethod

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase, StreamingHttpResponse

from gpuyard.api.authentication import token_digest
from gpuyard.audit.doors import address_of, door_now
from gpuyard.audit.services import Actor, Refusal, denial_count, export_record
from gpuyard.core.errors import DomainError
from gpuyard.core.models import User
from gpuyard.core.text import text_for_lookup
from tenants.directory import chains_of
from tenants.models import ApiToken

ROWS = "Yard-Rows"
"""The header in which a download that is not streamed says how many rows it has."""
_SAFE = frozenset({HTTPMethod.GET, HTTPMethod.HEAD, HTTPMethod.OPTIONS})


def attempts_middleware(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    """Stands behind Django's own authentication; the API's sets the request's user too."""

    def middleware(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        if response.status_code == 401 and "Authorization" in request.headers:
            _refused(request, "token.refused", 401, _code(response), _claimed(request))
        elif response.status_code == 403 or (response.status_code == 404 and request.method not in _SAFE):
            _refused(request, "access.denied", response.status_code, _code(response), _person(request))
        elif response.status_code == 200 and _is_download(response):
            _note_download(request, response)
        return response

    return middleware


# --- Refused -----------------------------------------------------------------------------------------------


def refusal_note(request: HttpRequest, refused: DomainError) -> None:
    """For a view that tells a refusal on its own page, with another status than 403."""
    _refused(request, "access.denied", refused.status, refused.code, _person(request))


def _refused(request: HttpRequest, action: str, status: int, code: str, person: User | None) -> None:
    match = request.resolver_match
    refusal = Refusal(
        action=action,
        method=request.method or "",
        route=match.route if match else "",
        status=status,
        path=request.path,
        address=address_of(request),
        code=code,
    )
    with transaction.atomic():
        for company_id in chains_of(person):
            denial_count(refusal, company_id=company_id, actor=person)


def _person(request: HttpRequest) -> User | None:
    user = getattr(request, "user", None)
    return user if isinstance(user, User) else None


def _claimed(request: HttpRequest) -> User | None:
    """Whose token it was that is revoked, expired or of a person who may not sign in any more."""
    _scheme, _space, secret = request.headers.get("Authorization", "").partition(" ")
    token = ApiToken.objects.select_related("user").filter(digest=token_digest(secret.strip())).first()
    return token.user if token else None


def _code(response: HttpResponseBase) -> str:
    data = getattr(response, "data", None)
    return str(data.get("code", ""))[:80] if isinstance(data, dict) else ""


# --- Taken away --------------------------------------------------------------------------------------------


def _is_download(response: HttpResponseBase) -> bool:
    return response.get("Content-Disposition", "").startswith("attachment")


def _note_download(request: HttpRequest, response: HttpResponseBase) -> None:
    if request.method != HTTPMethod.GET:
        return
    filters = {
        text_for_lookup(name): [text_for_lookup(value) for value in request.GET.getlist(name)]
        for name in request.GET
    }
    what, person, source = request.path, _person(request), door_now()

    def record(rows: int | None, is_complete: bool = True) -> None:
        with transaction.atomic():
            export_record(
                company_ids=chains_of(person),
                actor=person or Actor("anonymous"),
                what=what,
                filters={name: values[0] if len(values) == 1 else values for name, values in filters.items()},
                rows=rows,
                is_complete=is_complete,
                source=source,
            )

    if isinstance(response, StreamingHttpResponse):
        has_heading = "csv" in response.get("Content-Type", "")
        lines: Iterable[bytes] = response.streaming_content  # type: ignore[assignment] # no view here is async
        response.streaming_content = _counted(lines, record, -1 if has_heading else 0)
    else:
        assert isinstance(response, HttpResponse)
        rows = response.get(ROWS, "")
        record(int(rows) if rows.isdigit() else None)


def _counted(lines: Iterable[bytes], record: Callable[[int, bool], None], count: int) -> Iterator[bytes]:
    """The same lines, of which each is a row; recorded at the end, or where the reader hung up."""
    is_complete = False
    try:
        for one in lines:
            count += 1
            yield one
        is_complete = True
    finally:
        record(max(count, 0), is_complete)
