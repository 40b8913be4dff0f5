"""Turns what the database refuses into words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from gpuyard.core.errors import Conflict


def constraint_of(exc: IntegrityError) -> str:
    """The name of the constraint that was broken."""
    diagnosis = getattr(exc.__cause__, "diag", None)
    return getattr(diagnosis, "constraint_name", None) or ""


@contextmanager
def unique(constraint: str, field: str, message: str) -> Iterator[None]:
    """The refusal of a unique constraint (part of its name will do) as a `Conflict` about a field."""
    try:
        with transaction.atomic():
            yield
    except IntegrityError as exc:
        if constraint not in constraint_of(exc):
            raise
        raise Conflict("name_taken", message, field=field, remedy=_("Choose another one.")) from exc


@contextmanager
def guarantees_fit() -> Iterator[None]:
    """The refusal of the trigger that keeps the guarantees below a team within its own."""
    try:
        with transaction.atomic():
            yield
    except IntegrityError as exc:
        if constraint_of(exc) != "tenants_quota_fits":
            raise
        raise Conflict(
            "guarantees_exceed_parent",
            _("The guarantees of the teams together would exceed what the team above them has."),
            field="guaranteed",
            remedy=_("Lower it, lower a sister team's, or raise the one above first."),
        ) from exc
