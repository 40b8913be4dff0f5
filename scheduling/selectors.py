"""Reading workloads: lists, one page, timeline, log. Every query starts from the actor; a stranger's is not found.

The request form's answers are in `checks`, the fleet in `supply`, verdicts in `explanations`; they are named here too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Count, Exists, OuterRef, Prefetch, Q, QuerySet
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.utils.translation import gettext as _

from gpuyard.audit.models import Event
from gpuyard.audit.selectors import subject_events
from gpuyard.core import clock
from gpuyard.core.errors import Invalid, NotFound
from gpuyard.core.hooks import Eta
from gpuyard.core.models import User
from gpuyard.core.text import text_for_lookup
from gpuyard.fleet.architectures import ARCHITECTURES, is_at_least
from gpuyard.fleet.models import Tier
from scheduling.checks import RequestCheck, request_check
from scheduling.explanations import Explanation, Reason, attempt_reasons, verdict_explain, verdicts_explain
from scheduling.history import pass_list
from scheduling.models import (
    Attempt,
    Eviction,
    Kind,
    LogChunk,
    Replica,
    SchedulerState,
    Verdict,
    Workload,
)
from scheduling.sizes import tiers_able
from scheduling.specs import Capabilities
from scheduling.states import AttemptState, WorkloadState
from scheduling.supply import FleetView, TierSupply, fleet_list, tier_supply
from scheduling.usage import quota_checks, quota_use
from scheduling.visibility import workloads_visible_q
from tenants.models import Case
from tenants.selectors import team_get

__all__ = [
    "Explanation",
    "FleetView",
    "LogPage",
    "Reason",
    "RequestCheck",
    "TierSupply",
    "WorkloadFilters",
    "array_counts",
    "arrays_folded",
    "attempt_list",
    "attempt_reasons",
    "eviction_list",
    "fair_shares",
    "fleet_list",
    "last_pass",
    "live_attempt",
    "log_read",
    "pass_list",
    "queue_counts",
    "queue_demand",
    "queue_list",
    "quota_checks",
    "quota_use",
    "request_check",
    "tier_supply",
    "verdict_explain",
    "verdicts_explain",
    "workload_events",
    "workload_get",
    "workload_list",
    "workload_public_ids",
]

# --- Workloads ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkloadFilters:
    """All optional; team, owner, tier and array by what URLs and people call them. `owner="me"` is the actor.

    `search` matches the beginning of the public id, or any part of the name.
    """

    team: str = ""
    states: tuple[str, ...] = ()
    kind: str = ""
    owner: str = ""
    tier: str = ""
    search: str = ""
    array: str = ""


def workload_list(actor: User, filters: WorkloadFilters | None = None) -> QuerySet[Workload]:
    """The workloads of the actor's teams and their own, newest first.

    `live_attempt(row)` says where it is placed. Three queries, whatever the number of rows.
    """
    asked = filters or WorkloadFilters()
    workloads = _visible(actor).prefetch_related(_live_attempts())
    if asked.team:
        team = team_get(actor, asked.team)
        workloads = workloads.filter(team__path__contains=[team.pk])
    if asked.states:
        _choices_check("state", asked.states, WorkloadState.values)
        workloads = workloads.filter(state__in=asked.states)
    if asked.kind:
        _choices_check("kind", [asked.kind], Kind.values)
        workloads = workloads.filter(kind=asked.kind)
    if asked.owner:
        mine = Q(owner=actor) if asked.owner == "me" else Q(owner__public_id=text_for_lookup(asked.owner))
        workloads = workloads.filter(mine)
    if asked.tier:
        workloads = workloads.filter(_takes_tier_q(text_for_lookup(asked.tier)))
    if asked.array:
        workloads = workloads.filter(array__public_id=text_for_lookup(asked.array))
    if asked.search:
        text = text_for_lookup(asked.search.strip())[:120]
        workloads = workloads.filter(Q(name__icontains=text) | Q(public_id__istartswith=text))
    return workloads.order_by("-created_at", "-pk")


def arrays_folded(workloads: QuerySet[Workload]) -> QuerySet[Workload]:
    """Of each array only the first of its members that are among these; the rest as it is."""
    before = workloads.filter(array_id=OuterRef("array_id"), array_index__lt=OuterRef("array_index"))
    return workloads.filter(~Exists(before.order_by()))


def array_counts(actor: User, array_ids: Iterable[UUID]) -> dict[UUID, list[tuple[str, int]]]:
    """Array → how many of its members are in each state, the most frequent first; one query."""
    wanted, found = list(array_ids), defaultdict[UUID, list[tuple[str, int]]](list)
    if not wanted:
        return {}
    members = Workload.objects.filter(workloads_visible_q(actor), array__in=wanted).order_by()
    rows = members.values_list("array_id", "state").annotate(count=Count("pk")).order_by("-count", "state")
    for array_id, state, count in rows:
        found[array_id].append((state, count))
    return dict(found)


def workload_get(actor: User, public_id: str) -> Workload:
    """One workload of the actor's teams, or their own, as `workload_list` gives it."""
    found = _visible(actor).prefetch_related(_live_attempts())
    workload = found.filter(public_id=text_for_lookup(public_id)).first()
    if workload is None:
        raise NotFound("workload_unknown", _("There is no such workload, or you may not see it."))
    return workload


