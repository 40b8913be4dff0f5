"""The log of a company for those who audit it: filters, what changed in each event, and whether the chain holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from itertools import islice
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.urls import reverse
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpuyard.audit.models import Event, Source
from gpuyard.audit.selectors import ChainStatus, EventFilters, chain_status
from gpuyard.core import clock
from gpuyard.core.errors import Invalid
from gpuyard.core.models import User
from gpuyard.core.pagination import keyset_page
from gpuyard.fleet.selectors import node_list
from gpuyard.web import wording
from gpuyard.web.audit_contexts import AuditPage, AuditRow, Badge, Change
from gpuyard.web.contexts import Choice
from gpuyard.web.pages.happenings import event_row
from gpuyard.web.shell import team_paths
from scheduling.selectors import workload_public_ids
from tenants.directory import PLATFORM, companies_audited, company_audited, events_audited
from tenants.inbox import case_list
from tenants.models import Team
from tenants.selectors import teams_visible

PAGE_ROWS = 50
SHOWN_CHANGES, MOST_CHANGES, LONGEST_VALUE = 5, 40, 400
TEXTS = ("q", "who", "action", "subject", "source", "since", "until")
_LONGEST_FILTER = 200


@dataclass(frozen=True)
class Asked:
    """The chain (a company's public id, or `PLATFORM`), and what of it."""

    company: str
    team: Team | None
    texts: Mapping[str, str]
    cursor: str = ""
    filters: EventFilters = field(default_factory=EventFilters)


def asked_of(actor: User, query: Mapping[str, str], team: Team | None) -> Asked:
    """Without a company: that of the picked team, else the platform for an admin, else the reader's first."""
    texts = {name: query.get(name, "").strip()[:_LONGEST_FILTER] for name in TEXTS}
    filters = EventFilters(
        q=texts["q"],
        who=texts["who"],
        action=texts["action"],
        subject=texts["subject"],
        source=texts["source"],
        since=_moment(texts["since"], "since"),
        until=_moment(texts["until"], "until", is_end=True),
    )
    company = query.get("company", "") or _company_default(actor, team)
    return Asked(company, team, texts, query.get("cursor", ""), filters)


def _company_default(actor: User, team: Team | None) -> str:
    companies = companies_audited(actor)
    if team is not None:
        return next((one.public_id for one in companies if one.pk == team.company_id), "")
    if actor.is_platform_admin:
        return PLATFORM
    first = companies.first()
    return first.public_id if first else ""


def _moment(text: str, name: str, *, is_end: bool = False) -> datetime | None:
    """A day, or a day and a time, in the reader's zone. The end of a day is the beginning of the next."""
    if not text:
        return None
    try:
        if (day := parse_date(text)) is not None:
            found = datetime.combine(day + timedelta(days=1) if is_end else day, time.min)
        else:
            parsed = parse_datetime(text)
            if parsed is None:
                raise ValueError(text)
            found = parsed
        return timezone.make_aware(found) if timezone.is_naive(found) else found
    except (ValueError, OverflowError) as exc:
        raise Invalid(
            "moment_invalid",
            _("“%s” is no day and time.") % text,
            field=name,
            remedy=_("Give a day such as 2026-11-30, or 2026-11-30T14:20."),
        ) from exc


def events(actor: User, asked: Asked) -> QuerySet[Event]:
    """Exactly what the page shows, all of its pages."""
    team = asked.team.public_id if asked.team else ""
    return events_audited(actor, company=asked.company, team=team, filters=asked.filters)


def build(actor: User, asked: Asked) -> AuditPage:
    found, following = keyset_page(events(actor, asked), asked.cursor, PAGE_ROWS)
    urls, teams = _urls(actor, found), _teams(actor, found)
    as_of = clock.now()
    return AuditPage(
        as_of=as_of,
        companies=_companies(actor, asked.company),
        sources=[
            Choice(value=value, label=label, selected=value == asked.texts["source"])
            for value, label in Source.choices
        ],
        asked={**asked.texts, "company": asked.company},
        filtered=any(asked.texts.values()),
        badge=_badge(chain_status(_company_id(actor, asked.company)), as_of),
        rows=[_row(one, urls, teams) for one in found],
        next_cursor=following,
        is_first=not asked.cursor,
        zone=timezone.get_current_timezone_name(),
    )


def _company_id(actor: User, company: str) -> UUID | None:
    if company == PLATFORM and actor.is_platform_admin:
        return None
    return company_audited(actor, company).pk


def _companies(actor: User, chosen: str) -> list[Choice]:
    choices = [(PLATFORM, _("The platform"))] if actor.is_platform_admin else []
    choices += [(one.public_id, one.name) for one in companies_audited(actor)]
    return [Choice(value=value, label=label, selected=value == chosen) for value, label in choices]


# --- The badge ---------------------------------------------------------------------------------------------


def _badge(status: ChainStatus, as_of: datetime) -> Badge:
    sealed = _("Sealed to #%s") % wording.number(status.sealed_up_to)
    waiting = (
        ngettext("%(n)s event is not sealed yet", "%(n)s events are not sealed yet", status.unsealed)
        % {"n": wording.number(status.unsealed)}
        if status.unsealed
        else _("nothing waits to be sealed")
    )
    signed = (
        _("signed at #%(number)s, %(when)s")
        % {
            "number": wording.number(status.checkpoint_sequence),
            "when": wording.ago(status.checkpoint_at, as_of),
        }
        if status.checkpoint_at
        else _("not signed yet")
    )
    detail = f"{wording.sentence(waiting)}; {signed}."
    if status.verified_at is None:
        return Badge(tone="warn", text=f"{sealed}, {_('not verified yet')}", detail=detail, findings=())
    verified = _("verified to #%(number)s at %(when)s") % {
        "number": wording.number(status.verified_up_to),
        "when": wording.clock(status.verified_at, as_of),
    }
    count = len(status.findings)
    outcome = _("intact") if not count else ngettext("%s finding", "%s findings", count) % count
    return Badge(
        tone="bad" if count else "ok",
        text=f"{sealed}, {verified}: {outcome}",
        detail=detail,
        findings=[f"{one['kind']}: {one['message']}" for one in status.findings[:10]],
    )


# --- Rows --------------------------------------------------------------------------------------------------


def _row(event: Event, urls: Mapping[tuple[str, UUID | None], str], teams: Mapping[UUID, str]) -> AuditRow:
    told = list(islice(_changes(event.old, event.new), MOST_CHANGES * 10))
    shown = event_row(event)
    return AuditRow(
        id=str(event.pk),
        at=event.created_at,
        who=event.actor_label,
        on_behalf_of=event.on_behalf_of_label,
        what=str(shown.what),
        action=event.action,
        subject=event.subject_label or event.subject_type,
        subject_url=urls.get((event.subject_type, event.subject_id), ""),
        team=teams.get(event.team_id, "") if event.team_id else "",
        source=str(Source(event.source).label if event.source in Source.values else event.source),
        reason=event.reason,
        changes=told[:SHOWN_CHANGES],
        folded=told[SHOWN_CHANGES:MOST_CHANGES],
        more_changes=max(0, len(told) - MOST_CHANGES),
        sequence=event.sequence,
        hash=event.hash or "",
    )


def _changes(old: Any, new: Any) -> Iterator[Change]:
    """Field by field, by dotted name; what stayed as it was, or is as empty as before, is left out."""
    before, after = dict(_flat(old)), dict(_flat(new))
    for name in dict.fromkeys([*before, *after]):
        if before.get(name, wording.NOTHING) != after.get(name, wording.NOTHING):
            yield Change(name=name, old=before.get(name), new=after.get(name))


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and value and any(isinstance(one, Mapping | list) for one in value):
        for index, inner in enumerate(value, start=1):
            yield from _flat(inner, f"{name}.{index}" if name else str(index))
    elif value is not None or name:
        yield name, _shown(value)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        text = ", ".join(_shown(one) for one in value) or wording.NOTHING
    elif isinstance(value, bool):
        text = _("yes") if value else _("no")
    elif value is None or value in ("", {}):
        text = wording.NOTHING
    else:
        text = str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def _urls(actor: User, found: Iterable[Event]) -> dict[tuple[str, UUID | None], str]:
    """Where there still is a page for a subject that the reader may see."""
    keys: dict[str, set[UUID]] = {}
    for one in found:
        if one.subject_id:
            keys.setdefault(one.subject_type, set()).add(one.subject_id)
    urls: dict[tuple[str, UUID | None], str] = {}
    if workloads := keys.get("workload"):
        for key, public_id in workload_public_ids(actor, workloads).items():
            urls["workload", key] = reverse("web:workload", args=[public_id])
    if nodes := keys.get("node"):
        for key, public_id in node_list(actor).filter(pk__in=nodes).values_list("pk", "public_id"):
            urls["node", key] = reverse("web:node", args=[public_id])
    if cases := keys.get("case"):
        found_cases = case_list(actor).filter(pk__in=cases).prefetch_related(None)
        for key, public_id in found_cases.values_list("pk", "public_id"):
            urls["case", key] = f"{reverse('web:approvals')}?case={public_id}"
    for key in keys.get("schedulingpolicyversion", ()):
        urls["schedulingpolicyversion", key] = reverse("web:policy")
    return urls


def _teams(actor: User, found: Iterable[Event]) -> dict[UUID, str]:
    wanted = {one.team_id for one in found if one.team_id}
    if not wanted:
        return {}
    above = {
        key
        for path in teams_visible(actor).filter(pk__in=wanted).values_list("path", flat=True)
        for key in path
    }
    return team_paths(Team.objects.filter(pk__in=above))
