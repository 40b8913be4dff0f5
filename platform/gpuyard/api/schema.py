"""What drf-spectacular cannot read from the code: the token scheme, and the problems of every operation."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension, OpenApiSerializerExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent

from gpuyard.core.problems import CONTENT_TYPE

_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "RFC 9457 problem details. `code` is stable; `errors` names fields by dotted path.",
    "required": ["type", "title", "status", "detail", "code", "errors", "instance"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": _TEXT,
        "status": {"type": "integer"},
        "detail": _TEXT,
        "code": _TEXT,
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["field", "code", "message", "remedy"],
                "properties": {
                    "field": _TEXT_OR_NULL,
                    "code": _TEXT,
                    "message": _TEXT,
                    "remedy": _TEXT_OR_NULL,
                },
            },
        },
        "instance": _TEXT,
    },
}
_ALWAYS = {
    "400": "What was sent is not valid.",
    "401": "Not signed in.",
    "403": "Not allowed.",
    "429": "Too many requests.",
}
_WITH_ID = {"404": "There is no such thing, or you may not see it."}
_IDS = frozenset({"team", "company"})  # parameters that hold one
_ON_CHANGE = {
    "409": "It does not fit what is there, or somebody else changed it meanwhile.",
    "413": "The request is too large.",
    "415": "Not a JSON document.",
}


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call] # its base is untyped
    target_class = "gpuyard.api.authentication.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "A personal token or one of a service account. Scopes: `read` for GET, `write` for"
            " all else, or those of one area only, such as `workloads:write`.",
        }


class _DocumentSchema(OpenApiSerializerExtension):  # type: ignore[no-untyped-call] # its base is untyped
    """A document, described by the pydantic model that checks it: what is sent and stored is the same."""

    priority = 1  # before drf-spectacular's own, which describes what pydantic would write, defaults required
    name = ""
    parts = ""  # what the names of its parts begin with

    def get_name(self, auto_schema: AutoSchema, direction: str) -> str:
        return self.name

    def map_serializer(self, auto_schema: AutoSchema, direction: str) -> dict[str, Any]:
        template = f"#/components/schemas/{self.parts}{{model}}"
        schema: dict[str, Any] = self.target.model_json_schema(ref_template=template, mode="validation")
        for name, part in schema.pop("$defs", {}).items():
            full = f"{self.parts}{name}"
            component = ResolvedComponent(  # type: ignore[no-untyped-call]
                name=full, type=ResolvedComponent.SCHEMA, object=full, schema=part
            )
            auto_schema.registry.register_on_missing(component)
            _lengths_of_lists(part)
        _lengths_of_lists(schema)
        return schema


class SpecSchema(_DocumentSchema):  # type: ignore[no-untyped-call] # its base is untyped
    """What a workload is to run."""

    target_class = "scheduling.specs.Spec"
    name = "WorkloadSpec"
    parts = "Spec"


class RulesSchema(_DocumentSchema):  # type: ignore[no-untyped-call] # its base is untyped
    """A company's approval rules."""

    target_class = "tenants.policies.ApprovalDocument"
    name = "ApprovalRules"
    parts = "Approval"


def _lengths_of_lists(part: dict[str, Any]) -> None:
    """pydantic says minLength of a list that our own validator makes from a list; it means minItems."""
    for one in part.get("properties", {}).values():
        if one.get("type") == "array":
            for end in ("min", "max"):
                if f"{end}Length" in one:
                    one[f"{end}Items"] = one.pop(f"{end}Length")


def problems_add(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """A postprocessing hook: adds the problem answers that the operations do not name themselves."""
    result.setdefault("components", {}).setdefault("schemas", {})["Problem"] = PROBLEM
    for path, operations in result["paths"].items():
        for method, operation in operations.items():
            problems = dict(_ALWAYS)
            if "{" in path or any(one["name"] in _IDS for one in operation.get("parameters", ())):
                problems |= _WITH_ID
            if method not in {"get", "head"}:
                problems |= _WITH_ID | _ON_CHANGE
            for status, description in problems.items():
                operation["responses"].setdefault(status, _problem_response(description))
    return result


def _problem_response(description: str) -> dict[str, Any]:
    reference = {"$ref": "#/components/schemas/Problem"}
    return {"description": description, "content": {CONTENT_TYPE: {"schema": reference}}}
