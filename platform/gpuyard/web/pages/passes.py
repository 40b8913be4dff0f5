"""What the scheduler's passes did and how long they took; for platform admins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from django.core.paginator import Paginator
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.web import wording
from gpuyard.web.contexts import Pager
from gpuyard.web.scheduler_contexts import PassesPage, PassPage, PassRow, PassWork
from scheduling.explanations import attempts_reasons, evictions_texts
from scheduling.history import MOST_SHOWN, pass_decisions, pass_get, pass_list
from scheduling.models import Attempt, Eviction, PassRecord

PAGE_ROWS, CSV_ROWS = 50, 10_000
CSV_HEADER = (
    "pass", "at", "started", "claimed", "stopped", "grown", "waiting", "load_ms", "plan_ms", "commit_ms",
)  # fmt: skip


@dataclass(frozen=True)
class Asked:
    only_stops: bool
    page: int


def asked_of(query: Mapping[str, str]) -> Asked:
    number = query.get("page", "")
    page = int(number) if number.isascii() and number.isdigit() and len(number) < 8 else 1
    return Asked(query.get("show") == "stops", page)


def build(actor: User, asked: Asked) -> PassesPage:
    paginator = Paginator(pass_list(actor, with_stops=asked.only_stops), PAGE_ROWS)
    shown = paginator.get_page(asked.page)
    rows = [_row(record) for record in shown.object_list]
    return PassesPage(
        as_of=clock.now(),
        summary=_summary(rows),
        rows=rows,
        slowest_ms=max((row.duration_ms for row in rows), default=0),
        only_stops=asked.only_stops,
        pager=Pager(
            total=paginator.count,
            first=shown.start_index(),
            last=shown.end_index(),
            previous_page=shown.previous_page_number() if shown.has_previous() else None,
            next_page=shown.next_page_number() if shown.has_next() else None,
        ),
    )


def _summary(rows: list[PassRow]) -> str:
    if not rows:
        return _("No pass has changed anything yet.")
    middle = sorted(row.duration_ms for row in rows)[len(rows) // 2]
    return _("Half of the passes shown took %(ms)s ms or less; the slowest took %(most)s ms.") % {
        "ms": wording.number(middle),
        "most": wording.number(max(row.duration_ms for row in rows)),
    }


def csv_rows(actor: User, asked: Asked) -> Iterator[tuple[object, ...]]:
    for one in pass_list(actor, with_stops=asked.only_stops)[:CSV_ROWS]:
        at = one.started_at.isoformat(timespec="milliseconds")
        times = (round(one.load_ms, 1), round(one.plan_ms, 1), round(one.commit_ms, 1))
        yield one.number, at, one.started, one.claimed, one.stopped, one.grown, one.waiting, *times


def _row(record: PassRecord) -> PassRow:
    return PassRow(
        number=record.number,
        at=record.started_at,
        load_ms=record.load_ms,
        plan_ms=record.plan_ms,
        commit_ms=record.commit_ms,
        starts=record.started,
        claims=record.claimed,
        stops=record.stopped,
        grown=record.grown,
        waiting=record.waiting,
    )


def latest(actor: User, most: int) -> list[PassRow]:
    """The last few, for the queue page."""
    return [_row(record) for record in pass_list(actor)[:most]]


# ───────── one pass ─────────


def build_one(actor: User, number: int) -> PassPage:
    record = pass_get(actor, number)
    made = pass_decisions(actor, record)
    reasons = attempts_reasons([*made.starts, *made.claims]) | evictions_texts(actor, made.stops)
    shown = len(made.starts) + len(made.claims) + len(made.stops)
    return PassPage(
        as_of=clock.now(),
        row=_row(record),
        starts=[_start(one, reasons[one.pk]) for one in made.starts],
        claims=[_start(one, reasons[one.pk]) for one in made.claims],
        stops=[_stop(one, reasons[one.pk]) for one in made.stops],
        refused=[(row["workload"], refusal(row["reason"])) for row in record.refused[:MOST_SHOWN]],
        more=max(0, record.started + record.claimed + record.stopped - shown),
        snapshot=_size(record.snapshot_bytes) if record.snapshot is not None else "",
        engine=record.engine_version,
        digest=record.plan_digest,
        policy=[(name, _value(value)) for name, value in (record.policy or {}).items()],
    )


def refusal(code: str) -> str:
    """Why a planned start was not stored, in words; an unknown code says itself."""
    return {
        "node_changed": _("its node was cordoned, drained or changed meanwhile"),
        "node_full": _("its node has not enough CPU or memory left"),
        "no_free_port": _("its node has no free port left"),
        "gpu_taken": _("somebody else got one of its GPUs first"),
        "no_longer_waiting": _("it no longer waits"),
        "no_longer_running": _("it no longer runs"),
        "evictions_frozen": _("too many nodes are silent: nothing is taken back"),
        "move_incomplete": _("not all of what was to move had a new place"),
    }.get(code, code.replace("_", " "))


def _start(attempt: Attempt, reason: str) -> PassWork:
    workload = attempt.workload
    nodes = list(dict.fromkeys(replica.node.name for replica in attempt.replicas.all()))
    where = ", ".join(nodes[:4]) + (_(" and %s more") % (len(nodes) - 4) if len(nodes) > 4 else "")
    return PassWork(
        id=workload.public_id,
        name=workload.name,
        team=workload.team.name,
        what=_("%(tier)s on %(nodes)s") % {"tier": attempt.tier.name, "nodes": where},
        reason=reason,
    )


def _stop(eviction: Eviction, reason: str) -> PassWork:
    workload, gainer = eviction.workload, eviction.gained_by
    return PassWork(
        id=workload.public_id,
        name=workload.name,
        team=workload.team.name,
        what=smaller(eviction) or _("all of it"),
        reason=reason,
        for_id=gainer.public_id if gainer else "",
        for_name=gainer.name if gainer else "",
    )


def smaller(eviction: Eviction) -> str:
    """How much of an elastic workload was taken; empty for all of it."""
    if eviction.replicas is None:
        return ""
    count = len(eviction.replicas)
    return ngettext("%(n)s replica", "%(n)s replicas", count) % {"n": count}


def _size(count: int) -> str:
    kilobytes = Decimal(count) / 1000
    if kilobytes < 1000:
        return _("%s kB") % wording.number(round(kilobytes, 1))
    return _("%s MB") % wording.number(round(kilobytes / 1000, 1))


def _value(value: object) -> str:
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    if value is None:
        return wording.NOTHING
    if isinstance(value, int):
        return wording.number(value)
    return (
        ", ".join(map(str, value))
        if isinstance(value, Iterable) and not isinstance(value, str)
        else str(value)
    )
