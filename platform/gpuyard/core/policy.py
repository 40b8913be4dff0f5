"""The base of policy documents: rules as data, versioned by their owner, checked by pydantic.

A document is stored as JSON and read through its class. An unknown key is an error, not a rule that silently
does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from django.utils.translation import gettext as _
from pydantic import BaseModel, ConfigDict, ValidationError

from gpuyard.core.errors import Conflict, FieldError, Invalid


class PolicyDocument(BaseModel):
    """Immutable, and strict about its keys. Subclasses add fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


_D = TypeVar("_D", bound=BaseModel)


def document_parse(document_class: type[_D], data: Any, *, field: str = "document") -> _D:
    """Reads stored or sent JSON; `Invalid` names each wrong field below `field` (`document.rules.0.gpus`)."""
    try:
        return document_class.model_validate(data)
    except ValidationError as exc:
        raise Invalid(
            "document_invalid", _("The document is not valid."), errors=document_errors(exc, field=field)
        ) from exc


def document_dump(document: BaseModel) -> dict[str, Any]:
    """The document as plain JSON values, to be stored."""
    return document.model_dump(mode="json")


def document_errors(exc: ValidationError, *, field: str = "") -> tuple[FieldError, ...]:
    """Pydantic's errors as problem fields. The input is left out: it may hold a secret."""
    prefix = [field] if field else []
    return tuple(
        FieldError(
            # a key that was sent may be very long: it is shown, so it is cut
            field=".".join([*prefix, *(str(part)[:80] for part in one["loc"])]) or None,
            code=one["type"],
            message=one["msg"],
            remedy=_remedy(one["type"], one.get("ctx", {})),
        )
        for one in exc.errors(include_url=False, include_input=False)
    )


def _remedy(code: str, bounds: Mapping[str, Any]) -> str:
    if code == "missing":
        return _("Add this field.")
    if code == "extra_forbidden":
        return _("Remove this field, or check its spelling.")
    if code == "greater_than_equal":
        return _("Give at least %(least)s.") % {"least": f"{bounds['ge']:.12g}"}
    if code == "less_than_equal":
        return _("Give at most %(most)s.") % {"most": f"{bounds['le']:.12g}"}
    if code in ("int_type", "int_from_float"):
        return _("Give a whole number.")
    return _("Correct this field.")


# --- Versions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PolicyChange:
    """One part of a document that differs between two versions; None where a version lacks it."""

    name: str
    old: Any
    new: Any


def changed_meanwhile() -> Conflict:
    """Another version was appended after the one that a change was made from."""
    return Conflict(
        "policy_changed_meanwhile",
        _("The policy has changed meanwhile."),
        field="based_on",
        remedy=_("Look at the version that is in force now, and make your change again."),
    )


def same_base(based_on: int, number: int) -> None:
    """Raises unless a change was made from the version in force."""
    if based_on != number:
        raise changed_meanwhile()


def unchanged(field: str) -> Invalid:
    """A version that says what the one before it says is not stored."""
    return Invalid(
        "policy_unchanged", _("This changes nothing."), field=field, remedy=_("Change a rule first.")
    )
