"""Tags and filters of the pages: words from `wording`, marks from the sprite, bars as SVG attributes."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from django import template
from django.forms import BoundField
from django.template import Context
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from gpuyard.web import wording
from gpuyard.web.contexts import Cell, Money, Part, QuotaLine, Step
from gpuyard.web.scheduler_contexts import PassRow

register = template.Library()

CELL_PX = 23  # a GPU of 20 px and the gap beside it
ISLAND_GAP_PX = 5
PULSE_BARS = 50  # at least so many places, so that a few bars are not as wide as the page
METER_PART = '<rect class="f-{}" x="{}%" width="{}%" height="100%"/>'
BULLET_PART = '<rect class="f-{}" x="{}%" width="{}%" y="5" height="8" rx="2"/>'


# ───────── filters ─────────


@register.filter
def duration(seconds: float | Decimal | None) -> str:
    return wording.duration(seconds)


@register.filter
def gpus(count: int | float | Decimal, tier: str = "") -> str:
    return wording.gpus(count, tier)


@register.filter
def number(value: int | float | Decimal) -> str:
    return wording.number(value)


@register.filter
def money(amount: Money | Decimal | int | str | None, currency: str = "") -> str:
    if isinstance(amount, Money):
        return wording.money(*amount)
    return wording.money(amount, currency)


@register.filter
def ago(moment: datetime | None, as_of: datetime) -> str:
    """`52 m ago`, counted from the page's own clock; the exact time and zone on hover."""
    return wording.NOTHING if moment is None else _time(moment, wording.ago(moment, as_of))


@register.filter
def at(moment: datetime | None, as_of: datetime) -> str:
    """`14:20`, with the day where it is another one; the exact time and zone on hover."""
    return wording.NOTHING if moment is None else _time(moment, wording.clock(moment, as_of))


@register.filter
def at_s(moment: datetime, as_of: datetime) -> str:
    """`14:20:07`, for what happened; the exact time and zone on hover."""
    return _time(moment, wording.clock(moment, as_of, seconds=True))


@register.filter
def state_label(state: str) -> str:
    return str(wording.state_word(state).label)


@register.filter
def state_glyph(state: str) -> str:
    return wording.state_word(state).glyph


@register.filter
def kind_label(kind: str) -> str:
    return str(wording.KINDS.get(kind, kind))


@register.filter
def initials(name: str) -> str:
    return wording.initials(name)


@register.filter
def hours(gpu_hours: Decimal) -> str:
    """GPU hours, finer the fewer they are."""
    places = 1 if gpu_hours >= 100 else 2 if gpu_hours >= 1 else 4
    return wording.number(round(Decimal(gpu_hours), places))


@register.filter
def gib(mebibytes: int) -> str:
    return f"{wording.number(round(Decimal(mebibytes) / 1024, 1))} GiB"


@register.filter
def cores(millicores: int) -> str:
    return wording.number(round(Decimal(millicores) / 1000, 1))


def _time(moment: datetime, shown: str) -> SafeString:
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        timezone.localtime(moment).isoformat(timespec="seconds"),
        wording.exact(moment),
        shown,
    )


# ───────── marks ─────────


@register.simple_tag
def icon(name: str, classes: str = "") -> SafeString:
    return format_html('<svg class="i {}" aria-hidden="true"><use href="#i-{}"/></svg>', classes, name)


@register.simple_tag
def glyph(state: str) -> SafeString:
    return format_html('<svg class="gl" aria-hidden="true"><use href="#s-{}"/></svg>', state_glyph(state))


@register.simple_tag
def state(value: str, seconds: float | None = None) -> SafeString:
    """The mark and its word, always together: `● Running 2 h 14 m`."""
    label = state_label(value)
    if seconds is not None and value not in wording.ENDED:
        label = f"{label} {wording.duration(seconds)}"
    return format_html('<span class="st st-{}">{}{}</span>', state_glyph(value), glyph(value), label)


@register.simple_tag
def asof(moment: datetime, words: str = "") -> SafeString:
    shown = f"{words} {timezone.localtime(moment):%H:%M:%S}".strip()
    return format_html('<span class="asof" data-asof>{}</span>', _time(moment, shown))