def workload_public_ids(actor: User, keys: Iterable[UUID]) -> dict[UUID, str]:
    """What the workloads with these keys are called in URLs, as far as the actor may see them."""
    found = Workload.objects.filter(workloads_visible_q(actor), pk__in=list(keys))
    return dict(found.values_list("pk", "public_id"))


def _visible(actor: User) -> QuerySet[Workload]:
    workloads = Workload.objects.filter(workloads_visible_q(actor))
    return workloads.select_related(
        "team", "company", "owner", "stop_requested_by", "spec", "verdict", "array"
    )


def _live_attempts() -> Prefetch[str, QuerySet[Attempt], str]:
    replicas = Prefetch("replicas", Replica.objects.select_related("node"))
    live = Attempt.objects.exclude(state=AttemptState.ENDED).select_related("tier").prefetch_related(replicas)
    return Prefetch("attempts", live, to_attr="live_attempts")


def live_attempt(workload: Workload) -> Attempt | None:
    """The placing that a workload of these selectors has now, its tier, replicas and nodes loaded."""
    attempts: list[Attempt] = workload.live_attempts  # type: ignore[attr-defined] # set by the prefetch
    return attempts[0] if attempts else None


def _choices_check(field: str, given: Iterable[str], known: Iterable[str]) -> None:
    allowed = list(known)
    if any(one not in allowed for one in given):
        raise Invalid(
            "choice_unknown",
            _("There is no such choice."),
            field=field,
            remedy=_("Choose from: %(choices)s.") % {"choices": ", ".join(allowed)},
        )


def _visible_check(actor: User, workload: Workload) -> None:
    if not _visible(actor).filter(pk=workload.pk).exists():
        raise NotFound("workload_unknown", _("There is no such workload, or you may not see it."))


def attempt_list(actor: User, workload: Workload) -> QuerySet[Attempt]:
    """All attempts with their replicas, nodes and allocations, the first one first."""
    _visible_check(actor, workload)
    replicas = Replica.objects.select_related("node").prefetch_related("allocations__gpu", "port_leases")
    attempts = workload.attempts.select_related("tier", "workload__spec")
    return attempts.prefetch_related(Prefetch("replicas", replicas)).order_by("number")


def eviction_list(actor: User, workload: Workload) -> QuerySet[Eviction]:
    """What passes took back of it, the newest first. Who gained is for `explanations` to tell or hide."""
    _visible_check(actor, workload)
    return workload.evictions.select_related("gained_by__team", "workload").order_by("-at", "-pk")


