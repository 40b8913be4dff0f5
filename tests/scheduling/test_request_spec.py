"""What a request may ask for beside whole GPUs of named tiers: what is taken, what is refused, and with which words."""

from typing import Any

import pytest

from gpuyard.core.errors import Invalid
from scheduling.asked import asked_text
from scheduling.specs import Request, spec_parse
from tests import factories as make

WHOLE: dict[str, Any] = {"gpus_per_replica": 2, "tiers": ["h100-80g"]}
PART: dict[str, Any] = {"share": 250, "tiers": ["l4-24g"]}


def _parse(request: dict[str, Any]) -> Request:
    return spec_parse({"command": ["true"], "request": request}).request


def _refused(request: Any) -> dict[str | None, str]:
    with pytest.raises(Invalid) as refused:
        _parse(request)
    assert all(error.remedy for error in refused.value.errors)
    return {error.field: error.code for error in refused.value.errors}


def test_a_request_with_everything_is_stored_and_read_again_as_it_was() -> None:
    request = {
        **WHOLE,
        "replicas_min": 2,
        "replicas_max": 4,
        "elastic": True,
        "tier_choice": "order",
        "node_labels": ["zone=a"],
        "not_labels": ["disk=slow"],
        "not_nodes": ["node-07"],
        "topology": {"required": "block", "preferred": "rack", "wait_s": 600},
        "spread_level": "rack",
        "not_before": "2026-12-01T08:00:00+01:00",
        "depends_on": ["w-7k3f9q2m"],
        "array": {"count": 40, "parallel": 4},
        "min_run_s": 600,
        "restart_cost_s": 120,
    }

    stored = _parse(request).model_dump(mode="json")

    assert {key: stored[key] for key in request} == {**request, "not_before": "2026-12-01T08:00:00+01:00"}
    assert _parse(stored).model_dump(mode="json") == stored


def test_a_part_of_a_gpu_needs_no_number_of_gpus() -> None:
    assert (_parse(PART).gpus_per_replica, _parse(PART).is_part) == (1, True)
    assert _parse(WHOLE).is_part is False


@pytest.mark.parametrize(
    ("part", "slots"),
    [
        ({"share": 250}, 250),
        ({"gpu_memory_mib": 10_240}, 427),  # of 24,000 MiB: 426.7
        ({"share": 500, "gpu_memory_mib": 10_240}, 500),
        ({"share": 100, "gpu_memory_mib": 12_000}, 500),
        ({"gpu_memory_mib": 24_001}, 1001),
        ({"gpus_per_replica": 1}, 1000),
    ],
)
def test_a_part_is_the_larger_of_share_and_memory(part: dict[str, Any], slots: int) -> None:
    assert _parse({"tiers": ["l4-24g"], **part}).slots_on(24_000) == slots


@pytest.mark.parametrize(
    ("request_", "field", "code"),
    [
        ({"tiers": ["a"]}, "gpus_per_replica", "gpus_missing"),
        ({**PART, "gpus_per_replica": 2}, "gpus_per_replica", "share_of_many"),
        ({"gpus_per_replica": 1}, "tiers", "tiers_missing"),
        ({**WHOLE, "capabilities": {"memory_mib": 1}}, "capabilities", "tiers_twice"),
        ({**WHOLE, "capabilities": {}}, "capabilities", "capabilities_empty"),
        (
            {"gpus_per_replica": 1, "capabilities": {"architecture": "abacus"}},
            "capabilities.architecture",
            "architecture_unknown",
        ),
        ({**WHOLE, "elastic": True}, "elastic", "elastic_fixed"),
        ({**WHOLE, "node_labels": ["a=b"], "not_labels": ["a=b"]}, "not_labels", "label_contradicted"),
        ({**WHOLE, "node_labels": ["zone"]}, "node_labels.0", "node_label"),
        ({**WHOLE, "node_labels": ["a=b", "a=b"]}, "node_labels", "repeated"),
        ({**WHOLE, "not_nodes": ["a\x00"]}, "not_nodes.0", "null_characters_not_allowed"),
        ({**WHOLE, "topology": {}}, "topology", "topology_empty"),
        ({**WHOLE, "topology": {"required": "rack", "wait_s": 5}}, "topology", "wait_without_preferred"),
        ({**WHOLE, "spread_level": "island"}, "spread_level", "spread_island"),
        ({**WHOLE, "not_before": "tomorrow"}, "not_before", "moment"),
        ({**WHOLE, "not_before": "2026-12-01T08:00:00"}, "not_before", "moment"),
        ({**WHOLE, "not_before": 1}, "not_before", "moment"),
        ({**WHOLE, "depends_on": ["train"]}, "depends_on.0", "workload_id"),
        ({**WHOLE, "array": {"count": 2001}}, "array.count", "less_than_equal"),
        ({**WHOLE, "array": {}}, "array.count", "missing"),
        ({**WHOLE, "tier_choice": "luck"}, "tier_choice", "literal_error"),
        ({**WHOLE, "elastic": 1}, "elastic", "bool_type"),
    ],
)
def test_what_means_nothing_is_refused_beside_its_field(
    request_: dict[str, Any], field: str, code: str
) -> None:
    assert _refused(request_).get(f"spec.request.{field}") == code


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("share", [0, 1000, 0.25, "250", True]),
        ("gpu_memory_mib", [0, -1, 2**31, 0.5]),
        ("min_run_s", [-1, 10**9, 0.5, None]),
        ("restart_cost_s", [-1, "0"]),
    ],
)
def test_numbers_out_of_their_range_are_refused(field: str, values: list[Any]) -> None:
    for value in values:
        assert f"spec.request.{field}" in _refused({"tiers": ["a"], "share": 1, field: value})


def test_all_contradictions_are_said_at_once() -> None:
    assert set(_refused({"elastic": True})) == {
        "spec.request.gpus_per_replica",
        "spec.request.tiers",
        "spec.request.elastic",
    }


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (WHOLE, "2 × h100-80g"),
        (PART, "0.25 × l4-24g"),
        ({"gpu_memory_mib": 10_240, "tiers": ["l4-24g"]}, "10 GiB of l4-24g"),
        ({**PART, "gpu_memory_mib": 512}, "0.25 and 0.5 GiB of l4-24g"),
        ({**WHOLE, "replicas_min": 2, "replicas_max": 4}, "2–4 replicas of 2 × h100-80g"),
        ({**PART, "array": {"count": 40}}, "40 times 0.25 × l4-24g"),
        (
            {
                "gpus_per_replica": 1,
                "capabilities": {"memory_mib": 40_960, "architecture": "ampere", "labels": ["bf16"]},
            },
            "1 × any GPU with ≥ 40 GiB, ampere or newer, bf16",
        ),
    ],
)
def test_a_request_in_words(request_: dict[str, Any], text: str) -> None:
    assert asked_text(_parse(request_)) == text


def test_the_factory_makes_such_specs() -> None:
    assert spec_parse(make.spec_document("a", request_fields={"share": 100})).request.share == 100
