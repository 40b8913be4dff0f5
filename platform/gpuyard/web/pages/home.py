"""What needs the reader, and how they are doing."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from billing.selectors import CostFilters, cost_by_team_day
from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.web import wording
from gpuyard.web.contexts import HomePage, Money, Need, SpendCard, TeamSpend
from gpuyard.web.pages.approvals import what_text
from gpuyard.web.pages.queue import quota_lines
from gpuyard.web.pages.rows import end_note, workload_rows
from gpuyard.web.pages.supply import free_tiers
from gpuyard.web.shell import REQUESTS, roles_of
from scheduling.models import Workload
from scheduling.selectors import WorkloadFilters, workload_list
from scheduling.states import WORKLOAD_ENDED, WorkloadState
from tenants.inbox import cases_to_decide
from tenants.models import Role, Team
from tenants.policies import facts_from_json
from tenants.selectors import teams_visible

MOST_MINE, MOST_FAILED, MOST_QUOTAS = 8, 2, 6
RECENT = timedelta(days=1)
PAYS = frozenset({Role.FINANCE, Role.AUDITOR})
LIVE = tuple(state for state in WorkloadState.values if state not in WORKLOAD_ENDED)


def build(actor: User, team: Team | None) -> HomePage:
    as_of = clock.now()
    roles = roles_of(actor)
    asks = not roles.isdisjoint(REQUESTS)
    pays = not asks and not roles.isdisjoint(PAYS)
    mine = workload_list(actor, WorkloadFilters(owner="me"))
    shown = mine if asks else workload_list(actor, WorkloadFilters(team=team.public_id if team else ""))
    live = list(shown.filter(state__in=LIVE)[: MOST_MINE + 1])
    recent = mine.filter(state__in=WORKLOAD_ENDED, ended_at__gte=as_of - RECENT)
    failed = list(recent.filter(state=WorkloadState.FAILED).order_by("-ended_at")[:MOST_FAILED])
    priced = team or teams_visible(actor).filter(parent__isnull=False).first() or teams_visible(actor).first()
    needs = [*_decisions(actor, as_of), *(_failed(one, as_of) for one in failed)]
    return HomePage(
        as_of=as_of,
        summary=_summary(actor, team, len(needs)),
        needs=needs,
        mine=workload_rows(actor, live[:MOST_MINE], as_of),
        mine_title=_("My workloads") if asks else _("Running and waiting"),
        ended_today=recent.count(),
        # who only pays can do nothing about quotas
        quotas=() if pays else quota_lines(actor, team, MOST_QUOTAS),
        free=free_tiers(priced),
        team=team.name if team else _("Your teams"),
        shows_work=bool(live) or not pays,
        spend=spend_card(actor, team, as_of) if pays else None,
    )


def spend_card(actor: User, team: Team | None, as_of: datetime) -> SpendCard:
    """What each team was charged this month."""
    today = timezone.localtime(as_of).date()
    since = today.replace(day=1)
    filters = CostFilters(team=team.public_id if team else "", since=since, until=today)
    table = cost_by_team_day(actor, filters)
    by_team: dict[tuple[str, str], TeamSpend] = {}
    for row in table.rows:
        before = by_team.get((row.team_id, row.currency))
        price, hours = (before.price, before.gpu_hours) if before else (Money(Decimal(0), ""), Decimal(0))
        by_team[row.team_id, row.currency] = TeamSpend(
            team=row.team_name,
            team_id=row.team_id,
            gpu_hours=hours + row.gpu_hours,
            price=Money(price.amount + row.price, row.currency, price.is_some or row.has_price),
        )
    return SpendCard(
        since=since,
        until=today,
        rows=sorted(by_team.values(), key=lambda one: (-one.price.amount, one.team)),
        totals=[Money(one.price, one.currency) for one in table.totals],
        metered_until=table.metered_until,
    )


def _summary(actor: User, team: Team | None, needs: int) -> str:
    found = workload_list(actor, WorkloadFilters(team=team.public_id if team else ""))
    running = found.filter(state__in=["starting", "running", "stopping"]).count()
    waiting = found.filter(state__in=["pending_approval", "waiting"]).count()
    who = _("Team %s") % team.name if team else _("Your teams")
    things = (
        ngettext("%(n)s thing needs you.", "%(n)s things need you.", needs) % {"n": needs}
        if needs
        else _("Nothing needs you.")
    )
    doing = _("%(who)s: %(running)s running, %(waiting)s waiting.") % {
        "who": who,
        "running": running,
        "waiting": waiting,
    }
    return f"{things} {doing}"


def _decisions(actor: User, as_of: datetime) -> list[Need]:
    cases = cases_to_decide(actor)
    count, oldest = cases.count(), cases.first()
    if oldest is None:
        return []
    waited = wording.duration((as_of - oldest.opened_at).total_seconds())
    title = ngettext(
        "%(n)s request waits for your decision", "%(n)s requests wait for your decision", count
    ) % {"n": count}
    detail = _("Oldest %(waited)s: %(who)s asks for %(what)s.") % {
        "waited": waited,
        "who": oldest.requester.username,
        "what": what_text(facts_from_json(oldest.facts)),
    }
    return [Need(icon="inbox", title=title, detail=detail, url=reverse("web:approvals"), action=_("Review"))]


def _failed(workload: Workload, as_of: datetime) -> Need:
    when = wording.ago(workload.ended_at, as_of) if workload.ended_at else ""
    return Need(
        icon="circle-alert",
        title=_("%s failed") % workload.name,
        detail=wording.sentence(", ".join(filter(None, [end_note(workload), when]))) + ".",
        url=f"{reverse('web:workload', args=[workload.public_id])}?tab=log",
        action=_("See its log"),
        tone="bad",
    )
