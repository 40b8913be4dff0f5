"""Approval rules as data: which request goes through by itself, and who decides on the others.

The rules are read in order; the first whose `when` holds for the facts of a request says what happens. The last
rule has no conditions, so that every request has a rule. A fact that is not known (no time limit, no price) counts
as boundless: it is never "at most" anything, and always "at least".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from gpuyard.core.policy import PolicyDocument

Kind = Literal["training", "inference", "development"]
Short = Field(min_length=1, max_length=80)


@dataclass(frozen=True)
class Facts:
    """What the rules can see of a request. `over_quota`: it may start beyond the team's guarantee (borrowed)."""

    kind: str
    tiers: tuple[str, ...]
    gpu_count: int
    hours: Decimal | None = None
    estimated_cost: Decimal | None = None
    currency: str = ""
    over_quota: bool = False
    priority: int = 0
    asked: str = ""  # in words, for people; no rule sees it

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values, as a case keeps them; decimals are text."""
        plain = {
            key: str(value) if isinstance(value, Decimal) else value for key, value in asdict(self).items()
        }
        return {**plain, "tiers": list(self.tiers)}


class Bounds(PolicyDocument):
    """Inclusive. Written as `{"max": 4}`, `{"min": 5}` or both."""

    min: Decimal | None = None
    max: Decimal | None = None

    @model_validator(mode="after")
    def _some_and_ordered(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("Give min, max or both.")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("min is above max. Exchange them.")
        return self

    def holds(self, value: Decimal | int | None) -> bool:
        if value is None:
            return self.max is None
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)


class When(PolicyDocument):
    """Conditions that must all hold; one that is left out always holds."""

    kinds: tuple[Kind, ...] | None = None
    # any of the asked tiers is one of these; all of them are among these
    tiers_any: tuple[str, ...] | None = None
    tiers_within: tuple[str, ...] | None = None
    gpu_count: Bounds | None = None
    hours: Bounds | None = None
    estimated_cost: Bounds | None = None
    priority: Bounds | None = None
    over_quota: bool | None = None

    @property
    def is_empty(self) -> bool:
        return all(value is None for value in self.__dict__.values())

    def holds(self, facts: Facts) -> bool:
        asked = set(facts.tiers)
        return (
            (self.kinds is None or facts.kind in self.kinds)
            and (self.tiers_any is None or bool(asked & set(self.tiers_any)))
            and (self.tiers_within is None or asked <= set(self.tiers_within))
            and (self.gpu_count is None or self.gpu_count.holds(facts.gpu_count))
            and (self.hours is None or self.hours.holds(facts.hours))
            and (self.estimated_cost is None or self.estimated_cost.holds(facts.estimated_cost))
            and (self.priority is None or self.priority.holds(facts.priority))
            and (self.over_quota is None or facts.over_quota == self.over_quota)
        )


class Step(PolicyDocument):
    """One decision. `team`: of the request's team; `ancestor`: of a team above it; `admin`: of a platform admin."""

    role: Literal["manager", "finance"] = "manager"
    level: Literal["team", "ancestor", "admin"] = "team"


class Then(PolicyDocument):
    """`{"auto": true}`, or `{"steps": [...]}` in the order in which they are decided."""

    auto: bool = False
    steps: tuple[Step, ...] = Field(default=(), max_length=5)

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.auto == bool(self.steps):
            raise ValueError('Give either "auto": true or at least one step.')
        return self


class Rule(PolicyDocument):
    name: str = Short
    when: When = When()
    then: Then


class ApprovalDocument(PolicyDocument):
    """A company's approval rules."""

    rules: tuple[Rule, ...] = Field(min_length=1, max_length=100)

    @model_validator(mode="after")
    def _names_and_default(self) -> Self:
        names = [rule.name for rule in self.rules]
        if len(set(names)) < len(names):
            raise ValueError("Two rules have the same name. Rename one.")
        if not self.rules[-1].when.is_empty:
            raise ValueError("The last rule needs an empty `when`: it decides on everything else.")
        return self


@dataclass(frozen=True)
class RuleMatch:
    """Which rule decides, and how: no steps means at once."""

    rule: str
    steps: tuple[Step, ...]

    @property
    def is_auto(self) -> bool:
        return not self.steps


def rule_match(document: ApprovalDocument, facts: Facts) -> RuleMatch:
    """The first rule that holds. The same document and facts always give the same answer."""
    for rule in document.rules:
        if rule.when.holds(facts):
            return RuleMatch(rule.name, rule.then.steps)
    raise AssertionError("the last rule has no conditions")


def facts_from_json(data: Mapping[str, Any]) -> Facts:
    """The facts as a case keeps them."""
    amounts = {
        key: None if data.get(key) is None else Decimal(data[key]) for key in ("hours", "estimated_cost")
    }
    return Facts(**{**data, **amounts, "tiers": tuple(data["tiers"])})


DEFAULT_DOCUMENT: dict[str, Any] = {
    "rules": [
        {
            "name": "Small and short",
            "when": {"gpu_count": {"max": 4}, "hours": {"max": 24}, "over_quota": False},
            "then": {"auto": True},
        },
        {
            "name": "Everything else",
            "when": {},
            "then": {"steps": [{"role": "manager", "level": "team"}]},
        },
    ]
}
"""What a new company begins with."""
