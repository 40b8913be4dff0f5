"""The one place where an error becomes an answer: RFC 9457 `application/problem+json`.

`{type, title, status, detail, code, errors: [{field, code, message, remedy}], instance}`. What is not listed
in `_as_domain_error` is a fault of ours and stays an exception: an IntegrityError above all, which would mean
that a rule of the database had no check with a good message before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from django.core.exceptions import BadRequest, PermissionDenied, RequestDataTooBig
from django.core.exceptions import ValidationError as ModelValidationError
from django.db import DataError
from django.db.utils import OperationalError
from django.http import Http404
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from psycopg import errors as pg
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

from gpuyard.core.errors import DomainError, FieldError, Forbidden, Invalid, NotFound

CONTENT_TYPE = "application/problem+json"
_NON_FIELD = frozenset({"non_field_errors", "detail", "__all__"})

# Codes of DRF's and Django's own checks → what to do. Services bring their own remedies.
_REMEDIES: dict[str, str] = {
    "required": gettext_noop("Add this field."),
    "null": gettext_noop("Give a value, or leave the field out if it is optional."),
    "blank": gettext_noop("Give a value that is not empty."),
    "empty": gettext_noop("Give at least one item."),
    "min_value": gettext_noop("Give a larger number."),
    "max_value": gettext_noop("Give a smaller number."),
    "min_length": gettext_noop("Give a longer value."),
    "max_length": gettext_noop("Give a shorter value."),
    "max_string_length": gettext_noop("Give a shorter value."),
    "invalid_choice": gettext_noop("Choose one of the allowed values."),
    "does_not_exist": gettext_noop("Check the id: nothing that you may see has it."),
    "not_a_list": gettext_noop("Send a list."),
    "null_characters_not_allowed": gettext_noop("Remove the NUL characters."),
    "parse_error": gettext_noop("Send one well-formed JSON document in UTF-8."),
    "not_authenticated": gettext_noop("Sign in, or send `Authorization: Bearer <token>`."),
    "unknown_field": gettext_noop("Remove this field, or check its spelling."),
    "throttled": gettext_noop("Wait as long as the Retry-After header says."),
}
_INVALID_REMEDY = gettext_noop("Correct this field.")


class ProblemResponse(Response):
    """Always JSON, whatever renderer the request asked for (a CSV export fails in JSON too)."""

    @property
    def rendered_content(self) -> str:
        self["Content-Type"] = CONTENT_TYPE
        return json.dumps(
            self.data
        )  # in ASCII: a message may quote a lone surrogate, which UTF-8 has no bytes for


def exception_handler(exc: Exception, context: Mapping[str, Any]) -> Response | None:
    """DRF's `EXCEPTION_HANDLER`. Returns None for faults of ours: they become a 500 and a traceback."""
    error = _as_domain_error(exc)
    if error is None:
        return None
    set_rollback()
    request = context.get("request")
    response = ProblemResponse(
        problem_data(error, instance=request.path if request else ""), status=error.status
    )
    if challenge := getattr(exc, "auth_header", None):
        response["WWW-Authenticate"] = challenge
    if wait := getattr(exc, "wait", None):
        response["Retry-After"] = str(int(wait) + 1)
    return response


def problem_data(error: DomainError, *, instance: str = "") -> dict[str, Any]:
    """The members of a problem document; also what the pages show beside a form."""
    return {
        "type": f"urn:gpuyard:problem:{error.code}",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "detail": str(error.message),
        "code": error.code,
        "errors": [
            {
                "field": one.field,
                "code": one.code,
                "message": str(one.message),
                "remedy": str(one.remedy) if one.remedy else None,
            }
            for one in error.errors
        ],
        "instance": instance,
    }


def _as_domain_error(exc: Exception) -> DomainError | None:
    match exc:
        case DomainError():
            return exc
        case exceptions.ValidationError():
            return _invalid(_flatten(exc.detail))
        case exceptions.APIException():
            return _from_api_exception(exc)
        case ModelValidationError():
            return _invalid(_from_model(exc))
        case Http404():
            return NotFound()
        case PermissionDenied():
            return Forbidden()
        case RequestDataTooBig():
            return Invalid("too_large", _("The request is too large."), remedy=_("Send less."), status=413)
        case BadRequest():
            return Invalid("bad_request", str(exc) or None)
        case DataError():
            return _from_data_error(exc)
        case UnicodeEncodeError() if "surrogates" in exc.reason:
            return Invalid(
                "surrogate_characters_not_allowed",
                _("A text contains half a character (a lone surrogate)."),
                remedy=_("Send whole Unicode characters."),
            )
        case OperationalError() if isinstance(exc.__cause__, pg.LockNotAvailable):
            return DomainError(
                "busy",
                _("Somebody else is changing this now."),
                remedy=_("Try again in a second."),
                status=409,
            )
    return None


def _invalid(errors: Iterator[FieldError]) -> Invalid:
    return Invalid(errors=tuple(errors))


def _from_api_exception(exc: exceptions.APIException) -> DomainError:
    codes = exc.get_codes()
    code = codes if isinstance(codes, str) else exc.default_code
    message = str(exc.detail) if isinstance(exc.detail, str) else str(exc.default_detail)
    remedy = getattr(exc, "remedy", None) or _REMEDIES.get(code)
    return DomainError(code, message, remedy=remedy and _(str(remedy)), status=exc.status_code)


def _from_data_error(exc: DataError) -> Invalid:
    # The database names no field, so serialisers should refuse these first; this is the net below them.
    match exc.__cause__:
        case pg.NumericValueOutOfRange():
            return Invalid("out_of_range", _("A number is out of range."), remedy=_("Give a smaller number."))
        case pg.StringDataRightTruncation():
            return Invalid("max_length", _("A value is too long."), remedy=_("Give a shorter value."))
        case pg.UntranslatableCharacter():
            return _nul()
    if "NUL" in str(exc):
        return _nul()
    return Invalid("invalid_value", _("A value cannot be stored."), remedy=_("Check the values sent."))


def _nul() -> Invalid:
    return Invalid(
        "null_characters_not_allowed",
        _("A text contains NUL characters."),
        remedy=_(_REMEDIES["null_characters_not_allowed"]),
    )


def _from_model(exc: ModelValidationError) -> Iterator[FieldError]:
    if hasattr(exc, "error_dict"):
        for field, errors in exc.error_dict.items():
            for one in errors:
                yield from (_field_error(field, one.code or "invalid", text) for text in one.messages)
        return
    for one in exc.error_list:
        yield from (_field_error(None, one.code or "invalid", text) for text in one.messages)


def _flatten(detail: Any, path: tuple[str, ...] = ()) -> Iterator[FieldError]:
    """DRF's nested detail → one entry per message, its field as a dotted path (`spec.request.tiers.0`)."""
    if isinstance(detail, Mapping):
        for key, value in detail.items():
            yield from _flatten(value, path if str(key) in _NON_FIELD else (*path, str(key)))
    elif isinstance(detail, list):
        for index, value in enumerate(detail):
            nested = isinstance(value, Mapping | list)
            yield from _flatten(value, (*path, str(index)) if nested else path)
    else:
        yield _field_error(".".join(path) or None, getattr(detail, "code", None) or "invalid", str(detail))


def _field_error(field: str | None, code: str, message: str) -> FieldError:
    return FieldError(field, code, message, _(_REMEDIES.get(code, _INVALID_REMEDY)))
