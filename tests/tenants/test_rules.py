"""Approval rules: which one matches."""

from decimal import Decimal
from typing import Any

import pytest

from gpuyard.core.errors import Invalid
from gpuyard.core.policy import document_parse
from tenants.policies import DEFAULT_DOCUMENT, ApprovalDocument, Facts, facts_from_json, rule_match

ELSE = {"name": "else", "then": {"steps": [{"role": "manager"}]}}
SMALL = Facts(
    kind="training", tiers=("l4-24g",), gpu_count=2, hours=Decimal(4), estimated_cost=Decimal("8.5")
)


def _matches(when: dict[str, Any], facts: Facts = SMALL) -> bool:
    document = document_parse(
        ApprovalDocument, {"rules": [{"name": "first", "when": when, "then": {"auto": True}}, ELSE]}
    )
    return rule_match(document, facts).rule == "first"


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ({"kinds": ["training"]}, True),
        ({"kinds": ["inference", "development"]}, False),
        ({"tiers_any": ["l4-24g", "h100-80g"]}, True),
        ({"tiers_any": ["h100-80g"]}, False),
        ({"tiers_within": ["l4-24g", "h100-80g"]}, True),
        ({"tiers_within": ["h100-80g"]}, False),
        ({"gpu_count": {"max": 2}}, True),
        ({"gpu_count": {"max": 1}}, False),
        ({"gpu_count": {"min": 2}}, True),
        ({"hours": {"min": 1, "max": 3}}, False),
        ({"estimated_cost": {"max": "8.50"}}, True),
        ({"priority": {"min": 1}}, False),
        ({"over_quota": False}, True),
        ({"over_quota": True}, False),
        ({"kinds": ["training"], "gpu_count": {"min": 3}}, False),
    ],
)
def test_each_condition(when: dict[str, Any], expected: bool) -> None:
    assert _matches(when) is expected


@pytest.mark.parametrize("fact", ["hours", "estimated_cost"])
def test_what_is_not_known_counts_as_boundless(fact: str) -> None:
    unknown = Facts(kind="training", tiers=("l4-24g",), gpu_count=1)

    assert not _matches({fact: {"max": 10**9}}, unknown)
    assert _matches({fact: {"min": 10**9}}, unknown)


@pytest.mark.parametrize(
    "document",
    [
        {"rules": []},
        {"rules": [{"name": "a", "when": {"gpu_count": {"max": 1}}, "then": {"auto": True}}]},
        {"rules": [ELSE, ELSE]},
        {"rules": [{"name": "a", "then": {}}]},
        {"rules": [{"name": "a", "then": {"auto": True, "steps": [{"role": "manager"}]}}]},
        {"rules": [{"name": "a", "when": {"gpus": 1}, "then": {"auto": True}}, ELSE]},
        {"rules": [{"name": "a", "when": {"hours": {}}, "then": {"auto": True}}, ELSE]},
        {"rules": [{"name": "a", "when": {"hours": {"min": 2, "max": 1}}, "then": {"auto": True}}, ELSE]},
        {"rules": [{"name": "a", "then": {"steps": [{"role": "king"}]}}]},
        "rules",
        None,
    ],
)
def test_a_document_that_leaves_something_open_is_refused(document: Any) -> None:
    with pytest.raises(Invalid):
        document_parse(ApprovalDocument, document)


def test_the_default_lets_small_requests_through_and_asks_for_the_rest() -> None:
    document = document_parse(ApprovalDocument, DEFAULT_DOCUMENT)

    assert rule_match(document, SMALL).is_auto
    assert not rule_match(document, Facts(kind="training", tiers=("l4-24g",), gpu_count=8)).is_auto


def test_facts_survive_being_stored() -> None:
    assert facts_from_json(SMALL.as_json()) == SMALL
