"""How numbers, times and states are written for people. Pure: no database, no request."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

NARROW = "\N{NO-BREAK SPACE}"
NOTHING = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"
SYMBOLS = {"EUR": "€", "USD": "$", "GBP": "£", "CHF": "CHF", "JPY": "¥"}
MINUTE, HOUR, DAY = 60, 3600, 86400
UNIT_SECONDS = {"s": 1, "m": MINUTE, "min": MINUTE, "h": HOUR, "d": DAY}
LONGEST_DURATION = 60
DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(min|s|m|h|d)")


@dataclass(frozen=True)
class StateWord:
    label: str | Promise
    glyph: str


# One entry for each state a page can show. The glyph names a mark of partials/sprite.html.
WORKLOAD_STATES: dict[str, StateWord] = {
    "pending_approval": StateWord(_("Needs approval"), "wait"),
    "waiting": StateWord(_("Waiting"), "wait"),
    "starting": StateWord(_("Starting"), "claimed"),
    "running": StateWord(_("Running"), "active"),
    "stopping": StateWord(_("Stopping"), "stop"),
    "succeeded": StateWord(_("Succeeded"), "done"),
    "failed": StateWord(_("Failed"), "fault"),
    "cancelled": StateWord(_("Cancelled"), "off"),
    "rejected": StateWord(_("Rejected"), "off"),
    "expired": StateWord(_("Expired"), "off"),
    # replicas, beside those above
    "claiming": StateWord(_("Claiming"), "claimed"),
    "assigned": StateWord(_("Assigned"), "claimed"),
    "lost": StateWord(_("Not heard from"), "unknown"),
}
GPU_STATES: dict[str, StateWord] = {
    "active": StateWord(_("active"), "active"),
    "starting": StateWord(_("starting"), "claimed"),
    "idle": StateWord(_("held idle"), "idle"),
    "free": StateWord(_("free"), "free"),
    "claimed": StateWord(_("reserved"), "claimed"),
    "stopping": StateWord(_("stopping"), "stop"),
    "cordoned": StateWord(_("cordoned"), "cordon"),
    "maintenance": StateWord(_("maintenance"), "cordon"),
    "down": StateWord(_("down"), "fault"),
    "unknown": StateWord(_("unknown"), "unknown"),
    # nodes, beside those above
    "ready": StateWord(_("ready"), "free"),
    "joined": StateWord(_("not yet heard from"), "unknown"),
    "draining": StateWord(_("draining"), "cordon"),
}
KINDS: dict[str, str | Promise] = {
    "training": _("training"),
    "inference": _("inference"),
    "development": _("development"),
    "grant": _("grant"),
    "quota_change": _("quota"),
}
ENDED = frozenset({"succeeded", "failed", "cancelled", "rejected", "expired"})


def state_word(state: str) -> StateWord:
    """A state nobody described yet is shown under its own name rather than hidden."""
    return (
        WORKLOAD_STATES.get(state) or GPU_STATES.get(state) or StateWord(state.replace("_", " "), "unknown")
    )


def duration(seconds: float | Decimal | None) -> str:
    """2 h 14 m. Seconds are shown below ten minutes only, where somebody is watching the clock."""
    if seconds is None:
        return NOTHING
    if 0 < seconds < 1:
        return str(_("under 1 s"))
    whole = max(0, int(seconds))
    days, rest = divmod(whole, DAY)
    hours, rest = divmod(rest, HOUR)
    minutes, left = divmod(rest, MINUTE)
    if days:
        parts = [(days, "d"), (hours, "h")]
    elif hours:
        parts = [(hours, "h"), (minutes, "m")]
    elif minutes >= 10:
        parts = [(minutes, "m")]
    else:
        parts = [(minutes, "m"), (left, "s")]
    shown = [f"{count}{NARROW}{unit}" for count, unit in parts if count]
    return NARROW.join(shown) or f"0{NARROW}s"


def duration_exact(seconds: int) -> str:
    """1 d 3 h 46 m 40 s: as `parse_duration` reads it again, to the second."""
    parts, left = [], seconds
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, UNIT_SECONDS[unit])
        parts += [f"{count} {unit}"] if count else []
    return " ".join(parts) or "0 s"


def parse_duration(text: str) -> int | None:
    """Seconds of '12 h', '1h 30m', '90 min', '2d'; a bare number is hours. None if it cannot be read."""
    cleaned = text.strip().lower().replace(NARROW, " ")
    if len(cleaned) > LONGEST_DURATION:  # looking for a unit behind every digit takes minutes
        return None
    if re.fullmatch(r"\d{1,9}(\.\d{1,3})?", cleaned):
        return int(Decimal(cleaned) * HOUR)
    found = DURATION_PART.findall(cleaned)
    if not found or DURATION_PART.sub("", cleaned).strip(" ,"):
        return None
    return int(sum(Decimal(count) * UNIT_SECONDS[unit] for count, unit in found))


def number(value: int | float | Decimal) -> str:
    """1,234.5: grouped, without trailing zeros."""
    text = f"{Decimal(str(value)):,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def gpus(count: int | float | Decimal, tier: str = "") -> str:
    shown = number(count)
    return f"{shown}{NARROW}{TIMES}{NARROW}{tier}" if tier else shown


def money(amount: Decimal | int | str | None, currency: str, is_some: bool = False) -> str:
    """`is_some`: the amount was rounded to cents before, and was not zero. Less than a cent is never "0.00"."""
    if amount is None:
        return NOTHING
    exact = Decimal(str(amount))
    value, symbol = exact.quantize(Decimal("0.01")), SYMBOLS.get(currency, currency)
    if (exact or is_some) and not value:
        return f"<{NARROW}0.01{NARROW}{symbol}"
    sign = "-" if value < 0 else ""
    return f"{sign}{abs(value):,.2f}{NARROW}{symbol}"


def exact(moment: datetime) -> str:
    """Thu 26 Nov 2026, 09:50:12 CET, in the reader's zone."""
    return timezone.localtime(moment).strftime("%a %d %b %Y, %H:%M:%S %Z")


def clock(moment: datetime, now: datetime, *, seconds: bool = False) -> str:
    """14:20 on the same day, else Thu 26 Nov 14:20. With seconds where the order within a minute matters."""
    local, today = timezone.localtime(moment), timezone.localtime(now)
    shown = "%H:%M:%S" if seconds else "%H:%M"
    return local.strftime(shown if local.date() == today.date() else f"%a %d %b {shown}")


def ago(moment: datetime, now: datetime) -> str:
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 5:
        return str(_("now"))
    if abs(seconds) >= MINUTE:
        seconds -= math.fmod(seconds, MINUTE)  # how long ago needs no seconds, a running clock does
    if seconds < 0:
        return str(_("in %(time)s") % {"time": duration(-seconds)})
    return str(_("%(time)s ago") % {"time": duration(seconds)})


def sentence(text: str) -> str:
    """With a capital; ids and tier names that begin with a digit or are one word stay as they are."""
    return text[:1].upper() + text[1:]


def indexes(numbers: Iterable[int]) -> str:
    """0-3, 6: GPU indexes as a range."""
    runs: list[list[int]] = []
    for one in sorted(set(numbers)):
        if runs and one == runs[-1][1] + 1:
            runs[-1][1] = one
        else:
            runs.append([one, one])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def initials(name: str) -> str:
    words = [word for word in re.split(r"[^0-9A-Za-z]+", name) if word]
    if not words:
        return "?"
    return "".join(word[0] for word in words[:2]).upper() if len(words) > 1 else words[0][:2].upper()
