"""The inbox: what waits for the reader's decision, and one request with its facts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpuyard.core import clock, hooks
from gpuyard.core.models import User
from gpuyard.web import wording
from gpuyard.web.case_contexts import ApprovalsPage, CaseCard, CaseRow, Fact
from gpuyard.web.contexts import Choice, Money
from gpuyard.web.pages import rows
from gpuyard.web.pages.case_facts import workload_facts
from gpuyard.web.pages.case_forms import amend_form, less_inputs
from gpuyard.web.pages.case_thread import steps_lines, thread_lines
from scheduling.models import Workload
from scheduling.specs import Spec, spec_parse
from scheduling.visibility import workloads_named
from tenants.casework import LIVE
from tenants.inbox import CaseFilters, case_get, case_list, cases_to_decide, may_decide
from tenants.models import Case, CaseState
from tenants.policies import Facts, facts_from_json
from tenants.selectors import ADMIN, roles_on

DECIDED_ROWS = 8
MOST_ROWS = 200
SOON = timedelta(hours=2)
SHOWS = ("decide", "mine", "open")
_OF_QUOTA = ("grant", "quota_change")


def build(
    actor: User,
    picked: str,
    *,
    show: str = "",
    kind: str = "",
    reason: str = "",
    error: str = "",
    error_at: str = "decide",
) -> ApprovalsPage:
    as_of = clock.now()
    show = show if show in SHOWS else "decide"
    kind = kind if kind in hooks.case_kinds() else ""
    waiting = _waiting(actor, show, kind)
    decided = list(
        case_list(actor, CaseFilters(kind=kind))
        .filter(steps__decided_by__isnull=False)
        .exclude(state__in=LIVE)
        .distinct()
        .order_by("-decided_at")[:DECIDED_ROWS]
    )
    case = case_get(actor, picked) if picked else (waiting[0] if waiting else None)
    shown = case.public_id if case else ""
    return ApprovalsPage(
        as_of=as_of,
        summary=_summary(waiting, as_of) if show == "decide" else "",
        waiting=[_row(one, actor, shown, as_of) for one in waiting],
        decided=[_row(one, actor, shown, as_of) for one in decided],
        card=_card(actor, case, as_of) if case else None,
        shows=[
            Choice(value=value, label=label, selected=value == show)
            for value, label in zip(SHOWS, (_("For me to decide"), _("My own"), _("All open")), strict=True)
        ],
        kinds=[
            Choice(value=one, label=str(wording.KINDS.get(one, one)), selected=one == kind)
            for one in hooks.case_kinds()
        ],
        picked=bool(picked),
        may_bulk=show == "decide" and len(waiting) > 1,
        reason=reason,
        error=error,
        error_at=error_at if error else "",
    )


def _waiting(actor: User, show: str, kind: str) -> list[Case]:
    """Oldest first."""
    if show == "decide":
        found = cases_to_decide(actor)
        return list((found.filter(facts__kind=kind) if kind else found)[:MOST_ROWS])
    filters = CaseFilters(states=LIVE, kind=kind, mine=show == "mine")
    return list(case_list(actor, filters).order_by("opened_at", "id")[:MOST_ROWS])


def _summary(waiting: Sequence[Case], as_of: datetime) -> str:
    if not waiting:
        return _("Nothing waits for you.")
    oldest = wording.duration((as_of - waiting[0].opened_at).total_seconds())
    count = ngettext("%(n)s request waits for you", "%(n)s requests wait for you", len(waiting))
    return _("%(count)s. The oldest has waited %(oldest)s.") % {
        "count": count % {"n": len(waiting)},
        "oldest": oldest,
    }


def what_text(facts: Facts) -> str:
    asked = facts.asked or wording.gpus(facts.gpu_count, _(" or ").join(facts.tiers))
    if facts.kind in _OF_QUOTA:
        return asked  # it says until when
    if facts.hours is None:
        return _("%s without a time limit") % asked
    limit = wording.duration(facts.hours * 3600)
    return _("%(asked)s for %(limit)s") % {"asked": asked, "limit": limit}


def price_of(facts: Facts) -> Money | None:
    return Money(facts.estimated_cost, facts.currency) if facts.estimated_cost is not None else None


def _row(case: Case, actor: User, shown: str, as_of: datetime) -> CaseRow:
    facts = facts_from_json(case.granted or case.facts)
    is_over = case.state not in LIVE
    due, tone = due_of(case, as_of)
    return CaseRow(
        id=case.public_id,
        requester=case.requester.username,
        what=what_text(facts),
        team=case.team.name,
        rule=case.rule,
        price=price_of(facts),
        opened_at=case.opened_at,
        selected=case.public_id == shown,
        outcome=case.get_state_display().lower() if is_over else "",
        decided_by=_decider(case, actor),
        decided_at=case.decided_at,
        due=due,
        due_tone=tone,
    )


def due_of(case: Case, as_of: datetime) -> tuple[str, str]:
    """In words, and the class of its colour: late is a fault, soon is amber."""
    if case.state == CaseState.SENT_BACK:
        return _("sent back"), "t-claimed"
    if case.state != CaseState.OPEN or case.due_at is None:
        return "", "mut"
    left = case.due_at - as_of
    words = wording.duration(abs(left.total_seconds()))
    if left <= timedelta():
        return _("%s late") % words, "t-fault"
    return _("due in %s") % words, "t-idle" if left < SOON else "mut"


def _decider(case: Case, actor: User) -> str:
    deciders = [step.decided_by for step in case.steps.all() if step.decided_by]
    if not deciders:
        return ""
    return _("you") if deciders[-1].pk == actor.pk else deciders[-1].username


# ───────── the card ─────────


def _card(actor: User, case: Case, as_of: datetime) -> CaseCard:
    workload = _workload(case)
    facts = facts_from_json(case.granted or case.facts)
    spec = spec_parse(workload.spec.document) if workload and workload.spec else None
    is_live, is_mine = case.state in LIVE, case.requester_id == actor.pk
    decides = may_decide(actor, case)
    reasons = [step.reason for step in case.steps.all() if step.reason]
    due, tone = due_of(case, as_of)
    return CaseCard(
        id=case.public_id,
        round=case.round,
        requester=case.requester.username,
        title=_("%(who)s asks for %(what)s") % {"who": case.requester.username, "what": what_text(facts)},
        subject_url=_subject_url(actor, workload),
        subject_name=workload.name if workload else case.subject_label,
        subject_id=workload.public_id if workload else "",
        team=case.team.name,
        kind=facts.kind,
        opened_at=case.opened_at,
        reason=case.justification,
        facts=_facts(actor, case, workload, spec, facts, as_of),
        rule=case.rule,
        rule_why=_rule_why(facts),
        effect=_effect(case, facts),
        may_decide=decides,
        refusal=_refusal(actor, case) if is_live and not decides else "",
        command=" ".join(spec.command) if spec else "",
        steps=steps_lines(case),
        thread=thread_lines(case),
        less=less_inputs(case) if decides else (),
        amend=amend_form(case, workload) if is_mine and is_live else None,
        may_answer=is_mine and case.state == CaseState.SENT_BACK,
        may_withdraw=is_live and (is_mine or bool(roles_on(actor, case.team) & {"manager", ADMIN})),
        due=due,
        due_tone=tone,
        expires_at=case.expires_at if is_live else None,
        outcome="" if is_live else case.get_state_display().lower(),
        decided_by=_decider(case, actor),
        decided_at=case.decided_at,
        decision_reason=reasons[-1] if reasons else "",
    )


def _workload(case: Case) -> Workload | None:
    """Whoever may see the case may see what it asks for; None: it asks for something else."""
    if case.subject_type != "workload":
        return None
    return Workload.objects.select_related("spec", "team").filter(pk=case.subject_id).first()


def _subject_url(actor: User, workload: Workload | None) -> str:
    if workload is None or not workloads_named(actor, [workload.public_id]):
        return ""
    return reverse("web:workload", args=[workload.public_id])


def _facts(
    actor: User, case: Case, workload: Workload | None, spec: Spec | None, facts: Facts, as_of: datetime
) -> list[Fact]:
    if workload is not None and spec is not None:
        return workload_facts(actor, case, workload, spec, facts, as_of)
    found = hooks.case_handlers.get(case.subject_type).card_facts(subject_id=case.subject_id)
    return [Fact(title=one.label, left=one.value, right="", note="") for one in found]


def _rule_why(facts: Facts) -> str:
    gpus = ngettext("%(n)s GPU", "%(n)s GPUs", facts.gpu_count) % {"n": facts.gpu_count}
    parts = [_("it asks for %s") % gpus]
    parts.append(
        _("without a time limit")
        if facts.hours is None
        else _("for %s") % wording.duration(facts.hours * 3600)
    )
    if facts.over_quota:
        parts.append(_("beyond the team’s guarantee"))
    return ", ".join(parts)


def _effect(case: Case, facts: Facts) -> str:
    if facts.kind in _OF_QUOTA:
        return _("Approving takes it at once from what %s has left to give.") % case.team.name
    price = price_of(facts)
    queued = _("Approving puts it in line for the next pass.")
    if price is None:
        return queued
    cost = _("At most %(price)s are charged to %(team)s.") % {
        "price": wording.money(*price),
        "team": case.team.name,
    }
    return f"{queued} {cost}"


def _refusal(actor: User, case: Case) -> str:
    if case.state == CaseState.SENT_BACK:
        return _("It %s.") % rows.waits_for(case)
    if case.requester_id == actor.pk:
        return _("You asked for this yourself; somebody else decides.")
    return _("It %s.") % rows.waits_for(case)
