"""The forms on an approval card: granting less, and what the requester changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from gpuyard.core.errors import FieldError, Invalid
from gpuyard.web import wording
from gpuyard.web.case_contexts import AmendForm, NumberInput
from scheduling.models import Workload
from scheduling.specs import spec_parse
from tenants.deciding import less_fields
from tenants.models import Case

LESS = "less-"  # what the names of these inputs begin with
_LONGEST = 12


# --- Less ----------------------------------------------------------------------------------------------------------


def less_inputs(case: Case) -> list[NumberInput]:
    """Empty inputs: what is left empty is granted as asked."""
    return [
        NumberInput(
            name=f"{LESS}{one.name}",
            label=one.label,
            value="",
            hint=_("asked: %(now)s") % {"now": _("none") if one.now is None else one.now},
        )
        for one in less_fields(case)
    ]


def less_of(sent: Mapping[str, str]) -> dict[str, int]:
    """What was typed, without the empty ones; `Invalid` where it is no whole number."""
    typed = {name.removeprefix(LESS): sent[name].strip() for name in sent if name.startswith(LESS)}
    return {name: _whole(f"less.{name}", text) for name, text in typed.items() if text}


def _whole(field: str, text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < _LONGEST):
        raise Invalid(
            "number_invalid",
            _("“%(text)s” is no whole number.") % {"text": text[:40]},
            field=field,
            remedy=_("Give digits only, or leave it empty."),
        )
    return int(text)


# --- Amending ------------------------------------------------------------------------------------------------------


def amend_form(case: Case, workload: Workload | None) -> AmendForm:
    """What the requester of a workload may change here; the API takes a whole spec."""
    fields = [] if workload is None or workload.spec is None else _fields(workload)
    return AmendForm(fields=fields, justification=case.justification)


def _fields(workload: Workload) -> list[NumberInput]:
    assert workload.spec is not None
    spec = spec_parse(workload.spec.document)
    asked = spec.request
    found = []
    if not asked.is_part:
        found.append(("gpus", _("GPUs of each replica"), str(asked.gpus_per_replica)))
    if asked.replicas_min == asked.replicas_max:
        found.append(("replicas", _("Replicas"), str(asked.replicas_max)))
    limit = wording.duration_exact(spec.time_limit_s) if spec.time_limit_s else ""
    found.append(("time_limit", _("Time limit"), limit))
    found.append(("priority", _("Priority"), str(workload.priority)))
    hints = {"time_limit": _("8 h, 90 m, 2 d; empty: none")}
    return [
        NumberInput(name=name, label=label, value=value, hint=hints.get(name, ""))
        for name, label, value in found
    ]


def amend_changes(workload: Workload, sent: Mapping[str, str]) -> dict[str, Any]:
    """The changes as `case_amend` takes them; nothing where nothing was changed."""
    assert workload.spec is not None
    document = spec_parse(workload.spec.document).as_json()
    before = spec_parse(workload.spec.document).as_json()
    asked = document["request"]
    if "gpus" in sent:
        asked["gpus_per_replica"] = _whole("gpus", sent["gpus"].strip())
    if "replicas" in sent:
        asked["replicas_min"] = asked["replicas_max"] = _whole("replicas", sent["replicas"].strip())
    if "time_limit" in sent:
        document["time_limit_s"] = _time(sent["time_limit"].strip())
    changes: dict[str, Any] = {"spec": document} if document != before else {}
    if "priority" in sent and (priority := _whole("priority", sent["priority"].strip())) != workload.priority:
        changes["priority"] = priority
    return changes


def _time(text: str) -> int | None:
    if not text:
        return None
    seconds = wording.parse_duration(text)
    if seconds is None:
        message, remedy = _("This is no time."), _("Write one such as 90 m, 8 h or 2 d.")
        raise Invalid(
            "time_invalid", message, errors=[FieldError("time_limit", "time_invalid", message, remedy)]
        )
    return seconds
