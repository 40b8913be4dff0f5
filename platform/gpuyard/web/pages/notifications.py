"""What one was told, how one wants to be told, webhooks, and the log of sendings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.paginator import Paginator
from django.http import QueryDict
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.notify.events import APP, CHANNELS, EMAIL, HOOK, event_type, events_chosen
from gpuyard.notify.models import Attempt, Endpoint, EndpointKind, Message, MessageState, Notification, Pace
from gpuyard.notify.selectors import notification_list, unread_count
from gpuyard.notify.services import choices_describe
from gpuyard.web.contexts import Choice, Pager
from gpuyard.web.shell import team_paths
from tenants.endpoints import endpoint_list, message_list, teams_of
from tenants.models import Role, Team
from tenants.selectors import ADMIN, team_ids_with, teams_visible

PAGE_ROWS = 50


def page_number(query: Mapping[str, str]) -> int:
    number = query.get("page", "")
    return int(number) if number.isascii() and number.isdigit() and len(number) < 8 else 1


def _pager(paginator: Paginator[Any], number: int) -> tuple[list[Any], Pager]:
    shown = paginator.get_page(number)
    return list(shown.object_list), Pager(
        total=paginator.count,
        first=shown.start_index(),
        last=shown.end_index(),
        previous_page=shown.previous_page_number() if shown.has_previous() else None,
        next_page=shown.next_page_number() if shown.has_next() else None,
    )


# --- News ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NewsPage:
    as_of: datetime
    rows: Sequence[Notification]
    events: Sequence[Choice]
    unread_only: bool
    unread: int
    filtered: bool
    pager: Pager


def news_build(actor: User, query: Mapping[str, str]) -> NewsPage:
    unread_only, wanted = query.get("show") == "unread", query.get("event", "")
    known = {one.key: str(one.label) for one in events_chosen()}
    event = wanted if wanted in known else ""
    rows, pager = _pager(
        Paginator(notification_list(actor, unread=unread_only, event=event), PAGE_ROWS), page_number(query)
    )
    return NewsPage(
        as_of=clock.now(),
        rows=rows,
        events=[Choice(value=key, label=label, selected=key == event) for key, label in known.items()],
        unread_only=unread_only,
        unread=unread_count(actor),
        filtered=bool(event or unread_only),
        pager=pager,
    )


# --- Settings ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Tick:
    channel: str
    label: str
    is_on: bool
    is_fixed: bool


@dataclass(frozen=True, kw_only=True)
class EventRow:
    key: str
    label: str
    is_urgent: bool
    ticks: Sequence[Tick]


@dataclass(frozen=True, kw_only=True)
class SettingsPage:
    as_of: datetime
    paces: Sequence[Choice]
    hours: Sequence[Choice]
    time_zone: str
    rows: Sequence[EventRow]
    email: str


def settings_build(actor: User, zone: str) -> SettingsPage:
    chosen = choices_describe(actor)
    return SettingsPage(
        as_of=clock.now(),
        paces=[Choice(value=v, label=str(label), selected=v == chosen["pace"]) for v, label in Pace.choices],
        hours=[
            Choice(value=str(hour), label=f"{hour:02d}:00", selected=hour == chosen["hour"])
            for hour in range(24)
        ],
        time_zone=zone,
        rows=[
            EventRow(
                key=one.key,
                label=str(one.label),
                is_urgent=one.is_urgent,
                ticks=[
                    Tick(
                        channel=channel,
                        label=label,
                        is_on=chosen["events"][one.key][channel],
                        is_fixed=channel == APP and not one.may_be_off,
                    )
                    for channel, label in channel_words()
                ],
            )
            for one in events_chosen()
        ],
        email=actor.email,
    )


def channel_words() -> list[tuple[str, str]]:
    words = {APP: _("Here"), EMAIL: _("E-mail"), HOOK: _("My webhooks")}
    return [(channel, words[channel]) for channel in CHANNELS]


def settings_of(form: QueryDict) -> dict[str, dict[str, bool]]:
    """The ticks as they were sent: what is not sent is off, but for what cannot be."""
    return {
        one.key: {
            channel: f"{one.key}.{channel}" in form or (channel == APP and not one.may_be_off)
            for channel in CHANNELS
        }
        for one in events_chosen()
    }


# --- Webhooks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class HookRow:
    id: str
    name: str
    kind: str
    host: str
    owner: str
    events: str
    created_at: datetime
    may_change: bool
    is_signed: bool
    both_until: datetime | None


@dataclass(frozen=True, kw_only=True)
class HooksPage:
    as_of: datetime
    rows: Sequence[HookRow]
    teams: Sequence[Choice]
    kinds: Sequence[Choice]
    events: Sequence[Choice]
    typed: Mapping[str, str]
    error: str = ""
    secret: str = ""  # shown this once
    secret_of: str = ""


def hooks_build(
    actor: User,
    *,
    typed: QueryDict | None = None,
    error: str = "",
    secret: str = "",
    secret_of: str = "",
) -> HooksPage:
    rows = list(endpoint_list(actor)[:200])
    managed = set(team_ids_with(actor, Role.MANAGER, ADMIN))
    teams = teams_of(rows)
    visible = list(teams_visible(actor))
    paths = team_paths(visible)
    given = typed or QueryDict()
    return HooksPage(
        as_of=clock.now(),
        rows=[_hook_row(row, teams, managed) for row in rows],
        teams=[
            Choice(value=one.public_id, label=paths[one.pk], selected=one.public_id == given.get("team"))
            for one in visible
            if one.pk in managed
        ],
        kinds=[
            Choice(value=value, label=str(label), selected=value == given.get("kind"))
            for value, label in EndpointKind.choices
        ],
        events=[
            Choice(value=one.key, label=str(one.label), selected=one.key in given.getlist("events"))
            for one in events_chosen()
        ],
        typed={name: given.get(name, "") for name in ("name", "url")},
        error=error,
        secret=secret,
        secret_of=secret_of,
    )


def _hook_row(row: Endpoint, teams: Mapping[Any, Team], managed: set[Any]) -> HookRow:
    words = [str(event_type(key).label) for key in row.events]
    everything = _("everything") if row.team_id else _("what you chose for “My webhooks”")
    return HookRow(
        id=str(row.pk),
        name=row.name,
        kind=row.get_kind_display(),
        host=row.host,
        owner=teams[row.team_id].name if row.team_id else _("yours"),
        events=", ".join(words) or everything,
        created_at=row.created_at,
        may_change=row.team_id is None or row.team_id in managed,
        is_signed=row.kind == EndpointKind.WEBHOOK,
        both_until=row.old_secret_until
        if row.old_secret_until and row.old_secret_until > clock.now()
        else None,
    )


# --- The log of sendings ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SendingRow:
    id: str
    title: str
    items: str
    to: str
    state: str
    tone: str
    created_at: datetime
    due_at: datetime | None  # of the next try
    attempts: Sequence[Attempt]
    may_again: bool


@dataclass(frozen=True, kw_only=True)
class SendingsPage:
    as_of: datetime
    rows: Sequence[SendingRow]
    states: Sequence[Choice]
    filtered: bool
    pager: Pager


_TONES = {
    MessageState.SENT: "active",
    MessageState.FAILED: "fault",
    MessageState.DROPPED: "cordoned",
}


def sendings_build(actor: User, query: Mapping[str, str]) -> SendingsPage:
    state = query.get("state", "")
    rows = message_list(actor)
    if state in MessageState.values:
        rows = rows.filter(state=state)
    found, pager = _pager(Paginator(rows, PAGE_ROWS), page_number(query))
    managed = set(team_ids_with(actor, Role.MANAGER, ADMIN))
    return SendingsPage(
        as_of=clock.now(),
        rows=[_sending_row(row, managed) for row in found],
        states=[
            Choice(value="", label=_("All"), selected=state not in MessageState.values),
            *(
                Choice(value=value, label=str(label), selected=value == state)
                for value, label in MessageState.choices
            ),
        ],
        filtered=state in MessageState.values,
        pager=pager,
    )


def _sending_row(row: Message, managed: set[Any]) -> SendingRow:
    endpoint = row.endpoint
    may_change = endpoint is None or endpoint.team_id is None or endpoint.team_id in managed
    is_failed = row.state == MessageState.FAILED
    return SendingRow(
        id=str(row.pk),
        title=row.title,
        items=ngettext("%(n)s notice", "%(n)s notices", row.item_count) % {"n": row.item_count},
        to=f"{endpoint.name} ({endpoint.host})" if endpoint else str(row.user),
        state=row.get_state_display(),
        tone=_TONES.get(MessageState(row.state), "reserved"),
        created_at=row.created_at,
        due_at=row.due_at if row.state == MessageState.QUEUED and row.tries else None,
        attempts=list(row.attempts.all()),
        may_again=is_failed and may_change and (endpoint is None or endpoint.removed_at is None),
    )
