"""The inbox: what waits for the reader's decision, and one request with its facts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpuyard.core import clock
from gpuyard.core.errors import Invalid, NotFound
from gpuyard.core.models import User
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.web import wording
from gpuyard.web.contexts import ApprovalsPage, CaseCard, CaseRow, Fact, Money, Part
from gpuyard.web.pages import rows
from gpuyard.web.pages.money import charged
from scheduling.models import Workload
from scheduling.selectors import WorkloadFilters, quota_checks, tier_supply, workload_get, workload_list
from scheduling.sizes import sizes, tiers_of
from scheduling.specs import Spec, spec_parse
from scheduling.states import WorkloadState
from scheduling.usage import QuotaCheck
from tenants.inbox import case_get, case_list, cases_to_decide, may_decide
from tenants.models import Case, CaseState
from tenants.policies import Facts, facts_from_json

DECIDED_ROWS = 8
HISTORY = timedelta(days=30)


def build(actor: User, picked: str, *, reason: str = "", error: str = "") -> ApprovalsPage:
    as_of = clock.now()
    waiting = list(cases_to_decide(actor))
    decided = list(
        case_list(actor)
        .filter(steps__decided_by__isnull=False)
        .distinct()
        .order_by("-decided_at")[:DECIDED_ROWS]
    )
    case = case_get(actor, picked) if picked else (waiting[0] if waiting else None)
    shown = case.public_id if case else ""
    return ApprovalsPage(
        as_of=as_of,
        summary=_summary(waiting, as_of),
        waiting=[_row(one, actor, shown) for one in waiting],
        decided=[_row(one, actor, shown) for one in decided if one.state != CaseState.OPEN],
        card=_card(actor, case, as_of) if case else None,
        picked=bool(picked),
        reason=reason,
        error=error,
    )


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
    if facts.hours is None:
        return _("%s without a time limit") % asked
    limit = wording.duration(facts.hours * 3600)
    return _("%(asked)s for %(limit)s") % {"asked": asked, "limit": limit}


def price_of(facts: Facts) -> Money | None:
    return Money(facts.estimated_cost, facts.currency) if facts.estimated_cost is not None else None


def _row(case: Case, actor: User, shown: str) -> CaseRow:
    facts = facts_from_json(case.facts)
    return CaseRow(
        id=case.public_id,
        requester=case.requester.username,
        what=what_text(facts),
        team=case.team.name,
        rule=case.rule,
        price=price_of(facts),
        opened_at=case.opened_at,
        selected=case.public_id == shown,
        outcome="" if case.state == CaseState.OPEN else case.get_state_display().lower(),
        decided_by=_decider(case, actor),
        decided_at=case.decided_at,
    )


def _decider(case: Case, actor: User) -> str:
    deciders = [step.decided_by for step in case.steps.all() if step.decided_by]
    if not deciders:
        return ""
    return _("you") if deciders[-1].pk == actor.pk else deciders[-1].username


# ───────── the card ─────────


def _card(actor: User, case: Case, as_of: datetime) -> CaseCard | None:
    try:
        workload = _workload(actor, case)
    except NotFound:
        return None
    assert workload.spec is not None
    spec, facts = spec_parse(workload.spec.document), facts_from_json(case.facts)
    is_open = case.state == CaseState.OPEN
    reasons = [step.reason for step in case.steps.all() if step.reason]
    return CaseCard(
        id=case.public_id,
        requester=case.requester.username,
        title=_("%(who)s asks for %(what)s") % {"who": case.requester.username, "what": what_text(facts)},
        workload_id=workload.public_id,
        workload_name=workload.name,
        team=case.team.name,
        kind=workload.kind,
        opened_at=case.opened_at,
        reason=case.justification,
        facts=_facts(actor, case, workload, spec, facts, as_of),
        rule=case.rule,
        rule_why=_rule_why(facts),
        effect=_effect(case, facts),
        may_decide=is_open and may_decide(actor, case),
        refusal=_refusal(actor, case) if is_open else "",
        command=" ".join(spec.command),
        outcome="" if is_open else case.get_state_display().lower(),
        decided_by=_decider(case, actor),
        decided_at=case.decided_at,
        decision_reason=reasons[-1] if reasons else "",
    )


def _workload(actor: User, case: Case) -> Workload:
    found = Workload.objects.filter(pk=case.subject_id).values_list("public_id", flat=True).first()
    if case.subject_type != "workload" or found is None:
        raise NotFound()
    return workload_get(actor, found)


def _facts(
    actor: User, case: Case, workload: Workload, spec: Spec, facts: Facts, as_of: datetime
) -> list[Fact]:
    try:
        tiers = tiers_of(spec.request)
    except Invalid:  # a tier that is gone meanwhile
        tiers = ()
    checks = quota_checks(case.team, sizes(spec.request, tiers))
    found = [_quota_fact(case, check) for check in checks[:2]]
    found.append(_cost_fact(case, facts))
    for supply in tier_supply(case.team, tiers[:1], spec.request):
        fits = supply.fits_now(spec.request)
        found.append(
            Fact(
                title=_("Start"),
                left=_("now, if approved now") if fits else _("when there is room"),
                right="",
                note=_("%(free)s of %(total)s %(tier)s are free, at most %(block)s on one node.")
                % {
                    "free": supply.free,
                    "total": supply.total,
                    "tier": supply.tier.name,
                    "block": supply.largest_block,
                },
            )
        )
    found.append(_history_fact(actor, case, workload, as_of))
    return found


def _quota_fact(case: Case, check: QuotaCheck) -> Fact:
    used, asked, guaranteed = (n / UNITS_PER_GPU for n in (check.used, check.asked, check.guaranteed))
    limit = None if check.room is None else used + check.room / UNITS_PER_GPU
    inside = check.is_within_guarantee
    words = (
        _("inside the guarantee of %(g)s")
        if inside
        else _("beyond the guarantee of %(g)s: it would run borrowed")
    )
    top = _("no limit") if limit is None else _("limit %s") % wording.number(limit)
    return Fact(
        title=_("GPUs of %(team)s, %(tier)s") % {"team": case.team.name, "tier": check.tier.name},
        left=_("%s now") % wording.number(used),
        right=_("%s with this") % wording.number(used + asked),
        note=wording.sentence(words % {"g": wording.number(guaranteed)}) + f"; {top}.",
        parts=(Part(fill="active", value=used, label=""), Part(fill="accent-2", value=asked, label="")),
        scale=max(limit or 0, guaranteed, used + asked, 1),
        tick=guaranteed or None,
    )


def _cost_fact(case: Case, facts: Facts) -> Fact:
    price = price_of(facts)
    hours = _("no time limit") if facts.hours is None else wording.duration(facts.hours * 3600)
    return Fact(
        title=_("Cost"),
        left=_("at most %s") % wording.money(*price) if price else _("not known"),
        right=hours,
        note=_("Charged to %s for the time GPUs are held.") % case.team.name
        if price
        else _("Without a time limit, or without a price, the total cannot be known."),
    )


def _history_fact(actor: User, case: Case, workload: Workload, as_of: datetime) -> Fact:
    asked = workload_list(actor, WorkloadFilters(owner=case.requester.public_id))
    recent = list(asked.filter(created_at__gte=as_of - HISTORY).exclude(pk=workload.pk)[:500])
    done = sum(one.state == WorkloadState.SUCCEEDED for one in recent)
    failed = sum(one.state == WorkloadState.FAILED for one in recent)
    held = [one for one in recent if one.started_at]
    spent = charged(held)
    totals: dict[str, Money] = {}
    for amount in spent.values():
        before = totals.get(amount.currency)
        totals[amount.currency] = Money(amount.amount + (before.amount if before else 0), amount.currency)
    money = ", ".join(wording.money(*total) for total in totals.values())
    notes = [_("%s failed") % failed if failed else _("none failed")]
    if money:
        notes.append(_("%s charged") % money)
    return Fact(
        title=_("%s, last 30 days") % case.requester.username,
        left=ngettext("%(n)s request", "%(n)s requests", len(recent)) % {"n": len(recent)},
        right=_("%s ran to the end") % done,
        note=wording.sentence("; ".join(notes)) + ".",
    )


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
    if case.requester_id == actor.pk:
        return _("You asked for this yourself; somebody else decides.")
    return _("It %s.") % rows.waits_for(case)