@register.simple_tag
def swatch(fill: str) -> SafeString:
    return format_html(
        '<svg class="sw" aria-hidden="true"><rect class="f-{}" width="100%" height="100%"/></svg>', fill
    )


@register.simple_tag(takes_context=True)
def live_version(context: Context) -> SafeString:
    """The hidden field a live part is polled with; see `gpuyard.web.live`."""
    return format_html('<input type="hidden" name="v" value="{}">', context.get("live_version", "0"))


# ───────── bars ─────────


@register.simple_tag
def meter(parts: Sequence[Part], scale: float | Decimal, label: str, size: str = "") -> SafeString:
    """Parts of a whole in one unit. `scale` is the whole."""
    return format_html(
        '<svg class="meter {}" role="img" aria-label="{}">{}</svg>',
        size,
        label,
        _stretches(parts, scale, gap=True),
    )


@register.simple_tag
def bullet(
    parts: Sequence[Part], scale: float, label: str, tick: float | None = None, dashed: float | None = None
) -> SafeString:
    """Use against a promise: the tick is the guarantee or budget, dashed the fair share, the end the limit."""
    mark = mark_safe("")
    for classes, value in (("tick-2", dashed), ("tick", tick)):
        if value is not None:
            where = percent(value, scale)
            mark += format_html('<line class="{}" x1="{}%" x2="{}%" y1="1" y2="17"/>', classes, where, where)
    return format_html(
        '<svg class="bullet" role="img" aria-label="{}">'
        '<rect class="track" x="0" y="4.5" width="100%" height="9" rx="3"/>{}{}</svg>',
        label,
        _stretches(parts, scale, gap=False),
        mark,
    )


@register.simple_tag
def pulse(rows: Sequence[PassRow], scale: float) -> SafeString:
    """The last passes as bars, the newest at the right; each tells itself on hover and opens its page."""
    width = 100 / max(len(rows), PULSE_BARS)
    drawn = []
    for place, row in enumerate(rows):
        x, height = 100 - (place + 1) * width, 0.0
        parts: list[SafeString] = []
        for part in row.timing:
            tall = 70 * part.value / scale if scale else 0
            height += tall
            parts.append(
                format_html(
                    '<rect class="f-{}" x="{}%" y="{}" width="{}%" height="{}"/>',
                    *(part.fill, f"{x:.3f}", f"{71 - height:.2f}", f"{width * 0.8:.3f}", f"{tall:.2f}"),
                )
            )
        title = f"{_('pass')} {wording.number(row.number)}: {row.did}, {wording.number(row.duration_ms)} ms"
        bars = format_html_join("", "{}", ((one,) for one in parts))
        # The table below has the same links, so that these need no place in the tab order.
        drawn.append(
            format_html(
                '<a href="{}" tabindex="-1"><title>{}</title>{}</a>',
                *(reverse("web:pass", args=[row.number]), title, bars),
            )
        )
    return format_html(
        '<svg class="pulse" aria-hidden="true">{}<line class="base" x1="0" x2="100%" y1="71.5" y2="71.5"/></svg>',
        format_html_join("", "{}", ((one,) for one in drawn)),
    )


@register.simple_tag
def quota_bar(line: QuotaLine) -> SafeString:
    label = _("%(tier)s: %(used)s in use, %(guaranteed)s guaranteed, %(share)s%(limit)s") % {
        "tier": line.tier,
        "share": ""
        if line.share is None
        else _("fair share %s, ") % wording.number(round(Decimal(line.share), 2)),
        "used": wording.number(line.used),
        "guaranteed": wording.number(line.guaranteed),
        "limit": _("no limit") if line.limit is None else _("limit %s") % wording.number(line.limit),
    }
    parts = [
        Part(fill="active", value=line.used, label=""),
        Part(fill="claimed", value=line.claimed, label=""),
    ]
    return bullet(parts, line.scale, label, line.guaranteed or None, line.share)


def percent(value: float | Decimal, scale: float | Decimal) -> str:
    """A share of the whole as an SVG length, never outside the drawing."""
    if not scale:
        return "0"
    return f"{min(100.0, max(0.0, 100 * float(value) / float(scale))):.2f}".rstrip("0").rstrip(".")


