"""The spec of a workload: what may be asked for, as an immutable document. The pages and the API take the same one.

What can be stored but never fits (more GPUs than any node has) is accepted: its verdict says so, and the next node
that joins may change it. What could never mean anything is refused, each field with its remedy (`spec_words`).
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Self

from django.utils.translation import gettext as _
from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from gpuyard.core.errors import Invalid
from scheduling.request_spec import MOST_GPUS, MOST_REPLICAS, Array, Capabilities, Request, Topology
from scheduling.spec_types import (
    MOST_SECONDS,
    Document,
    EnvName,
    HealthPath,
    Path,
    PortName,
    Text,
    Tuple,
    Word,
    at_most,
    storable,
)
from scheduling.spec_words import contradictions_raise, field_errors

__all__ = [
    "MOST_GPUS",
    "MOST_REPLICAS",
    "Array",
    "Capabilities",
    "Port",
    "Request",
    "Spec",
    "Topology",
    "request_of",
    "spec_parse",
]

LARGEST_DOCUMENT = 1_000_000
RENDEZVOUS = "rendezvous"  # the port by which the ranks of a gang find one another: given to every gang


class Port(Document):
    """A port that each replica listens on; the agent asks `health_path` whether it is well."""

    name: PortName
    health_path: HealthPath | None = None

    @model_validator(mode="after")
    def _not_ours(self) -> Self:
        if self.name == RENDEZVOUS:
            raise PydanticCustomError("port_reserved", "GPU Yard gives every gang a port of this name.")
        return self


class Spec(Document):
    """What to run, with what."""

    command: Annotated[tuple[Word, ...], Tuple, at_most(1024)]
    image: Annotated[str, at_most(512), AfterValidator(storable)] | None = None
    env: Annotated[dict[EnvName, Text], at_most(512, 0)] = Field(default_factory=dict)
    working_dir: Path | None = None
    ports: Annotated[tuple[Port, ...], Tuple, at_most(16, 0)] = ()
    checkpoint_dir: Path | None = None
    time_limit_s: int | None = Field(default=None, ge=1, le=MOST_SECONDS)
    request: Request

    @model_validator(mode="after")
    def _ports_once(self) -> Self:
        # a-b and a_b would be the same variable, GPUYARD_PORT_A_B
        if len({port.name.replace("-", "_") for port in self.ports}) < len(self.ports):
            contradictions_raise(["ports_repeated"])
        return self

    def as_json(self) -> dict[str, Any]:
        """The document as it is stored."""
        return self.model_dump(mode="json")


def spec_parse(data: Any, *, field: str = "spec") -> Spec:
    """Reads what somebody sent; `Invalid` names every wrong field (`spec.request.gpus_per_replica`)."""
    try:
        spec = Spec.model_validate(data)
    except ValidationError as exc:
        found = exc.errors(include_url=False, include_input=False)
        errors = [error for one in found for error in field_errors(one, field)]
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


def request_of(document: dict[str, Any]) -> Request:
    """The request of a stored document."""
    return Request.model_validate(document["request"])
