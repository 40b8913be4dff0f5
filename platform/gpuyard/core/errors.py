"""What a service may refuse with. `core.problems` turns each into problem+json; pages show the same words.

A class says the status, its `code` is stable for programs, its docstring is the message where none is given:
`raise NotFound()`, `raise Invalid("gpus_whole", _("…"), field="spec.request.tiers", remedy=_("…"))`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from django.utils.functional import Promise

Text = str | Promise


@dataclass(frozen=True)
class FieldError:
    """One thing wrong with one field (`None`: with the whole), and what to do about it."""

    field: str | None
    code: str
    message: Text
    remedy: Text | None = None


class DomainError(Exception):
    """This cannot be done."""

    default_code: ClassVar[str] = "refused"
    default_status: ClassVar[int] = 400

    def __init__(
        self,
        code: str | None = None,
        message: Text | None = None,
        *,
        field: str | None = None,
        remedy: Text | None = None,
        status: int | None = None,
        errors: Sequence[FieldError] = (),
    ) -> None:
        self.code = code or self.default_code
        self.message: Text = message or inspect.cleandoc(type(self).__doc__ or self.code)
        self.field = field
        self.remedy = remedy
        self.status = status or self.default_status
        self.errors: tuple[FieldError, ...] = tuple(errors)
        if not self.errors and (field or remedy):
            self.errors = (FieldError(field, self.code, self.message, remedy),)
        super().__init__(self.code, self.message)

    def __str__(self) -> str:
        return str(self.message)


class Invalid(DomainError):
    """Some of what was sent is not valid."""

    default_code = "invalid"


class Forbidden(DomainError):
    """You are not allowed to do this."""

    default_code = "forbidden"
    default_status = 403


class NotFound(DomainError):
    """There is no such thing, or you may not see it."""

    default_code = "not_found"
    default_status = 404


class Conflict(DomainError):
    """This does not fit what is already there."""

    default_code = "conflict"
    default_status = 409


class StaleState(Conflict):
    """Somebody else has changed this meanwhile. Load it again, then decide."""

    default_code = "stale_state"