def _stretches(parts: Sequence[Part], scale: float | Decimal, *, gap: bool) -> SafeString:
    drawn: list[SafeString] = []
    start = 0.0
    for part in parts:
        if part.value <= 0:
            continue
        x, width = percent(start, scale), percent(part.value, scale)
        drawn.append(format_html(METER_PART if gap else BULLET_PART, part.fill, x, width))
        if gap:
            end = percent(start + part.value, scale)
            drawn.append(format_html('<rect class="gap" x="{}%" width="1" height="100%"/>', end))
        start += part.value
    return format_html_join("", "{}", ((one,) for one in drawn))


@register.simple_tag
def cells(row: Sequence[Cell], label: str) -> SafeString:
    """The GPUs of a node, islands outlined; each tells itself on hover and may open its workload."""
    drawn: list[SafeString] = []
    x, island, island_start = 3, None, 3
    for cell in row:
        if island is not None and cell.island != island:
            drawn.insert(0, _outline(island_start, x))
            x += ISLAND_GAP_PX
            island_start = x
        island = cell.island
        drawn.append(_cell(cell, x))
        x += CELL_PX
    if row:
        drawn.insert(0, _outline(island_start, x))
    return format_html(
        '<svg class="nd-g" width="{}" height="26" role="{}" aria-label="{}">{}</svg>',
        x,
        "group" if any(cell.url for cell in row) else "img",
        label,
        format_html_join("", "{}", ((one,) for one in drawn)),
    )


def _cell(cell: Cell, x: int) -> SafeString:
    mark = format_html(
        '<use class="{}" href="#s-{}" x="{}" y="3" width="20" height="20"><title>{}</title></use>',
        "cell-on" if cell.picked else "",
        state_glyph(cell.state),
        x,
        cell.title,
    )
    return (
        format_html('<a href="{}" aria-label="{}">{}</a>', cell.url, cell.title, mark) if cell.url else mark
    )


def _outline(start: int, end: int) -> SafeString:
    return format_html(
        '<rect class="isl" x="{}" y=".5" width="{}" height="25" rx="6"/>', start - 2.5, end - start + 2
    )


# ───────── larger parts ─────────


@register.inclusion_tag("partials/steps.html")
def steps(timeline: Sequence[Step], as_of: datetime) -> dict[str, Any]:
    return {"steps": timeline, "as_of": as_of}


@register.inclusion_tag("partials/field.html")
def field(bound: BoundField, classes: str = "", hint: str = "", rows: int = 0) -> dict[str, Any]:
    """Label, control, hint, and the error beside it with what to do about it."""
    attrs: dict[str, Any] = {"class": f"{_control_class(bound)} {classes}".strip()}
    described = [f"{bound.auto_id}-hint"] if hint or bound.help_text else []
    if bound.errors:
        described.append(f"{bound.auto_id}-error")
        attrs["class"] += " is-invalid"
        attrs["aria-invalid"] = "true"
    if described:
        attrs["aria-describedby"] = " ".join(described)
    if rows:
        attrs["rows"] = rows
    return {"bound": bound, "control": bound.as_widget(attrs=attrs), "hint": hint or bound.help_text}


def _control_class(bound: BoundField) -> str:
    return "form-select" if bound.widget_type == "select" else "form-control"


@register.inclusion_tag("partials/empty.html")
def empty(title: str, detail: str = "", url: str = "", action: str = "") -> dict[str, Any]:
    return {"title": title, "detail": detail, "url": url, "action": action}


@register.inclusion_tag("partials/pager.html", takes_context=True)
def pager(context: Context, page: Any) -> dict[str, Any]:
    return {"pager": page, "request": context.get("request")}


@register.inclusion_tag("partials/sort_header.html", takes_context=True)
def sort_header(context: Context, key: str, label: str, current: str, classes: str = "") -> dict[str, Any]:
    """A column title that sorts: first press ascending, second descending, both in the URL."""
    direction = {key: "ascending", f"-{key}": "descending"}.get(current, "")
    following = f"-{key}" if current == key else key
    return {
        "request": context.get("request"),
        "label": label,
        "direction": direction,
        "following": following,
        "classes": classes,
    }
