"""What a request names beside tiers: levels of the fabric, nodes, and workloads that come first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from django.db.models import Q
from django.utils.translation import gettext as _

from gpuyard.core.errors import FieldError, Invalid
from gpuyard.core.models import User
from gpuyard.fleet.models import Node, NodeState
from gpuyard.fleet.selectors import fabric_levels
from scheduling.engine.snapshot import ISLAND, NODE
from scheduling.models import Workload
from scheduling.specs import Request
from scheduling.states import WORKLOAD_ENDED, WorkloadState
from scheduling.visibility import workloads_named

_REQUEST = "spec.request"
MOST_SHOWN = 20


def references_check(actor: User, request: Request) -> tuple[Workload, ...]:
    """The workloads that it depends on; `Invalid` says of each name that means nothing what there is."""
    errors = [*_levels(request), *_nodes(request.not_nodes)]
    known = {one.public_id: one for one in workloads_named(actor, request.depends_on)}
    errors += _workloads(request.depends_on, known)
    if errors:
        raise Invalid("references_invalid", _("The request is not valid."), errors=errors)
    return tuple(known[name] for name in request.depends_on)


def _levels(request: Request) -> Iterable[FieldError]:
    topology = request.topology
    asked = {
        "topology.required": topology.required if topology else None,
        "topology.preferred": topology.preferred if topology else None,
        "spread_level": request.spread_level,
    }
    if not any(asked.values()):
        return
    known = [*fabric_levels(), NODE]
    for field, level in asked.items():
        allowed = known if field == "spread_level" else [*known, ISLAND]
        if level is not None and level not in allowed:
            yield FieldError(
                f"{_REQUEST}.{field}",
                "level_unknown",
                _("There is no level %(level)s.") % {"level": level},
                _("Choose from: %(levels)s.") % {"levels": ", ".join(allowed)},
            )


def _nodes(names: Sequence[str]) -> Iterable[FieldError]:
    known = node_ids(names)
    for number, name in enumerate(names):
        if name not in known:
            yield FieldError(
                f"{_REQUEST}.not_nodes.{number}",
                "node_unknown",
                _("There is no node %(name)s.") % {"name": name},
                _("Take names or ids from the fleet page."),
            )


def node_ids(names: Iterable[str]) -> dict[str, str]:
    """Name or public id, as it was asked for → key. What has gone is left out."""
    wanted = set(names)
    if not wanted:
        return {}
    nodes = Node.objects.exclude(state=NodeState.RETIRED)
    found = nodes.filter(Q(name__in=wanted) | Q(public_id__in=wanted))
    return {
        name: str(key)
        for key, *both in found.values_list("id", "name", "public_id")
        for name in both
        if name in wanted
    }


def _workloads(names: Sequence[str], known: dict[str, Workload]) -> Iterable[FieldError]:
    for number, name in enumerate(names):
        field = f"{_REQUEST}.depends_on.{number}"
        if name not in known:
            yield FieldError(
                field,
                "workload_unknown",
                _("There is no such workload, or you may not see it."),
                _("Name workloads of your teams by their ids."),
            )
        elif known[name].state in WORKLOAD_ENDED - {WorkloadState.SUCCEEDED}:
            yield FieldError(
                field,
                "dependency_failed",
                _("%(name)s has ended without success: it would wait for ever.") % {"name": name},
                _("Ask for it again and name the new one, or leave it out."),
            )
