"""The facts about a request for GPUs on an approver's card."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpuyard.core.errors import Invalid
from gpuyard.core.models import User
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.web import wording
from gpuyard.web.case_contexts import Fact
from gpuyard.web.contexts import Money, Part
from gpuyard.web.pages.money import charged
from scheduling.models import Workload
from scheduling.selectors import WorkloadFilters, quota_checks, tier_supply, workload_list
from scheduling.sizes import sizes, tiers_of
from scheduling.specs import Spec
from scheduling.states import WorkloadState
from scheduling.usage import QuotaCheck
from tenants.models import Case
from tenants.policies import Facts

HISTORY = timedelta(days=30)


def workload_facts(
    actor: User, case: Case, workload: Workload, spec: Spec, facts: Facts, as_of: datetime
) -> list[Fact]:
    """Quota before and after, cost, start, and how the requester's last requests went."""
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
    price = Money(facts.estimated_cost, facts.currency) if facts.estimated_cost is not None else None
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
