"""How the way to reserved starts clears: a line for each group of GPUs, who is there until when, and who comes then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpuyard.core.models import User
from gpuyard.web import wording
from gpuyard.web.scheduler_contexts import Clearing, ClearingBar, ClearingRow, ClearingTick
from scheduling.models import Workload
from scheduling.reservations import Lane, Stay, reserved_starts

MOST_NODES = 12
LEAST_SPAN = timedelta(minutes=30)
STEPS_S = (300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000)
MOST_TICKS = 5


def build(
    actor: User, waiting: Iterable[Workload], as_of: datetime, *, most_nodes: int = MOST_NODES
) -> Clearing | None:
    """None where nothing is reserved."""
    found = reserved_starts(actor, waiting, most_nodes=most_nodes)
    if not found.lanes:
        return None
    axis = _Axis(as_of, [stay for lane in found.lanes for stay in lane.stays])
    return Clearing(
        ticks=axis.ticks(),
        now=wording.clock(as_of, as_of),
        rows=[_row(lane, axis) for lane in found.lanes],
        last=_last(found.lanes, as_of),
        more_nodes=found.more_nodes,
    )


class _Axis:
    """From now to a while after the last reserved start; places are in percent."""

    def __init__(self, as_of: datetime, stays: Sequence[Stay]) -> None:
        last = max((stay.since for stay in stays if stay.is_reserved and stay.since), default=as_of)
        self.as_of = as_of.replace(second=0, microsecond=0)  # so that the picture moves once a minute
        self.span = max(LEAST_SPAN, (last - self.as_of) * 1.6)

    def place(self, moment: datetime | None, otherwise: float) -> float:
        if moment is None:
            return otherwise
        return min(100.0, max(0.0, 100 * ((moment - self.as_of) / self.span)))

    def ticks(self) -> list[ClearingTick]:
        """Round local times; none so near the left edge that it would cover "now"."""
        step_s = next((s for s in STEPS_S if self.span.total_seconds() / s <= MOST_TICKS), STEPS_S[-1])
        local = timezone.localtime(self.as_of)
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
        first = int((local - midnight).total_seconds() // step_s) + 1
        moments = [midnight + timedelta(seconds=step_s * (first + place)) for place in range(MOST_TICKS + 1)]
        places = [(self.place(moment, 0), moment) for moment in moments]
        shown = [(place, moment) for place, moment in places if 16 < place < 92]
        return [
            ClearingTick(
                x=f"{place:.2f}",
                text=wording.clock(moment, self.as_of),
                is_minor=place < 45 or (len(shown) - number) % 2 == 0,
            )
            for number, (place, moment) in enumerate(shown)
        ]


def _row(lane: Lane, axis: _Axis) -> ClearingRow:
    bars = [_bar(stay, axis) for stay in lane.stays]
    where = wording.indexes(lane.gpus)
    part = _("gpu %s") if lane.count == len(lane.gpus) else _("%(n)s of gpu %(all)s")
    gpus = part % where if lane.count == len(lane.gpus) else part % {"n": lane.count, "all": where}
    return ClearingRow(node=lane.node_name, gpus=gpus, count=lane.count, tier=lane.tier.name, bars=bars)


def _bar(stay: Stay, axis: _Axis) -> ClearingBar:
    start, end = axis.place(stay.since, 0), axis.place(stay.until, 100)
    return ClearingBar(
        fill="claimed" if stay.is_reserved else "stop" if stay.is_leaving else "active",
        x=f"{start:.2f}",
        width=f"{max(0.6, end - start - 0.5):.2f}",
        name=_name(stay),
        url=reverse("web:workload", args=[stay.workload.public_id]) if stay.workload else "",
        since=stay.since,
        until=stay.until,
        note=_note(stay),
    )


def _name(stay: Stay) -> str:
    if stay.workload is not None:
        return stay.workload.name
    if stay.count > 1:
        return _("%(n)s workloads that share it") % {"n": stay.count}
    return _("another team")


def _note(stay: Stay) -> str:
    if stay.is_reserved:
        return _("reserved")
    if stay.is_leaving:
        return _("is leaving")
    if stay.until is None:
        return _("no time limit")
    return _("by its usual run time") if stay.is_estimate else _("by its time limit")


def _last(lanes: Sequence[Lane], as_of: datetime) -> str:
    """Whom the first of the starts waits for longest: what is gone by then and ends last."""
    there = [(lane, stay) for lane in lanes for stay in lane.stays if not stay.is_reserved and stay.until]
    if not there:
        return _("All of these GPUs are free by then.")
    lane, stay = max(there, key=lambda pair: pair[1].until or as_of)
    assert stay.until is not None
    count = sum(
        one.count
        for one in lanes
        if any(other.key == stay.key and other.until == stay.until for other in one.stays)
    )
    text = ngettext(
        "The last to leave is %(who)s on %(node)s, %(n)s GPU by %(time)s.",
        "The last to leave is %(who)s on %(node)s, %(n)s GPUs by %(time)s.",
        count,
    )
    told = {"who": _name(stay), "node": lane.node_name, "n": count}
    return text % (told | {"time": wording.clock(stay.until, as_of)})
