"""What people type in the second half of the request form, turned into members of a request, and back.

Each reader takes the form's clean values and returns what they mean; what it cannot read it raises as `Unreadable`,
whose text is put beside the field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _

from gpuyard.core.money import SLOTS_PER_GPU
from gpuyard.web.wording import duration_exact, parse_duration
from scheduling.asked import number

ANY_TIER = "any"  # the choice "any GPU that has …"
MEMORY = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*(mib|mb|m|gib|gb|g|tib|tb|t)?", re.IGNORECASE)
MIB = {"m": 1, "g": 1024, "t": 1024 * 1024}
_SHARE = re.compile(r"(?:0?\.[0-9]{1,3}|[0-9]{1,2}(?:\.[0-9])?\s*%)")
_CAPABILITIES = ("least_memory", "least_architecture", "capability_labels")


class Unreadable(Exception):
    """What stands in a field cannot be read."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field, self.text = field, text


def request_parts(data: Mapping[str, Any]) -> dict[str, Any]:
    """The members of the request beside GPUs, replicas, CPU and memory; only those that were filled in."""
    found: dict[str, Any] = {**_part(data), **_tiers(data)}
    for field in ("node_labels", "not_labels", "not_nodes", "depends_on"):
        if names := words(data.get(field, "")):
            found[field] = names
    for field in ("min_run", "restart_cost"):
        if (seconds := _seconds(data, field)) is not None:
            found[f"{field}_s"] = seconds
    if topology := _topology(data):
        found["topology"] = topology
    if level := data.get("spread_level"):
        found["spread_level"] = level
    if moment := data.get("not_before", "").strip():
        found["not_before"] = _moment(moment)
    if array := _array(data):
        found["array"] = array
    found |= {field: True for field in ("elastic", "mix_tiers") if data.get(field)}
    return found


def words(text: str) -> list[str]:
    """Names between commas, blanks or line breaks."""
    return [one for one in re.split(r"[\s,]+", text) if one]


def whole(text: str) -> int | str:
    """A whole number as one; anything else as it is, for the spec to refuse in its own words."""
    cleaned = text.strip()
    return int(cleaned) if re.fullmatch(r"[+-]?[0-9]{1,18}", cleaned) else cleaned


def mebibytes(text: str) -> int | None:
    """`16 GiB`, `512 MiB`; a bare number is GiB. None if it cannot be read."""
    found = MEMORY.fullmatch(text.strip())
    return int(Decimal(found[1]) * MIB[(found[2] or "g")[0].lower()]) if found else None


def _part(data: Mapping[str, Any]) -> dict[str, Any]:
    """`0.25`, `25 %`, `10 GiB`, or a share and memory with a comma or + between them."""
    found: dict[str, Any] = {}
    for piece in re.split(r"[,+]|\band\b", data.get("part", "")):
        text = piece.strip()
        if not text:
            continue
        if _SHARE.fullmatch(text) and "share" not in found:
            is_percent = text.endswith("%")
            amount = Decimal(text.rstrip("% ")) * (10 if is_percent else SLOTS_PER_GPU)
            found["share"] = int(amount)
        elif (memory := _memory(text)) is not None and "gpu_memory_mib" not in found:
            found["gpu_memory_mib"] = memory
        else:
            raise Unreadable(
                "part",
                _(
                    "This is no part of a GPU. Write a share such as 0.25, GPU memory such as 10 GiB, or both."
                ),
            )
    return found


def _memory(text: str) -> int | None:
    """With a unit, or it would be meant as a share."""
    return mebibytes(text) if re.search(r"[a-zA-Z]", text) else None


def _tiers(data: Mapping[str, Any]) -> dict[str, Any]:
    others, tier = words(data.get("other_tiers", "")), data.get("tier", "")
    wanted = {name: data.get(name, "").strip() for name in _CAPABILITIES}
    if tier != ANY_TIER:
        if given := next((name for name, value in wanted.items() if value), None):
            raise Unreadable(
                given, _("A GPU is named above. Choose “Any that has …” there, or leave this empty.")
            )
        tiers = [tier, *others] if tier else others
        return {"tiers": tiers, "tier_choice": data.get("tier_choice") or "value"}
    if others:
        raise Unreadable("other_tiers", _("Any GPU will do already. Leave this empty, or name one above."))
    return {"capabilities": _capabilities(wanted), "tier_choice": data.get("tier_choice") or "value"}


