"""What owners are told of their workloads, made of the log: the pass and the agents' reports do nothing for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from gpuyard.audit.models import Event
from gpuyard.notify.events import APP, EMAIL, HOOK, EventType
from gpuyard.notify.following import Teller
from gpuyard.notify.services import Notice
from scheduling.models import Workload
from scheduling.outcomes import EndReason

STARTED = EventType("workload.started", gettext_lazy("Your work starts"), frozenset({HOOK}))
ENDED = EventType("workload.ended", gettext_lazy("Your work ends well"))
FAILED = EventType(
    "workload.failed", gettext_lazy("Your work fails"), frozenset({APP, EMAIL, HOOK}), is_urgent=True
)
EVICTED = EventType(
    "workload.evicted", gettext_lazy("Your work's GPUs are taken back"), frozenset({APP, EMAIL, HOOK})
)
STOPPED = EventType(
    "workload.stopped", gettext_lazy("Somebody else stops your work"), frozenset({APP, EMAIL, HOOK})
)
CUT_OFF = EventType("workload.cut_off", gettext_lazy("A node of your work falls silent"))
EVENTS = (STARTED, ENDED, FAILED, EVICTED, STOPPED, CUT_OFF)

_BY_ACTION = {
    "workload.run": STARTED,
    "workload.succeed": ENDED,
    "workload.fail": FAILED,
    "workload.cancel": STOPPED,
    "workload.node_lost": CUT_OFF,
}


def _kind_of(event: Event) -> EventType | None:
    """What an event is news of; None: of nothing."""
    if event.action == "workload.stop":
        why = (event.new or {}).get("why")
        # The pass says for what; all else is the reason of an end, and the end itself is the news.
        return EVICTED if why and why not in EndReason.values else None
    return _BY_ACTION[event.action]


def _tell(events: Sequence[Event]) -> Iterable[Notice]:
    kinds = [(event, kind) for event in events if event.subject_id and (kind := _kind_of(event))]
    rows = Workload.objects.select_related("team").in_bulk({event.subject_id for event, _kind in kinds})
    for event, kind in kinds:
        workload = rows.get(event.subject_id or "")
        # Nobody is told what they have just done themselves.
        if workload is not None and event.actor_id != workload.owner_id:
            yield _notice(event, kind, workload)


def _notice(event: Event, kind: EventType, workload: Workload) -> Notice:
    told: dict[str, object] = event.new or {}
    facts = [(_("Why"), event.reason)] if event.reason else []
    if kind is FAILED and told.get("exit_code") is not None:
        facts.append((_("Exit code"), str(told["exit_code"])))
    if kind is STOPPED:
        facts.append((_("By"), event.actor_label))
    if kind is CUT_OFF:
        facts.append((_("Node"), str(told.get("node", ""))))
    path: tuple[UUID, ...] = tuple(workload.team.path)
    return Notice(
        recipients=(workload.owner_id,),
        event=kind.key,
        subject=_subject(kind) % {"name": workload.name},
        facts=tuple(facts),
        url=f"/workloads/{workload.public_id}",
        dedupe_key=f"event:{event.pk}",
        about=f"workload:{workload.pk}",
        company_id=workload.company_id,
        team_path=path,
    )


def _subject(kind: EventType) -> str:
    return {
        STARTED.key: _("%(name)s runs"),
        ENDED.key: _("%(name)s has ended well"),
        FAILED.key: _("%(name)s has failed"),
        EVICTED.key: _("%(name)s: its GPUs are taken back"),
        STOPPED.key: _("%(name)s was stopped"),
        CUT_OFF.key: _("%(name)s: a node of it is silent"),
    }[kind.key]


TELLER = Teller(frozenset({*_BY_ACTION, "workload.stop"}), _tell)
