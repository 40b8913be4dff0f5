"""Workloads as rows: for the list, home, search and the CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpuyard.core.models import User
from gpuyard.core.money import SLOTS_PER_GPU
from gpuyard.fleet.models import Tier
from gpuyard.web import wording
from gpuyard.web.contexts import Money, WorkloadRow
from gpuyard.web.pages.asked import array_chip, array_states
from gpuyard.web.pages.money import charged, pending
from gpuyard.web.pages.why import hopeless_first
from scheduling.asked import asked_text, tiers_text
from scheduling.explanations import Explanation, verdicts_explain
from scheduling.models import Attempt, Workload
from scheduling.sizes import tiers_able
from scheduling.specs import Request, request_of
from scheduling.states import WORKLOAD_ENDED, WorkloadState
from tenants.casework import LIVE
from tenants.inbox import CaseFilters, case_list, case_turn
from tenants.models import Case, CaseState, CaseStep

S = WorkloadState
NEVER_HELD = frozenset({S.PENDING_APPROVAL, S.REJECTED, S.EXPIRED})


@dataclass(frozen=True)
class _Facts:
    as_of: datetime
    charged: Mapping[UUID, Money]
    pending: Mapping[UUID, Money]
    verdicts: Mapping[UUID, Explanation]
    cases: Mapping[UUID, Case]
    arrays: Mapping[UUID | None, str]
    tiers: Mapping[str, Tier]


def workload_rows(
    actor: User, workloads: Sequence[Workload], as_of: datetime, *, is_folded: bool = False
) -> tuple[WorkloadRow, ...]:
    """The rows in the given order, in a fixed number of queries. Folded: one row stands for an array."""
    waiting = [(one, one.verdict) for one in workloads if one.state == S.WAITING and hasattr(one, "verdict")]
    undecided = [one.case_subject_id for one in workloads if one.state == S.PENDING_APPROVAL]
    cases = case_list(actor, CaseFilters(states=LIVE)).filter(
        subject_type="workload", subject_id__in=undecided
    )
    facts = _Facts(
        as_of=as_of,
        charged=charged(workloads),
        pending=pending([one for one in workloads if one.state not in NEVER_HELD]),
        verdicts=verdicts_explain(actor, waiting) if waiting else {},
        cases={case.subject_id: case for case in cases} if undecided else {},
        arrays=array_states(actor, workloads) if is_folded else {},
        tiers=tiers_by_name() if workloads else {},
    )
    return tuple(_row(one, facts) for one in workloads)


def tiers_by_name() -> dict[str, Tier]:
    """One query."""
    return {tier.name: tier for tier in Tier.objects.all()}


def _row(workload: Workload, facts: _Facts) -> WorkloadRow:
    attempt = live_attempt(workload)
    limit_s = limit_of(workload)
    running_at = (attempt.running_at if attempt else None) or workload.started_at
    is_running = workload.state == S.RUNNING and running_at is not None
    run_s = (facts.as_of - running_at).total_seconds() if is_running and running_at else None
    return WorkloadRow(
        id=workload.public_id,
        name=workload.name,
        team=workload.team.name,
        kind=workload.kind,
        state=workload.state,
        state_s=state_s(workload, attempt, facts.as_of),
        gpus=gpu_count(workload, attempt, facts.tiers),
        amount=amount_text(workload, attempt, facts.tiers),
        tier=attempt.tier.name if attempt else tiers_of(workload),
        nodes=nodes_of(attempt),
        owner=workload.owner.username,
        note=wording.sentence(_note(workload, facts, run_s, limit_s)),
        requested_at=workload.created_at,
        price=facts.charged.get(workload.pk),
        pending=facts.pending.get(workload.pk),
        run_s=run_s,
        time_limit_s=limit_s if run_s is not None else None,
        array=array_chip(workload, facts.arrays.get(workload.array_id, "")),
    )


def _note(workload: Workload, facts: _Facts, run_s: float | None, limit_s: int | None) -> str:
    if workload.state == S.PENDING_APPROVAL:
        case = facts.cases.get(workload.case_subject_id)
        return waits_for(case) if case else _("waits for approval")
    if workload.state == S.WAITING:
        known = facts.verdicts.get(workload.pk)
        return waiting_note(known) if known else _("the next pass looks at it within seconds")
    if workload.state == S.STARTING:
        return _("its GPUs are held; the program is being started")
    if workload.state == S.RUNNING:
        return run_note(run_s, limit_s)
    if workload.state == S.STOPPING:
        if workload.stop_requested_by:
            return stopped_note(workload)
        return workload.state_reason or _("finishing, then its GPUs are free")
    return end_note(workload)


def waiting_note(known: Explanation) -> str:
    """The first reason, and how many more there are."""
    if not known.reasons:
        return _("it is its turn next")
    more = len(known.reasons) - 1
    first = hopeless_first(known)[0].text
    if not more:
        return first
    rest = ngettext("%(n)s more reason", "%(n)s more reasons", more) % {"n": more}
    return _("%(first)s; %(rest)s") % {"first": first, "rest": rest}


def run_note(run_s: float | None, limit_s: int | None) -> str:
    if run_s is None:
        return ""
    if limit_s is None:
        return _("%(run)s so far, no limit") % {"run": wording.duration(run_s)}
    return _("%(run)s of %(limit)s") % {"run": wording.duration(run_s), "limit": wording.duration(limit_s)}


def end_note(workload: Workload) -> str:
    """How it ended, and how long it had run."""
    told = workload.state_reason
    if workload.stop_requested_by and workload.state in (S.CANCELLED, S.SUCCEEDED):
        return stopped_note(workload)
    if not told and workload.exit_code is not None:
        told = _("exit code %(code)s") % {"code": workload.exit_code}
    if workload.started_at and workload.ended_at:
        ran = wording.duration((workload.ended_at - workload.started_at).total_seconds())
        return _("%(told)s, ran %(ran)s") % {"told": told, "ran": ran} if told else _("ran %s") % ran
    return told


def stopped_note(workload: Workload) -> str:
    """Who stopped it, after how long, and why: the reason given is theirs, not the program's."""
    who = workload.stop_requested_by.username if workload.stop_requested_by else ""
    if workload.started_at and workload.ended_at:
        ran = wording.duration((workload.ended_at - workload.started_at).total_seconds())
        text = _("stopped by %(who)s after %(ran)s") % {"who": who, "ran": ran}
    elif workload.ended_at:
        text = _("withdrawn by %s before it started") % who
    else:
        text = _("being stopped by %s") % who
    return f"{text}: {workload.state_reason}" if workload.state_reason else text


