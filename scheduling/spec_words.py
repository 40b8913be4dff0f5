"""What is said about a wrong field of a spec: what is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from pydantic_core import ErrorDetails, PydanticCustomError

from gpuyard.core.errors import FieldError
from gpuyard.fleet.architectures import ARCHITECTURES

_WHOLE_GPUS = gettext_noop("Give a whole number of GPUs from 1 to 1024.")
_BY_FIELD: dict[str, str] = {
    "gpus_per_replica": _WHOLE_GPUS,
    "replicas_min": gettext_noop("Give a whole number from 1 to 1024."),
    "replicas_max": gettext_noop("Give a whole number from 1 to 1024, not below replicas_min."),
    "time_limit_s": gettext_noop("Give whole seconds from 1 to 31622400 (366 days), or null for no limit."),
    "cpu_m": gettext_noop("Give thousandths of a CPU core as a whole number of 1 or more."),
    "memory_mib": gettext_noop("Give MiB as a whole number of 1 or more."),
    "command": gettext_noop("Give the program and its arguments as a list of texts, none of them empty."),
    "tiers": gettext_noop("Give a list of 1 to 16 different tier names, the preferred one first."),
    "share": gettext_noop("Give thousandths of a GPU as a whole number from 1 to 999; 250 is a quarter."),
    "gpu_memory_mib": gettext_noop("Give MiB of GPU memory as a whole number of 1 or more."),
    "tier_choice": gettext_noop(
        "Give “value” for the best result per cost, or “order” for the tiers’ order."
    ),
    "wait_s": gettext_noop("Give whole seconds from 0 to 31622400 (366 days)."),
    "min_run_s": gettext_noop("Give whole seconds from 0 to 31622400 (366 days)."),
    "restart_cost_s": gettext_noop("Give whole seconds from 0 to 31622400 (366 days)."),
    "count": gettext_noop("Give a whole number from 1 to 2000."),
    "parallel": gettext_noop("Give a whole number from 1 to 2000, or null for no cap."),
    "not_before": gettext_noop("Give a moment with its zone, such as 2026-12-01T08:00:00+01:00."),
}
_BY_CODE: dict[str, tuple[str, str]] = {
    "missing": (gettext_noop("This field is missing."), gettext_noop("Add this field.")),
    "literal_error": (gettext_noop("There is no such choice."), gettext_noop("Choose another value.")),
    "bool_type": (gettext_noop("This is neither true nor false."), gettext_noop("Give true or false.")),
    "tuple_type": (gettext_noop("This is no list."), gettext_noop("Send a list.")),
    "too_short": (gettext_noop("The list is empty."), gettext_noop("Name at least one.")),
    "too_long": (gettext_noop("The list is too long."), gettext_noop("Give a shorter list.")),
    "extra_forbidden": (
        gettext_noop("There is no such field."),
        gettext_noop("Remove this field, or check its spelling."),
    ),
    "model_type": (gettext_noop("This is no object."), gettext_noop("Send a JSON object.")),
    "string_type": (gettext_noop("This is no text."), gettext_noop("Give a text.")),
    "string_too_short": (gettext_noop("This is empty."), gettext_noop("Give a value that is not empty.")),
    "string_too_long": (gettext_noop("The text is too long."), gettext_noop("Give a shorter text.")),
    "string_unicode": (
        gettext_noop("The text is broken Unicode."),
        gettext_noop("Send well-formed Unicode."),
    ),
    "null_characters_not_allowed": (
        gettext_noop("The text contains NUL characters."),
        gettext_noop("Remove the NUL characters."),
    ),
    "repeated": (gettext_noop("Something is named twice."), gettext_noop("Name each only once.")),
    "env_name": (
        gettext_noop("This is no name of a variable."),
        gettext_noop("Use letters, digits and underscores, no digit first, at most 128 characters."),
    ),
    "env_reserved": (
        gettext_noop("GPU Yard sets this variable itself."),
        gettext_noop("Choose another name."),
    ),
    "port_name": (
        gettext_noop("This is no name of a port."),
        gettext_noop("Use small letters, digits, - and _, a letter first, at most 32 characters."),
    ),
    "port_reserved": (
        gettext_noop("GPU Yard gives every gang a port of this name."),
        gettext_noop("Choose another name."),
    ),
    "health_path": (
        gettext_noop("This is no path."),
        gettext_noop("Begin it with / and leave out blanks; at most 200 characters."),
    ),
    "architecture_unknown": (
        gettext_noop("There is no such architecture."),
        gettext_noop("Choose from: %(architectures)s."),
    ),
    "node_label": (
        gettext_noop("This is no label."),
        gettext_noop("Write key=value with letters, digits, . _ and -, such as zone=a."),
    ),
    "workload_id": (
        gettext_noop("This is no id of a workload."),
        gettext_noop("Take it from the workload’s page or answer, such as w-7k3f9q2m."),
    ),
    "level": (
        gettext_noop("This is no level."),
        gettext_noop("Give one word of at most 32 characters, such as node or rack."),
    ),
    "moment": (
        gettext_noop("This is no moment."),
        gettext_noop("Give a moment with its zone, such as 2026-12-01T08:00:00+01:00."),
    ),
    "capabilities_empty": (
        gettext_noop("No capability is named."),
        gettext_noop("Name memory_mib, architecture or labels, or leave capabilities out."),
    ),
    "topology_empty": (
        gettext_noop("No level is named."),
        gettext_noop("Name a required or a preferred level, or leave topology out."),
    ),
    "wait_without_preferred": (
        gettext_noop("wait_s is for a preferred level, and none is named."),
        gettext_noop("Name a preferred level, or leave wait_s out."),
    ),
}
# What is wrong with several fields together: the field it is said of.
_TOGETHER: dict[str, tuple[str, str, str]] = {
    "gpus_missing": (
        "gpus_per_replica",
        gettext_noop("This field is missing."),
        gettext_noop("Give whole GPUs here, or a part of one as share or gpu_memory_mib."),
    ),
    "share_of_many": (
        "gpus_per_replica",
        gettext_noop("A part of a GPU is a part of one."),
        gettext_noop("Leave it out beside share and gpu_memory_mib, or ask for whole GPUs only."),
    ),
    "tiers_missing": (
        "tiers",
        gettext_noop("No tier is named."),
        gettext_noop(
            "Name 1 to 16 tiers, the preferred one first, or say what they must have as capabilities."
        ),
    ),
    "tiers_twice": (
        "capabilities",
        gettext_noop("Tiers are named already."),
        gettext_noop("Leave out either tiers or capabilities."),
    ),
    "replicas_order": (
        "replicas_max",
        gettext_noop("replicas_max is below replicas_min."),
        gettext_noop("Raise replicas_max or lower replicas_min."),
    ),
    "elastic_fixed": (
        "elastic",
        gettext_noop("The number of replicas is fixed, so that it cannot grow or shrink."),
        gettext_noop("Raise replicas_max above replicas_min, or leave elastic out."),
    ),
    "label_contradicted": (
        "not_labels",
        gettext_noop("A label is asked for and excluded at once."),
        gettext_noop("Name it in node_labels or in not_labels only."),
    ),
    "spread_island": (
        "spread_level",
        gettext_noop("Replicas spread over nodes or something wider."),
        gettext_noop("Name node or a level of the fabric."),
    ),
    "ports_repeated": (
        "ports",
        gettext_noop("Two ports have the same name."),
        gettext_noop("Give each port its own name; - and _ count as the same."),
    ),
}
_NUMBER_CODES = frozenset({"int_type", "int_from_float", "int_parsing", "int_parsing_size"})
_RANGE_CODES = frozenset({"greater_than_equal", "less_than_equal"})
# where the field's own remedy says more than the code's
_OWN_CODES = frozenset(
    {
        "missing",
        "string_type",
        "string_too_short",
        "repeated",
        "literal_error",
        "tuple_type",
        "too_short",
        "too_long",
    }
)


def contradictions_raise(found: Iterable[str]) -> None:
    """Raises if there are any: one error for all, since a validator may raise only one; `field_errors` parts them."""
    codes = list(found)
    if codes:
        raise PydanticCustomError("contradictions", "Fields contradict each other.", {"codes": codes})


def field_errors(one: ErrorDetails, field: str) -> Iterator[FieldError]:
    """What to say of one thing that pydantic found; a contradiction is said of each field that it is about."""
    path = [str(part) for part in one["loc"] if part != "[key]"]
    if one["type"] == "contradictions":
        for code in one["ctx"]["codes"]:
            last, message, remedy = _TOGETHER[code]
            yield FieldError(".".join([field, *path, last]), code, _(message), _(remedy))
        return
    message, remedy = _words(one["type"], one["msg"], path)
    # A name sent by the client may be very long, or not storable: it is shown, so it is cut.
    dotted = ".".join([field, *(part[:80] for part in path)])
    yield FieldError(dotted, one["type"], message, remedy)


def _words(code: str, otherwise: str, path: list[str]) -> tuple[str, str]:
    own = next((_BY_FIELD[part] for part in reversed(path[-2:]) if part in _BY_FIELD), None)
    if code in _NUMBER_CODES:
        return _("This is no whole number."), _(own or gettext_noop("Give a whole number."))
    if code in _RANGE_CODES:
        return _("This number is out of range."), _(own or gettext_noop("Give another number."))
    if code in _BY_CODE:
        message, remedy = _BY_CODE[code]
        if own and code in _OWN_CODES:
            return _(message), _(own)
        return _(message), _(remedy) % {"architectures": ", ".join(ARCHITECTURES)}
    return otherwise, _(own or gettext_noop("Correct this field."))
