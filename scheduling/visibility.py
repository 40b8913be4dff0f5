"""Which workloads a person may see: those of their teams, and their own wherever those are."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import Q

from gpuyard.core.models import User
from gpuyard.core.text import text_for_lookup
from scheduling.models import Workload
from tenants.selectors import visible_q


def workloads_visible_q(actor: User) -> Q:
    """The condition, on workloads."""
    seen = visible_q(actor)
    # An empty condition means "all", but `|` with an empty one would mean "only their own".
    return Q(owner=actor) | seen if seen else seen


def workloads_named(actor: User, public_ids: Iterable[str]) -> list[Workload]:
    """Those of these that the actor may see."""
    names = [text_for_lookup(one) for one in public_ids]
    return list(Workload.objects.filter(workloads_visible_q(actor), public_id__in=names)) if names else []
