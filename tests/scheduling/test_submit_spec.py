"""Which specs are taken, and what is said about the others: the field, and what to do."""

from typing import Any

import pytest

from gpuyard.core.errors import Invalid
from scheduling.specs import spec_parse
from tests import factories as make


def _changed(path: str, value: Any) -> dict[str, Any]:
    document = make.spec_document("h100-80g")
    *outer, last = path.split(".")
    target = document
    for key in outer:
        target = target[key]
    target[last] = value
    return document


def _each(path: str, *values: Any) -> list[tuple[str, Any]]:
    return [(path, value) for value in values]


def test_a_spec_is_stored_as_it_was_sent() -> None:
    document = make.spec_document(
        "h100-80g", gpus=4, replicas=2, ports=[{"name": "http", "health_path": "/h"}]
    )

    stored = spec_parse(document).as_json()

    assert {key: stored["request"][key] for key in document["request"]} == document["request"]
    assert {**stored, "request": None} == {**document, "request": None}
    assert spec_parse(stored).as_json() == stored


def test_what_is_left_out_has_a_default() -> None:
    spec = spec_parse(
        {"command": ["true"], "request": {"replicas_min": 3, "gpus_per_replica": 2, "tiers": ["a"]}}
    )

    assert (spec.request.replicas_max, spec.request.tier_choice, spec.time_limit_s) == (3, "value", None)


def test_more_gpus_than_any_node_has_are_taken() -> None:
    assert spec_parse(_changed("request.gpus_per_replica", 1024)).request.gpus_per_replica == 1024


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *_each("request.gpus_per_replica", 0, -1, 2**31, 1 / 3, "1", True, None, [1], 10**400),
        *_each("request.replicas_min", 0, -1, 2**31, 1.5),
        ("request.replicas_max", 0),
        *_each("request.cpu_m", 0, 2**31, 0.5),
        *_each("request.memory_mib", 0, -5, 2**63),
        *_each("request.tiers", [], None, "h100-80g", ["a", "a"], ["x"] * 17),
        ("request.tiers.0", ["a\x00b"]),
        *_each("command", [], None, "true", {}),
        ("command.0", [""]),
        ("command.1", ["true", "a\x00b"]),
        ("command.0", ["x" * 1_000_000]),
        ("command.0", ["\ud800"]),
        ("command.0", [3]),
        ("env.A", {"A": "a\x00b"}),
        ("env.A", {"A": "x" * 1_000_000}),
        ("env.1A", {"1A": "x"}),
        ("env.RANK", {"RANK": "0"}),
        ("env.CUDA_VISIBLE_DEVICES", {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}),
        ("env.NVIDIA_VISIBLE_DEVICES", {"NVIDIA_VISIBLE_DEVICES": "all"}),
        ("env.GPUYARD_TEAM", {"GPUYARD_TEAM": "x"}),
        ("ports.0.name", [{"name": "Http"}]),
        ("ports.0", [{"name": "rendezvous"}]),
        ("ports.0.health_path", [{"name": "http", "health_path": "no"}]),
        ("ports", [{"name": "http"}, {"name": "http"}]),
        ("ports", [{"name": "a-b"}, {"name": "a_b"}]),
        *_each("time_limit_s", 0, -1, 2**31, 1.5, "1h"),
        ("working_dir", ""),
        ("image", "x" * 513),
        ("colour", "blue"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_bad_field_is_named_with_a_remedy(path: str, value: Any) -> None:
    target = path
    if isinstance(value, list | dict) and path.split(".")[0] in {"command", "env", "ports"}:
        target = path.split(".")[0]
    elif path == "request.tiers.0":
        target = "request.tiers"

    with pytest.raises(Invalid) as refused:
        spec_parse(_changed(target, value))

    found = {error.field: error for error in refused.value.errors}
    assert f"spec.{path}" in found, found.keys()
    assert found[f"spec.{path}"].remedy
    assert len(str(found[f"spec.{path}"].message)) < 200


def test_fewer_at_most_than_at_least_is_refused() -> None:
    with pytest.raises(Invalid) as refused:
        spec_parse(make.spec_document("a", replicas=3, replicas_max=2))
    assert refused.value.errors[0].field == "spec.request.replicas_max"


@pytest.mark.parametrize("document", [None, [], "spec", 3, {}, {"request": None, "command": ["x"]}])
def test_what_is_no_document_is_refused(document: Any) -> None:
    with pytest.raises(Invalid) as refused:
        spec_parse(document)
    assert all(error.field and error.field.startswith("spec") for error in refused.value.errors)


def test_a_document_beyond_a_megabyte_is_refused() -> None:
    with pytest.raises(Invalid) as refused:
        spec_parse({**make.spec_document("a"), "command": ["x" * 60_000] * 20})
    assert refused.value.code == "spec_too_large"


def test_all_that_is_wrong_is_said_at_once() -> None:
    document = make.spec_document("a", gpus=0, command=[])

    with pytest.raises(Invalid) as refused:
        spec_parse(document)
    assert {error.field for error in refused.value.errors} == {
        "spec.command",
        "spec.request.gpus_per_replica",
    }
