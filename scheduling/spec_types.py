"""The parts that specs are made of: texts that can be stored, names, moments, and the base of every document."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from gpuyard.core.text import is_storable
from gpuyard.fleet.architectures import ARCHITECTURES
from gpuyard.fleet.labels import LABEL

LONGEST_TEXT = 64 * 1024
MOST_SECONDS = 366 * 24 * 3600
MOST_INT = 2**31 - 1

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RESERVED_ENV = re.compile(
    r"GPUYARD_.*|(CUDA|NVIDIA|HIP|ROCR)_VISIBLE_DEVICES|RANK|WORLD_SIZE|LOCAL_RANK|NODE_RANK|MASTER_(ADDR|PORT)"
)
_PORT_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_WORKLOAD_ID = re.compile(r"w-[0-9a-z]{8}")
_LEVEL = re.compile(r"\S{1,32}")


def storable(value: str) -> str:
    if not is_storable(value):
        raise PydanticCustomError("null_characters_not_allowed", "The text contains NUL characters.")
    return value


def no_repeats(values: tuple[Any, ...]) -> tuple[Any, ...]:
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


def _known_architecture(name: str) -> str:
    if name not in ARCHITECTURES:
        raise PydanticCustomError("architecture_unknown", "There is no such architecture.")
    return name


def _list_only(value: Any) -> Any:
    # pydantic would take any iterable of a strict tuple's items only from a tuple; JSON has lists
    return tuple(value) if isinstance(value, list) else value


def _moment(value: Any) -> Any:
    # strict: a datetime, which JSON has not; and one without a zone would be the server's guess
    if not isinstance(value, str):
        raise PydanticCustomError("moment", "This is no moment.")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or not 2000 <= moment.year <= 2199:
        raise PydanticCustomError("moment", "This is no moment.")
    return moment


def at_most(longest: int, shortest: int = 1) -> Any:
    return Field(min_length=shortest, max_length=longest)


Text = Annotated[str, at_most(LONGEST_TEXT, 0), AfterValidator(storable)]
Word = Annotated[str, at_most(LONGEST_TEXT), AfterValidator(storable)]
Path = Annotated[str, at_most(4096), AfterValidator(storable)]
EnvName = Annotated[
    str,
    AfterValidator(_env_free),
    AfterValidator(_matches(_ENV_NAME, "env_name", "This is no name of a variable.")),
]
PortName = Annotated[str, AfterValidator(_matches(_PORT_NAME, "port_name", "This is no name of a port."))]
HealthPath = Annotated[
    str,
    AfterValidator(storable),
    AfterValidator(_matches(re.compile(r"/\S{0,199}"), "health_path", "This is no path.")),
]
TierName = Annotated[str, at_most(64), AfterValidator(storable)]
Capability = Annotated[str, at_most(40), AfterValidator(storable)]
Architecture = Annotated[str, AfterValidator(_known_architecture)]
NodeName = Annotated[str, at_most(64), AfterValidator(storable)]
NodeLabel = Annotated[str, AfterValidator(_matches(LABEL, "node_label", "This is no label."))]
WorkloadId = Annotated[
    str, AfterValidator(_matches(_WORKLOAD_ID, "workload_id", "This is no id of a workload."))
]
Level = Annotated[
    str, AfterValidator(storable), AfterValidator(_matches(_LEVEL, "level", "This is no level."))
]
Moment = Annotated[AwareDatetime, BeforeValidator(_moment)]
Tuple = BeforeValidator(_list_only)
NoRepeats = AfterValidator(no_repeats)


class Document(BaseModel):
    """Immutable, strict about JSON's types, and without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