def waits_for(case: Case) -> str:
    """Who decides next, and by which rule; or that the requester is to answer."""
    rule = _("rule “%(rule)s”") % {"rule": case.rule}
    if case.state == CaseState.SENT_BACK:
        return _("waits for an answer of %(who)s") % {"who": case.requester.username}
    turn = case_turn(case)
    if not turn:
        return rule
    word = _(" or ") if turn[0].needs == "any" else _(" and ")
    who = word.join(step_text(step) for step in turn)
    return _("waits for %(who)s, %(rule)s") % {"who": who, "rule": rule}


def step_text(step: CaseStep) -> str:
    """Who is asked: `a manager of vision`, `one of GPU board`, `a platform admin`."""
    if step.group is not None:
        return _("one of %(group)s") % {"group": step.group.name}
    if step.team is not None:
        return _("a %(role)s of %(team)s") % {"role": step.role, "team": step.team.name}
    return _("a platform admin")


# ───────── what a workload says about itself ─────────


def live_attempt(workload: Workload) -> Attempt | None:
    """As `workload_list` and `workload_get` loaded it."""
    found: list[Attempt] = getattr(workload, "live_attempts", [])
    return found[0] if found else None


def tiers_of(workload: Workload) -> str:
    """`h100-80g or a100-40g`, in the order of preference."""
    assert workload.spec is not None
    return tiers_text(request_of(workload.spec.document))


def asks_of(workload: Workload) -> str:
    """`2 replicas of 8 × h100-80g`."""
    assert workload.spec is not None
    return asked_text(request_of(workload.spec.document))


def limit_of(workload: Workload) -> int | None:
    assert workload.spec is not None
    limit: int | None = workload.spec.document.get("time_limit_s")
    return limit


def gpu_count(workload: Workload, attempt: Attempt | None, tiers: Mapping[str, Tier]) -> int | Decimal:
    """What it holds, or else at most asks for: 0.25 for a share; GPU memory as on the first tier that it takes."""
    assert workload.spec is not None
    request = request_of(workload.spec.document)
    replicas = len(attempt.replicas.all()) if attempt else request.replicas_max
    if not request.is_part:
        return replicas * request.gpus_per_replica
    tier = attempt.tier if attempt else _first_tier(request, tiers)
    slots = request.slots_on(tier.memory_mib) if tier else request.share or SLOTS_PER_GPU
    return Decimal(replicas * min(slots, SLOTS_PER_GPU)) / SLOTS_PER_GPU


def _first_tier(request: Request, tiers: Mapping[str, Tier]) -> Tier | None:
    if request.capabilities is not None:
        return next(iter(tiers_able(request.capabilities, tiers.values())), None)
    return next((tiers[name] for name in request.tiers if name in tiers), None)


def amount_text(workload: Workload, attempt: Attempt | None, tiers: Mapping[str, Tier]) -> str:
    """`8 × h100-80g`, `0.427 × l4-24g, 10 GiB`; GPU memory whose tier is not known yet as it was asked for."""
    assert workload.spec is not None
    request = request_of(workload.spec.document)
    if attempt is None and request.gpu_memory_mib is not None:
        return asked_text(request)
    found = wording.gpus(
        gpu_count(workload, attempt, tiers), attempt.tier.name if attempt else tiers_of(workload)
    )
    if attempt is None or not request.is_part:
        return found
    return f"{found}, {part_memory(request.slots_on(attempt.tier.memory_mib), attempt.tier)}"


def part_memory(slots: int, tier: Tier) -> str:
    """The GPU memory that goes with a part of a card, as its work is told it."""
    return f"{wording.number(round(Decimal(tier.memory_mib * slots // SLOTS_PER_GPU) / 1024, 1))} GiB"


def nodes_of(attempt: Attempt | None) -> tuple[str, ...]:
    if attempt is None:
        return ()
    return tuple(dict.fromkeys(replica.node.name for replica in attempt.replicas.all()))


def state_s(workload: Workload, attempt: Attempt | None, as_of: datetime) -> float | None:
    """For how long it has been in its state, where that is known and still counts."""
    if workload.state in WORKLOAD_ENDED or workload.state == S.STOPPING:
        return None
    since = {
        S.PENDING_APPROVAL: workload.created_at,
        S.WAITING: workload.queued_at,
        S.STARTING: attempt.created_at if attempt else None,
        S.RUNNING: (attempt.running_at if attempt else None) or workload.started_at,
    }[S(workload.state)]
    return (as_of - since).total_seconds() if since else None