def workload_events(actor: User, workload: Workload) -> QuerySet[Event]:
    """What happened to the workload, its case, attempts and replicas, oldest first."""
    _visible_check(actor, workload)
    parts: list[UUID] = list(workload.attempts.values_list("pk", flat=True))
    parts += Replica.objects.filter(attempt__workload=workload).values_list("pk", flat=True)
    parts += Case.objects.filter(subject_type="workload", subject_id=workload.case_subject_id).values_list(
        "pk", flat=True
    )
    others = Event.objects.filter(
        subject_type__in=["attempt", "replica", "case"], subject_id__in=parts, company_id=workload.company_id
    )
    return (subject_events("workload", workload.pk) | others).order_by("created_at", "pk")


# --- The queue ---------------------------------------------------------------------------------------------


_FIRST_TIER = KeyTextTransform("0", KeyTransform("tiers", KeyTransform("request", "spec__document")))


def queue_list(actor: User, tier: str = "") -> QuerySet[Workload]:
    """The actor's waiting workloads, in the order in which the last pass had them in line for their tier.

    `tier`: only those that would take it, because they name it or by what it can do.
    """
    waiting = _visible(actor).filter(state=WorkloadState.WAITING)
    if tier:
        waiting = waiting.filter(_takes_tier_q(text_for_lookup(tier)))
    return waiting.order_by("verdict__position", "-priority", "queued_at", "pk")


_REQUEST = "spec__document__request"


def _takes_tier_q(name: str) -> Q:
    """The condition, on workloads, that a request names the tier or asks for nothing that it has not."""
    takes = Q(**{f"{_REQUEST}__tiers__contains": [name]})
    tier = Tier.objects.filter(name=name).first()
    if tier is None:
        return takes
    wanted = f"{_REQUEST}__capabilities"
    older = [one for one in ARCHITECTURES if is_at_least(tier.architecture, one)]
    able = Q(**{f"{wanted}__labels__contained_by": list(tier.capabilities)})
    for key, condition in (("memory_mib__lte", tier.memory_mib), ("architecture__in", older)):
        name = key.partition("__")[0]
        anything = Q(**{f"{wanted}__{name}": None}) | Q(**{f"{wanted}__{name}__isnull": True})
        able &= anything | Q(**{f"{wanted}__{key}": condition})
    return takes | able


def queue_demand() -> dict[str, int]:
    """Tier → how many workloads of everybody's wait that would take it; two queries."""
    waiting = Workload.objects.filter(state=WorkloadState.WAITING).order_by()
    asked = KeyTransform("request", "spec__document")
    rows = waiting.values_list(KeyTransform("tiers", asked), KeyTransform("capabilities", asked))
    tiers, found = list(Tier.objects.all()), Counter[str]()
    for named, wanted, count in rows.annotate(count=Count("pk")):
        able = tiers_able(Capabilities.model_validate(wanted), tiers) if wanted else ()
        for name in {*(named or ()), *(tier.name for tier in able)}:
            found[name] += count
    return dict(found)


@dataclass(frozen=True)
class LineCount:
    """How many wait for a tier that they named first; `others` are those that the reader may not see."""

    tier: str
    waiting: int
    others: int


def queue_counts(actor: User) -> list[LineCount]:
    """Of everybody's waiting work only how much it is, by tier; two queries."""
    waiting = Workload.objects.filter(state=WorkloadState.WAITING).order_by()
    every = _by_first_tier(waiting)
    own = _by_first_tier(waiting.filter(workloads_visible_q(actor)))
    return [LineCount(tier, count, count - own.get(tier, 0)) for tier, count in sorted(every.items())]


def _by_first_tier(waiting: QuerySet[Workload]) -> dict[str, int]:
    rows = waiting.values_list(_FIRST_TIER).annotate(count=Count("pk"))
    return {tier or "": count for tier, count in rows}


def fair_shares() -> dict[tuple[UUID, UUID], int]:
    """(team, tier) → units by which the last recorded pass went. The caller shows only teams of the reader's."""
    by_tier = SchedulerState.objects.values_list("shares", flat=True).get(pk=1)
    return {
        (UUID(team), UUID(tier)): units for tier, found in by_tier.items() for team, units in found.items()
    }


