"""The timeline of a workload: requested, approved, waited, placed, ran, ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.utils.translation import gettext as _

from gpuyard.web import wording
from gpuyard.web.contexts import Step
from gpuyard.web.pages.rows import nodes_of, stopped_note
from scheduling.models import Attempt, Workload
from scheduling.states import WORKLOAD_ENDED, WorkloadState
from tenants.models import Case

S = WorkloadState


def timeline(
    workload: Workload, case: Case | None, attempts: Sequence[Attempt], limit_s: int | None, as_of: datetime
) -> list[Step]:
    latest = attempts[-1] if attempts else None
    steps = [
        Step(
            label=_("Requested"),
            detail=_("by %s") % workload.owner.username,
            phase="done",
            at=workload.created_at,
        ),
        _approval(workload, case),
    ]
    if workload.queued_at is None:
        return steps + (_todo(workload, limit_s, as_of) if workload.state not in WORKLOAD_ENDED else [])
    steps.append(_waiting(workload, attempts, as_of))
    if latest is not None and workload.state != S.WAITING:
        steps += _placed(workload, latest, limit_s, as_of)
    elif workload.state not in WORKLOAD_ENDED:
        steps += _todo(workload, limit_s, as_of)
    if workload.state in WORKLOAD_ENDED:
        steps.append(_end(workload))
    return steps


def _approval(workload: Workload, case: Case | None) -> Step:
    if workload.state == S.PENDING_APPROVAL:
        rule = _("rule “%s”") % case.rule if case else ""
        return Step(label=_("Needs approval"), detail=rule, phase="now")
    if workload.approved_by_rule:
        detail = _("at once, rule “%s”") % workload.approved_by_rule
        return Step(label=_("Approved"), detail=detail, phase="done")
    decided = [step for step in case.steps.all() if step.decided_by] if case else []
    who = ", ".join(step.decided_by.username for step in decided if step.decided_by)
    if workload.state == S.REJECTED:
        return Step(label=_("Rejected"), detail=_("by %s") % who if who else "", phase="fault")
    if workload.queued_at is None:
        return Step(label=_("Withdrawn"), detail="", phase="fault")
    after = wording.duration((workload.queued_at - workload.created_at).total_seconds())
    detail = _("after %(after)s, by %(who)s") % {"after": after, "who": who} if who else after
    return Step(label=_("Approved"), detail=detail, phase="done")


def _waiting(workload: Workload, attempts: Sequence[Attempt], as_of: datetime) -> Step:
    assert workload.queued_at is not None
    if workload.state == S.WAITING:
        so_far = wording.duration((as_of - workload.queued_at).total_seconds())
        detail = _("%s so far") % so_far
        if attempts:
            detail = _("%(so_far)s, for attempt %(n)s") % {"so_far": so_far, "n": len(attempts) + 1}
        return Step(label=_("Waiting"), detail=detail, phase="now")
    end = attempts[0].created_at if attempts else workload.ended_at or as_of
    waited = wording.duration((end - workload.queued_at).total_seconds())
    return Step(label=_("Waited"), detail=waited, phase="done")


def _placed(workload: Workload, attempt: Attempt, limit_s: int | None, as_of: datetime) -> list[Step]:
    where = ", ".join(nodes_of(attempt))
    if attempt.number > 1:
        where = _("%(where)s, attempt %(n)s") % {"where": where, "n": attempt.number}
    steps = [Step(label=_("Placed"), detail=where, phase="done", at=attempt.created_at)]
    if workload.state == S.STARTING:
        return [
            *steps,
            Step(label=_("Starting"), detail="", phase="now"),
            *_todo(workload, limit_s, as_of)[1:],
        ]
    began = attempt.running_at
    if began is None:
        return steps
    if workload.state in WORKLOAD_ENDED or workload.state == S.STOPPING:
        until = attempt.ended_at or as_of
        ran = wording.duration((until - began).total_seconds())
        steps.append(Step(label=_("Ran"), detail=ran, phase="done"))
        if workload.state == S.STOPPING:
            steps.append(Step(label=_("Stopping"), detail=_stopping(workload), phase="now"))
        return steps
    run = wording.duration((as_of - began).total_seconds())
    if limit_s is None:
        return [*steps, Step(label=_("Running"), detail=_("%s, no limit") % run, phase="now")]
    both = _("%(run)s of %(limit)s") % {"run": run, "limit": wording.duration(limit_s)}
    ends = began + timedelta(seconds=limit_s)
    return [
        *steps,
        Step(label=_("Running"), detail=both, phase="now"),
        Step(label=_("Limit"), detail="", phase="todo", at=ends),
    ]


def _stopping(workload: Workload) -> str:
    return stopped_note(workload) if workload.stop_requested_by else workload.state_reason


def _todo(workload: Workload, limit_s: int | None, as_of: datetime) -> list[Step]:
    verdict = getattr(workload, "verdict", None)
    eta = verdict.eta if verdict and workload.state == S.WAITING else None
    limit = _("%s limit") % wording.duration(limit_s) if limit_s else _("no limit")
    return [
        Step(
            label=_("Placed"), detail=_("about %s") % wording.clock(eta, as_of) if eta else "", phase="todo"
        ),
        Step(label=_("Running"), detail=limit, phase="todo"),
    ]


def _end(workload: Workload) -> Step:
    good = workload.state == S.SUCCEEDED
    detail = "" if workload.exit_code is None else _("exit code %s") % workload.exit_code
    label = str(wording.state_word(workload.state).label)
    return Step(label=label, detail=detail, phase="done" if good else "fault", at=workload.ended_at)
