"""The spec of a workload: what may be asked for, as an immutable document. The pages and the API take the same one.

What can be stored but never fits (more GPUs than any node has) is accepted: its verdict says so, and the next node
that joins may change it. What could never mean anything is refused, each field with its remedy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Annotated, Any, Self

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from gpuyard.core.errors import FieldError, Invalid
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.core.text import is_storable

LONGEST_TEXT = 64 * 1024
LARGEST_DOCUMENT = 1_000_000
MOST_GPUS = 1024
MOST_REPLICAS = 1024
MOST_SECONDS = 366 * 24 * 3600
MOST_INT = 2**31 - 1
RENDEZVOUS = "rendezvous"  # the port by which the ranks of a gang find one another: given to every gang

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RESERVED_ENV = re.compile(
    r"GPUYARD_.*|(CUDA|NVIDIA|HIP|ROCR)_VISIBLE_DEVICES|RANK|WORLD_SIZE|LOCAL_RANK|NODE_RANK|MASTER_(ADDR|PORT)"
)
_PORT_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")


def _storable(value: str) -> str:
    if not is_storable(value):
        raise PydanticCustomError("null_characters_not_allowed", "The text contains NUL characters.")
    return value


def _no_repeats(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        raise PydanticCustomError("repeated", "Something is named twice.")
    return values


def _matches(pattern: re.Pattern[str], code: str, message: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise PydanticCustomError(code, "{message}", {"message": message})
        return value

    return check


def _env_free(name: str) -> str:
    if _RESERVED_ENV.fullmatch(name):
        raise PydanticCustomError("env_reserved", "GPU Yard sets this variable itself.")
    return name


def _list_only(value: Any) -> Any:
    # pydantic would take any iterable of a strict tuple's items only from a tuple; JSON has lists
    return tuple(value) if isinstance(value, list) else value


def _at_most(longest: int, shortest: int = 1) -> Any:
    return Field(min_length=shortest, max_length=longest)


Text = Annotated[str, AfterValidator(_storable), _at_most(LONGEST_TEXT, 0)]
Word = Annotated[str, AfterValidator(_storable), _at_most(LONGEST_TEXT)]
Path = Annotated[str, AfterValidator(_storable), _at_most(4096)]
EnvName = Annotated[
    str,
    AfterValidator(_env_free),
    AfterValidator(_matches(_ENV_NAME, "env_name", "This is no name of a variable.")),
]
PortName = Annotated[str, AfterValidator(_matches(_PORT_NAME, "port_name", "This is no name of a port."))]
HealthPath = Annotated[
    str,
    AfterValidator(_storable),
    AfterValidator(_matches(re.compile(r"/\S{0,199}"), "health_path", "This is no path.")),
]
TierName = Annotated[str, AfterValidator(_storable), _at_most(64)]
Tuple = BeforeValidator(_list_only)


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Port(_Document):
    """A port that each replica listens on; the agent asks `health_path` whether it is well."""

    name: PortName
    health_path: HealthPath | None = None

    @model_validator(mode="after")
    def _not_ours(self) -> Self:
        if self.name == RENDEZVOUS:
            raise PydanticCustomError("port_reserved", "GPU Yard gives every gang a port of this name.")
        return self


class Request(_Document):
    """A gang of `replicas_min` to `replicas_max` replicas; GPUs, CPU and memory are for each of them."""

    replicas_min: int = Field(default=1, ge=1, le=MOST_REPLICAS)
    replicas_max: int = Field(default=1, ge=1, le=MOST_REPLICAS)
    gpus_per_replica: int = Field(ge=1, le=MOST_GPUS)
    # in order of preference
    tiers: Annotated[tuple[TierName, ...], Tuple, AfterValidator(_no_repeats), _at_most(16)]
    cpu_m: int = Field(default=1000, ge=1, le=MOST_INT)
    memory_mib: int = Field(default=1024, ge=1, le=MOST_INT)
    mix_tiers: bool = False

    @model_validator(mode="before")
    @classmethod
    def _fixed_unless_said(cls, data: Any) -> Any:
        """Without `replicas_max` a gang has exactly `replicas_min`."""
        if isinstance(data, dict) and "replicas_min" in data and "replicas_max" not in data:
            return {**data, "replicas_max": data["replicas_min"]}
        return data

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.replicas_max < self.replicas_min:
            raise PydanticCustomError("replicas_order", "replicas_max is below replicas_min.")
        return self

    @property
    def gpu_count(self) -> int:
        """At most: what approval, quota and estimates reckon with."""
        return self.replicas_max * self.gpus_per_replica

    @property
    def units(self) -> int:
        return self.gpu_count * UNITS_PER_GPU

    @property
    def least_units(self) -> int:
        """What it needs to start at all."""
        return self.replicas_min * self.gpus_per_replica * UNITS_PER_GPU


class Spec(_Document):
    """What to run, with what."""

    command: Annotated[tuple[Word, ...], Tuple, _at_most(1024)]
    image: Annotated[str, AfterValidator(_storable), _at_most(512)] | None = None
    env: Annotated[dict[EnvName, Text], _at_most(512, 0)] = Field(default_factory=dict)
    working_dir: Path | None = None
    ports: Annotated[tuple[Port, ...], Tuple, _at_most(16, 0)] = ()
    checkpoint_dir: Path | None = None
    time_limit_s: int | None = Field(default=None, ge=1, le=MOST_SECONDS)
    request: Request

    @model_validator(mode="after")
    def _ports_once(self) -> Self:
        # a-b and a_b would be the same variable, GPUYARD_PORT_A_B
        if len({port.name.replace("-", "_") for port in self.ports}) < len(self.ports):
            raise PydanticCustomError("ports_repeated", "Two ports have the same name.")
        return self

    def as_json(self) -> dict[str, Any]:
        """The document as it is stored."""
        return self.model_dump(mode="json")


def spec_parse(data: Any, *, field: str = "spec") -> Spec:
    """Reads what somebody sent; `Invalid` names every wrong field (`spec.request.gpus_per_replica`)."""
    try:
        spec = Spec.model_validate(data)
    except ValidationError as exc:
        errors = tuple(_field_error(one, field) for one in exc.errors(include_url=False, include_input=False))
        raise Invalid("spec_invalid", _("The request is not valid."), errors=errors) from exc
    size = len(json.dumps(spec.as_json(), ensure_ascii=False).encode())
    if size > LARGEST_DOCUMENT:
        raise Invalid(
            "spec_too_large",
            _("The spec has %(size)s bytes.") % {"size": size},
            field=field,
            remedy=_("Keep it below %(most)s bytes; put data into files.") % {"most": LARGEST_DOCUMENT},
        )
    return spec


# --- Words for what is wrong -----------------------------------------------------------------------------

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
}
_BY_CODE: dict[str, tuple[str, str]] = {
    "missing": (gettext_noop("This field is missing."), gettext_noop("Add this field.")),
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
    "ports_repeated": (
        gettext_noop("Two ports have the same name."),
        gettext_noop("Give each port its own name; - and _ count as the same."),
    ),
    "health_path": (
        gettext_noop("This is no path."),
        gettext_noop("Begin it with / and leave out blanks; at most 200 characters."),
    ),
    "replicas_order": (
        gettext_noop("replicas_max is below replicas_min."),
        gettext_noop("Raise replicas_max or lower replicas_min."),
    ),
}
_NUMBER_CODES = frozenset({"int_type", "int_from_float", "int_parsing", "int_parsing_size"})
_RANGE_CODES = frozenset({"greater_than_equal", "less_than_equal"})


def _field_error(one: ErrorDetails, field: str) -> FieldError:
    code, path = one["type"], [str(part) for part in one["loc"] if part != "[key]"]
    if code == "replicas_order":
        path.append("replicas_max")
    if code == "ports_repeated":
        path.append("ports")
    message, remedy = _words(code, one["msg"], path)
    # A name sent by the client may be very long, or not storable: it is shown, so it is cut.
    dotted = ".".join([field, *(part[:80] for part in path)])
    return FieldError(dotted, code, message, remedy)


def _words(code: str, otherwise: str, path: list[str]) -> tuple[str, str]:
    own = next((_BY_FIELD[part] for part in reversed(path[-2:]) if part in _BY_FIELD), None)
    if code in _NUMBER_CODES:
        return _("This is no whole number."), _(own or gettext_noop("Give a whole number."))
    if code in _RANGE_CODES:
        return _("This number is out of range."), _(own or gettext_noop("Give another number."))
    if code in _BY_CODE:
        message, remedy = _BY_CODE[code]
        keeps_own = own and code in {"missing", "string_type", "string_too_short", "repeated"}
        return _(message), _(own) if own and keeps_own else _(remedy)
    return otherwise, _(own or gettext_noop("Correct this field."))
