"""The list of workloads: filters from the URL, rows, CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from django.core.paginator import Paginator
from django.db.models import Count
from django.utils.translation import gettext as _

from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.web import wording
from gpuyard.web.contexts import Choice, Pager, WorkloadListPage
from gpuyard.web.pages.rows import workload_rows
from scheduling.models import Kind
from scheduling.selectors import WorkloadFilters, arrays_folded, workload_list
from scheduling.states import WORKLOAD_ENDED, WorkloadState
from tenants.models import Team

PAGE_ROWS = 50
CSV_ROWS = 10_000
S = WorkloadState
GROUPS: dict[str, tuple[str, ...]] = {
    "waiting": (S.PENDING_APPROVAL, S.WAITING),
    "running": (S.STARTING, S.RUNNING, S.STOPPING),
    "ended": tuple(sorted(WORKLOAD_ENDED)),
}
SORTS = {"requested": "created_at", "name": "name", "state": "state"}
DEFAULT_SORT = "-requested"
CSV_HEADER = (
    "id", "name", "team", "kind", "state", "gpus", "tier", "nodes", "owner", "requested_at", "note",
    "charged", "currency",
)  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """The list as the URL asks for it; what it does not understand is left out."""

    filters: WorkloadFilters
    state: str
    sort: str
    page: int

    @property
    def is_folded(self) -> bool:
        """Whether an array is one row: not where one asks for its members."""
        return not self.filters.array

    @property
    def is_filtered(self) -> bool:
        return bool(
            self.filters.array or self.state or self.filters.kind or self.filters.search or self.filters.owner
        )


def asked_of(query: Mapping[str, str], team: Team | None) -> Asked:
    state = query.get("state", "")
    states = GROUPS.get(state) or ((state,) if state in S.values else ())
    kind, sort, number = query.get("kind", ""), query.get("sort", ""), query.get("page", "")
    return Asked(
        filters=WorkloadFilters(
            team=team.public_id if team else "",
            states=states,
            kind=kind if kind in Kind.values else "",
            owner="me" if query.get("owner") == "me" else "",
            search=query.get("q", "").strip()[:120],
            array=query.get("array", "")[:16],
        ),
        state=state if states else "",
        sort=sort if sort.removeprefix("-") in SORTS else DEFAULT_SORT,
        page=int(number) if number.isascii() and number.isdigit() and len(number) < 8 else 1,
    )


def build(actor: User, asked: Asked) -> WorkloadListPage:
    as_of = clock.now()
    found = _sorted(actor, asked)
    paginator = Paginator(arrays_folded(found) if asked.is_folded else found, PAGE_ROWS)
    shown = paginator.get_page(asked.page)
    return WorkloadListPage(
        as_of=as_of,
        rows=workload_rows(actor, list(shown.object_list), as_of, is_folded=asked.is_folded),
        array=asked.filters.array,
        states=_states(actor, asked),
        kinds=[
            Choice(
                value=value,
                label=wording.sentence(str(wording.KINDS[value])),
                selected=value == asked.filters.kind,
            )
            for value in Kind.values
        ],
        q=asked.filters.search,
        sort=asked.sort,
        pager=Pager(
            total=paginator.count,
            first=shown.start_index(),
            last=shown.end_index(),
            previous_page=shown.previous_page_number() if shown.has_previous() else None,
            next_page=shown.next_page_number() if shown.has_next() else None,
        ),
        filtered=asked.is_filtered,
    )


def csv_rows(actor: User, asked: Asked) -> Iterator[tuple[object, ...]]:
    for row in workload_rows(actor, list(_sorted(actor, asked)[:CSV_ROWS]), clock.now()):
        yield (
            row.id,
            row.name,
            row.team,
            row.kind,
            row.state,
            row.gpus,
            row.tier,
            " ".join(row.nodes),
            row.owner,
            row.requested_at.isoformat(timespec="seconds"),
            row.note.replace(wording.NARROW, " "),
            row.price.amount if row.price else None,
            row.price.currency if row.price else None,
        )


def _sorted(actor: User, asked: Asked):  # type: ignore[no-untyped-def]  # QuerySet[Workload, Workload]
    column = SORTS[asked.sort.removeprefix("-")]
    sign = "-" if asked.sort.startswith("-") else ""
    return workload_list(actor, asked.filters).order_by(f"{sign}{column}", "-created_at", "-pk")


def _states(actor: User, asked: Asked) -> list[Choice]:
    every = workload_list(actor, replace(asked.filters, states=()))
    counts = dict(every.order_by().values_list("state").annotate(n=Count("pk")))
    groups = {"": tuple(S.values), **GROUPS}
    labels = {"": _("All"), "waiting": _("Waiting"), "running": _("Running"), "ended": _("Ended")}
    choices = [
        Choice(
            value=value,
            label=labels[value],
            count=sum(counts.get(state, 0) for state in states),
            selected=value == asked.state,
        )
        for value, states in groups.items()
    ]
    if asked.state and asked.state not in GROUPS:
        label = str(wording.state_word(asked.state).label)
        choices.append(
            Choice(value=asked.state, label=label, count=counts.get(asked.state, 0), selected=True)
        )
    return choices