def _capabilities(wanted: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if text := wanted["least_memory"]:
        if (memory := mebibytes(text)) is None:
            raise Unreadable("least_memory", _("This is no amount of memory. Write one such as 40 GiB."))
        found["memory_mib"] = memory
    if architecture := wanted["least_architecture"]:
        found["architecture"] = architecture
    if labels := words(wanted["capability_labels"]):
        found["labels"] = labels
    return found


def _topology(data: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: data[f"level_{name}"] for name in ("required", "preferred") if data.get(f"level_{name}")}
    if (wait_s := _seconds(data, "level_wait")) is not None:
        found["wait_s"] = wait_s
    return found


def _array(data: Mapping[str, Any]) -> dict[str, Any]:
    names = {"array_count": "count", "array_parallel": "parallel"}
    return {own: whole(data[field]) for field, own in names.items() if data.get(field, "").strip()}


def _seconds(data: Mapping[str, Any], field: str) -> int | None:
    text = data.get(field, "").strip()
    if not text:
        return None
    seconds = parse_duration(text)
    if seconds is None:
        raise Unreadable(field, _("This is no time. Write one such as 90 m, 8 h or 2 d."))
    return seconds


def _moment(text: str) -> str:
    """What a browser's field for a moment sends has no zone: the reader's is meant."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Unreadable("not_before", _("This is no moment. Write one such as 2026-12-01T08:00.")) from None
    return (moment if moment.tzinfo else timezone.make_aware(moment)).isoformat()


# --- And back ------------------------------------------------------------------------------------------------


def parts_initial(request: Mapping[str, Any]) -> dict[str, Any]:
    """The same fields filled from a stored request."""
    topology, array = request.get("topology") or {}, request.get("array") or {}
    wanted = request.get("capabilities") or {}
    tiers, not_before = request["tiers"], request.get("not_before")
    return {
        "tier": ANY_TIER if wanted else tiers[0],
        "other_tiers": ", ".join(tiers[1:]),
        "tier_choice": request.get("tier_choice", "value"),
        "least_memory": memory_text(wanted.get("memory_mib")),
        "least_architecture": wanted.get("architecture") or "",
        "capability_labels": ", ".join(wanted.get("labels", ())),
        "part": ", ".join(
            filter(None, [_share(request.get("share")), memory_text(request.get("gpu_memory_mib"))])
        ),
        **{
            name: ", ".join(request.get(name, ()))
            for name in ("node_labels", "not_labels", "not_nodes", "depends_on")
        },
        "level_required": topology.get("required") or "",
        "level_preferred": topology.get("preferred") or "",
        "level_wait": _time(topology.get("wait_s")),
        "spread_level": request.get("spread_level") or "",
        "not_before": _local(not_before) if not_before else "",
        "array_count": array.get("count") or "",
        "array_parallel": array.get("parallel") or "",
        "min_run": _time(request.get("min_run_s")),
        "restart_cost": _time(request.get("restart_cost_s")),
        "elastic": request.get("elastic", False),
        "mix_tiers": request.get("mix_tiers", False),
    }


def _share(share: int | None) -> str:
    return number(share, SLOTS_PER_GPU) if share else ""


def memory_text(memory_mib: int | None) -> str:
    """As `mebibytes` reads it again, to the MiB."""
    if not memory_mib:
        return ""
    return f"{memory_mib} MiB" if memory_mib % 128 else f"{number(memory_mib, 1024)} GiB"


def _time(seconds: int | None) -> str:
    return duration_exact(seconds) if seconds else ""


def _local(moment: str) -> str:
    local = timezone.localtime(datetime.fromisoformat(moment)).replace(tzinfo=None)
    return local.isoformat(timespec="auto" if local.second or local.microsecond else "minutes")