def last_pass() -> tuple[int, datetime | None]:
    """The number of the scheduler's last pass and when it ended; everybody may know that it works."""
    return SchedulerState.objects.values_list("pass_number", "passed_at").get(pk=1)


def eta(workload_id: UUID) -> Eta:
    """The provider of `core.hooks.eta`: what the last pass worked out."""
    verdict = Verdict.objects.filter(workload=workload_id).first()
    return Eta(verdict.eta, verdict.decided_at) if verdict else Eta(None, clock.now())


# --- Logs --------------------------------------------------------------------------------------------------

LOG_CHUNKS = 200
_STREAMS = ("stdout", "stderr")


@dataclass(frozen=True)
class LogPage:
    """Pieces of one replica's output in the order they came. `cursor` asks for what follows.

    `is_new` says that the cursor asked about another attempt or replica: what was shown before is not this log.
    """

    chunks: tuple[LogChunk, ...]
    cursor: str
    has_more: bool
    is_new: bool
    attempt: Attempt | None
    replica: Replica | None
    as_of: datetime


@dataclass(frozen=True)
class _Place:
    """Attempt, replica and how far each stream was read; written `2.0.1048.17`."""

    attempt: int
    index: int
    offsets: tuple[int, int]

    def __str__(self) -> str:
        return ".".join(map(str, (self.attempt, self.index, *self.offsets)))


def log_read(
    actor: User,
    workload: Workload,
    *,
    after: str = "",
    replica_index: int | None = None,
    attempt_number: int | None = None,
    tail: bool = False,
    limit: int = LOG_CHUNKS,
) -> LogPage:
    """A replica's output from `after` (a page's `cursor`) on; without one from its start, or its end (`tail`).

    Without an attempt it is the latest one, so that a log that is followed goes on with the next attempt.
    """
    _visible_check(actor, workload)
    place = _place(after) if after else None
    index = replica_index if replica_index is not None else place.index if place else 0
    attempts = workload.attempts.order_by("-number")
    attempt = (attempts.filter(number=attempt_number) if attempt_number is not None else attempts).first()
    replica = attempt.replicas.filter(index=index).select_related("node").first() if attempt else None
    if attempt is None or replica is None:
        return LogPage((), after, False, False, attempt, None, clock.now())
    is_same = place is not None and (place.attempt, place.index) == (attempt.number, index)
    offsets = place.offsets if place and is_same else (0, 0)
    size = max(1, min(limit, LOG_CHUNKS))
    chunks: list[LogChunk] = []
    reached, has_more = list(offsets), False
    for stream_number, stream in enumerate(_STREAMS):
        rows = _chunks(replica, stream, offsets[stream_number], size, is_tail=tail and not is_same)
        # An offset is exact within a stream; the moment of arrival only orders the two beside each other.
        has_more = has_more or len(rows) > size
        rows = rows[:size]
        chunks += rows
        if rows:
            reached[stream_number] = rows[-1].offset + rows[-1].size
    chunks.sort(key=lambda chunk: (chunk.received_at, chunk.stream, chunk.offset))
    cursor = str(_Place(attempt.number, index, (reached[0], reached[1])))
    return LogPage(
        tuple(chunks), cursor, has_more, place is not None and not is_same, attempt, replica, clock.now()
    )


def _chunks(replica: Replica, stream: str, offset: int, size: int, *, is_tail: bool) -> list[LogChunk]:
    rows = LogChunk.objects.filter(replica=replica, stream=stream, offset__gte=offset)
    if is_tail:
        return list(reversed(rows.order_by("-offset")[:size]))
    return list(rows.order_by("offset")[: size + 1])


def _place(cursor: str) -> _Place:
    parts = cursor.split(".")
    if len(parts) == 4 and all(part.isascii() and part.isdigit() and len(part) < 16 for part in parts):
        attempt, index, stdout, stderr = map(int, parts)
        return _Place(attempt, index, (stdout, stderr))
    raise Invalid(
        "cursor_invalid",
        _("The cursor is not valid."),
        field="after",
        remedy=_("Take it from the answer before, or leave it out to start anew."),
    )
