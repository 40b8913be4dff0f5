"""The page of one workload: what happens to it, why, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from math import ceil
from typing import cast

from django.urls import reverse
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from billing.selectors import WorkloadCost, workload_cost
from gpuyard.audit.models import Event
from gpuyard.core import clock
from gpuyard.core.errors import NotFound
from gpuyard.core.models import User
from gpuyard.core.money import SLOTS_PER_GPU, UNITS_PER_GPU
from gpuyard.web import wording
from gpuyard.web.contexts import Money, Tone
from gpuyard.web.pages import happenings, logs, rows, steps, why
from gpuyard.web.pages.asked import array_chip, request_lines
from gpuyard.web.workload_contexts import (
    CostCard,
    CostPart,
    Decision,
    EvictionView,
    LogView,
    PlacedNode,
    ReplicaRow,
    StopQuestion,
    VerdictCard,
    WorkloadPage,
)
from scheduling.asked import asked_text, number
from scheduling.models import Allocation, Attempt, Replica, Workload
from scheduling.selectors import attempt_list, attempt_reasons, workload_events
from scheduling.sizes import sizes, tiers_of
from scheduling.specs import Request, Spec, spec_parse
from scheduling.states import WORKLOAD_ENDED, AttemptState, ReplicaState, WorkloadState
from tenants.approvers import people_asked
from tenants.inbox import case_of, case_turn
from tenants.models import Case, Role
from tenants.selectors import ADMIN, roles_on

S = WorkloadState
OVERVIEW_LINES, LOG_LINES, MOST_APPROVERS = 14, 500, 5
BUCKET_FILLS = {"active": "active", "idle_held": "idle", "transition": "stop", "unknown": "unknown"}


@dataclass(frozen=True)
class _Read:
    """Everything the page is built from, read once."""

    actor: User
    workload: Workload
    spec: Spec
    attempts: Sequence[Attempt]
    case: Case | None
    as_of: datetime

    @property
    def latest(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def live(self) -> Attempt | None:
        return self.latest if self.latest and self.latest.state != AttemptState.ENDED else None


def build(actor: User, workload: Workload, *, tab: str, rank: str) -> WorkloadPage:
    assert workload.spec is not None
    read = _Read(
        actor=actor,
        workload=workload,
        spec=spec_parse(workload.spec.document),
        attempts=list(attempt_list(actor, workload)),
        case=case_of(actor, "workload", workload.case_subject_id),
        as_of=clock.now(),
    )
    events = list(workload_events(actor, workload))
    verdict = why.verdict_card(actor, workload) if workload.state == S.WAITING else None
    taken = why.evictions(actor, workload) if read.latest else []
    decisions = _decisions(read, verdict, taken, events)
    ended, tone = _ended(read)
    return WorkloadPage(
        as_of=read.as_of,
        id=workload.public_id,
        name=workload.name,
        team=workload.team.name,
        team_id=workload.team.public_id,
        kind=workload.kind,
        state=workload.state,
        state_s=rows.state_s(workload, read.live, read.as_of),
        amount=rows.amount_text(workload, read.live, rows.tiers_by_name()),
        replicas=len(read.live.replicas.all()) if read.live else read.spec.request.replicas_max,
        owner=workload.owner.username,
        borrowed=read.live.borrowed if read.live else None,
        placed=_placed(read.live),
        steps=steps.timeline(workload, read.case, read.attempts, read.spec.time_limit_s, read.as_of),
        tab=tab,
        counts={"decisions": len(decisions), "events": len(events)},
        spec=[*_spec_lines(read.spec), *request_lines(actor, read.spec.request, read.as_of)],
        array=array_chip(workload),
        revision=workload.spec.revision,
        ended=ended,
        ended_tone=tone,
        replica_rows=tuple(_replica_row(one, read.as_of) for one in read.latest.replicas.all())
        if read.latest
        else (),
        verdict=verdict,
        why=why.why_here(actor, read.latest) if read.latest else None,
        evictions=taken,
        log=_log(read, tab, rank),
        cost=_cost(read),
        decisions=decisions,
        events=[happenings.event_row(event) for event in events],
        stop=_stop(read),
        case_url=_case_url(read),
        approval=_approval(read),
        approvers=_approvers(read),
        approval_since=read.case.opened_at if read.case else None,
    )


def _case_url(read: _Read) -> str:
    if read.case is None or read.case.decided_at is not None:
        return ""
    return f"{reverse('web:approvals')}?case={read.case.public_id}"


def _approval(read: _Read) -> str:
    if read.case is None or read.workload.state != S.PENDING_APPROVAL:
        return ""
    return capfirst(rows.waits_for(read.case))


def _approvers(read: _Read) -> str:
    """Whom the requester may ask: those who may decide the next step, the nearest first."""
    case = read.case
    if case is None or read.workload.state != S.PENDING_APPROVAL:
        return ""
    known = people_asked(case_turn(case))
    names = ", ".join(one.username for one in known[:MOST_APPROVERS])
    more = len(known) - MOST_APPROVERS
    return _("%(names)s and %(n)s more") % {"names": names, "n": more} if more > 0 else names


def _log(read: _Read, tab: str, rank: str) -> LogView | None:
    if not read.attempts and tab != "log":
        return None
    most = LOG_LINES if tab == "log" else OVERVIEW_LINES
    return logs.tail(read.actor, read.workload, most=most, rank=rank)


def _ended(read: _Read) -> tuple[str, Tone]:
    workload = read.workload
    if workload.state not in WORKLOAD_ENDED:
        return "", "info"
    tones: dict[str, Tone] = {S.SUCCEEDED: "ok", S.FAILED: "bad", S.REJECTED: "bad"}
    note = rows.end_note(workload)
    label = str(wording.state_word(workload.state).label)
    # a note that ends with somebody's own sentence has its full stop
    text = f"{label}: {note}".rstrip(".") + "." if note else f"{label}."
    return text, tones.get(workload.state, "info")


# ───────── what was asked for, and where it stands ─────────


def _spec_lines(spec: Spec) -> list[tuple[str, str]]:
    request = spec.request
    lines = [
        (_("Command"), " ".join(spec.command)),
        (_("GPUs"), asked_text(request)),
        (
            _("CPU, memory"),
            _machine_share(request),
        ),
        (_("Time limit"), wording.duration(spec.time_limit_s) if spec.time_limit_s else _("none")),
    ]
    optional = [
        (_("Working folder"), spec.working_dir),
        (_("Checkpoints"), spec.checkpoint_dir),
        # the values may be secrets: who may see them comes with secrets
        (_("Environment"), ", ".join(spec.env)),
        (_("Ports"), ", ".join(f"{port.name} {port.health_path or ''}".strip() for port in spec.ports)),
    ]
    return lines + [(label, value) for label, value in optional if value]


def _machine_share(request: Request) -> str:
    cpu = Decimal(request.cpu_m) / 1000
    cores = ngettext("%(n)s core", "%(n)s cores", 1 if cpu == 1 else 2) % {"n": wording.number(cpu)}
    memory = wording.number(round(Decimal(request.memory_mib) / 1024, 2))
    both = _("%(cores)s, %(memory)s GiB") % {"cores": cores, "memory": memory}
    return both if request.replicas_max == 1 else _("%s for each replica") % both


def _placed(attempt: Attempt | None) -> list[PlacedNode]:
    if attempt is None:
        return []
    by_node: dict[str, list[Allocation]] = {}
    for replica in attempt.replicas.all():
        by_node.setdefault(replica.node.name, []).extend(replica.allocations.all())
    return [PlacedNode(name=name, gpus=gpus_text(found)) for name, found in by_node.items()]


def gpus_text(found: Iterable[Allocation]) -> str:
    """`gpu 0-3`; `0.25 of gpu 2` for parts of cards."""
    whole, parts = [], []
    for row in found:
        if row.scope is None:
            whole.append(row.gpu.index)
        else:
            slots = sum(piece.upper - piece.lower for piece in row.slots)
            told = {"part": number(slots, SLOTS_PER_GPU), "gpu": row.gpu.index}
            parts.append(_("%(part)s of gpu %(gpu)s") % told)
    return ", ".join([*([_("gpu %s") % wording.indexes(whole)] if whole else []), *parts])


def _replica_row(replica: Replica, as_of: datetime) -> ReplicaRow:
    ports = ", ".join(
        f"{replica.node.advertise_address}:{lease.port} {lease.name}" for lease in replica.port_leases.all()
    )
    end = replica.ended_at or as_of
    return ReplicaRow(
        index=replica.index,
        state=_replica_state(replica),
        node=replica.node.name,
        gpus=gpus_text(replica.allocations.all()),
        ports=ports,
        exit=_exit_text(replica),
        run_s=(end - replica.running_at).total_seconds() if replica.running_at else None,
    )


def _replica_state(replica: Replica) -> str:
    if replica.state != ReplicaState.EXITED:
        return replica.state
    if replica.exit_reason == "exited" and replica.exit_code == 0:
        return "succeeded"
    return "cancelled" if replica.exit_reason in ("stopped", "lease", "node_lost") else "failed"


def _exit_text(replica: Replica) -> str:
    if replica.state != ReplicaState.EXITED:
        if replica.healthy is None:
            return ""
        return _("healthy") if replica.healthy else _("not healthy")
    reason = {"exited": "", "signal": _("signal"), "time_limit": _("time limit")}.get(
        replica.exit_reason, replica.exit_reason.replace("_", " ")
    )
    code = "" if replica.exit_code is None else str(replica.exit_code)
    return ", ".join(filter(None, [code, reason]))


# ───────── what was decided, and what happened ─────────


def _decisions(
    read: _Read, verdict: VerdictCard | None, taken: Sequence[EvictionView], events: Sequence[Event]
) -> list[Decision]:
    found = [*_approvals(read), *_grown(events)]
    found += [
        Decision(
            at=one.at,
            what=_("Made smaller") if one.smaller else _("Taken back"),
            by=_("pass %s") % wording.number(one.pass_number),
            reason=one.text,
        )
        for one in taken
    ]
    for attempt in read.attempts:
        is_claim = attempt.state == AttemptState.CLAIMING
        words = _("Promised GPUs, attempt %s") if is_claim else _("Started, attempt %s")
        found.append(
            Decision(
                at=attempt.created_at,
                what=words % attempt.number,
                by=_("pass %s") % wording.number(attempt.pass_number),
                reason=attempt_reasons(attempt),
            )
        )
    if verdict is not None:
        found.append(
            Decision(
                at=verdict.pass_at,
                what=_("Waits"),
                by=_("pass %s") % wording.number(verdict.pass_number),
                reason="; ".join(blocker.sentence for blocker in verdict.blockers),
            )
        )
    return sorted(found, key=lambda one: one.at)


def _grown(events: Sequence[Event]) -> list[Decision]:
    """The replicas that it got while it ran."""
    return [
        Decision(at=event.created_at, what=_("Grew"), by=event.actor_label, reason=event.reason)
        for event in events
        if event.action == "workload.grow"
    ]


def _approvals(read: _Read) -> list[Decision]:
    case = read.case
    if case is None or case.decided_at is None:
        return []
    decided = [step for step in case.steps.all() if step.decided_by is not None and step.decided_at]
    if not decided and case.state == "approved":
        rule = _("rule “%s”") % case.rule
        return [
            Decision(at=case.decided_at, what=_("Approved"), by=rule, reason=_("It needs nobody’s approval."))
        ]
    return [
        Decision(
            at=cast(datetime, step.decided_at),
            what=step.get_state_display(),
            by=cast(User, step.decided_by).username,
            reason=step.reason,
        )
        for step in decided
    ]


# ───────── money ─────────


def _cost(read: _Read) -> CostCard | None:
    if not read.attempts:
        return None
    try:
        known = workload_cost(read.actor, read.workload)
    except NotFound:  # one's own workload in a team that one has left
        return None
    currency = known.currency
    estimate = known.estimate
    return CostCard(
        so_far=Money(known.price, currency, known.has_pending or any(one.has_price for one in known.buckets)),
        at_most=Money(estimate.total, currency) if estimate and estimate.total is not None else None,
        cost=Money(known.cost, currency, known.has_cost) if known.cost is not None else None,
        gpu_hours=known.gpu_hours,
        rate=_rate(read, known),
        parts=_cost_parts(known),
    )


def _cost_parts(known: WorkloadCost) -> list[CostPart]:
    parts = [
        CostPart(
            fill=BUCKET_FILLS.get(bucket.bucket, "ink"),
            label=bucket.label,
            price=Money(bucket.price, known.currency, bucket.has_price),
            hours=bucket.gpu_hours,
        )
        for bucket in known.buckets
    ]
    if known.pending_gpu_hours:
        pending = Money(known.pending, known.currency, known.has_pending)
        label = _("held, not metered yet")
        parts.append(CostPart(fill="claimed", label=label, price=pending, hours=known.pending_gpu_hours))
    return parts


def _rate(read: _Read, known: WorkloadCost) -> str:
    if known.estimate is None:
        return _("No price is set for it.")
    size = sizes(read.spec.request, tiers_of(read.spec.request))
    gpus = Decimal(max(one.most for one in size)) / UNITS_PER_GPU
    each = wording.money(known.estimate.hourly / gpus, known.currency)
    return _("%(gpus)s × %(each)s an hour") % {"gpus": wording.number(gpus), "each": each}


# ───────── stopping ─────────


def _stop(read: _Read) -> StopQuestion | None:
    workload = read.workload
    if workload.state in WORKLOAD_ENDED or workload.state == S.STOPPING:
        return None
    roles = roles_on(read.actor, workload.team)
    if workload.owner_id != read.actor.pk and roles.isdisjoint({Role.MANAGER, ADMIN}):
        return None
    undo = _("This cannot be undone. “Again” asks for the same.")
    if workload.state in (S.PENDING_APPROVAL, S.WAITING):
        return StopQuestion(
            verb=_("Withdraw"),
            what=_("It leaves the queue and does not start."),
            lost=_("It has cost nothing so far."),
            undo=undo,
        )
    gpus = rows.gpu_count(workload, read.live, {})
    held = ngettext("%(n)s GPU is", "%(n)s GPUs are", ceil(gpus)) % {"n": wording.number(gpus)}
    return StopQuestion(
        verb=_("Stop"),
        what=_("The program is told to end and has 10 s to finish; then %(held)s free.") % {"held": held},
        lost=_stop_loss(read),
        undo=undo,
    )


def _stop_loss(read: _Read) -> str:
    folder = read.spec.checkpoint_dir
    if not folder:
        return _("It has no checkpoint folder: whatever it has not saved itself is lost.")
    written = (
        [one.checkpoint_at for one in read.live.replicas.all() if one.checkpoint_at] if read.live else []
    )
    if not written:
        return _("Work since its last checkpoint in %s is lost.") % folder
    told = {"folder": folder, "ago": wording.ago(max(written), read.as_of)}
    return _("Work since its last checkpoint in %(folder)s is lost; that was written %(ago)s.") % told
