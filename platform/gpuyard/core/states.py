"""How every state moves: along a table of edges, by one conditional UPDATE.

Two processes that both saw `starting` cannot both move it: the second one's UPDATE finds no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from django.db import models

from gpuyard.core.errors import StaleState

Edges = Mapping[str, frozenset[str]]
"""State → the states it may move to. A state that is missing, or has none, is final."""

_M = TypeVar("_M", bound=models.Model)


class IllegalEdge(Exception):
    """The code asked for a move that the table of edges does not have. A fault of ours, never of a user."""


def state_move(
    rows: type[_M] | models.QuerySet[_M],
    pk: Any,
    *,
    old: str,
    new: str,
    edges: Edges,
    field: str = "state",
    **changes: Any,
) -> None:
    """Moves one row from `old` to `new`, setting `changes` with it; `StaleState` if it is no longer `old`.

    Call it inside a transaction, and record the event in the same one.
    """
    if new not in edges.get(old, frozenset()):
        raise IllegalEdge(f"{old} → {new}")
    queryset = rows if isinstance(rows, models.QuerySet) else rows._default_manager.all()
    moved = queryset.filter(pk=pk, **{field: old}).update(**{field: new}, **changes)
    if moved == 0:
        raise StaleState()


def states_move(
    rows: models.QuerySet[_M], *, old: str, new: str, edges: Edges, field: str = "state", **changes: Any
) -> list[_M]:
    """Moves all of the rows that are `old`, and returns them: as they were, but for their state."""
    if new not in edges.get(old, frozenset()):
        raise IllegalEdge(f"{old} → {new}")
    moved = list(rows.filter(**{field: old}).order_by("pk").select_for_update(of=("self",), no_key=True))
    rows.model._default_manager.filter(pk__in=[row.pk for row in moved]).update(**{field: new}, **changes)
    for row in moved:
        setattr(row, field, new)
    return moved


def is_final(state: str, edges: Edges) -> bool:
    """Whether nothing leads out of this state."""
    return not edges.get(state)
