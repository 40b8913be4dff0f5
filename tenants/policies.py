"""Approval rules as data: which request goes through by itself, and who decides on the others.

The rules are read in order; the first whose `when` holds for the facts of a request says what happens. The last
rule has no conditions, so that every request has a rule. A fact that is not known (no time limit, no price) counts
as boundless: it is never "at most" anything, and always "at least".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import Field, model_validator

from gpuyard.core.policy import PolicyDocument

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
# what is asked for: the apps that own the subjects say which kinds there are (`core.hooks.case_handlers`)
Kind = Annotated[str, Field(pattern="^[a-z][a-z_]{0,39}$")]
TimeOfDay = Annotated[str, Field(pattern="^([01][0-9]|2[0-3]):[0-5][0-9]$")]
TeamId = Annotated[str, Field(min_length=1, max_length=16)]
Name = Annotated[str, Field(min_length=1, max_length=80)]
Hours = Annotated[int, Field(ge=1, le=8784)]


@dataclass(frozen=True)
class Facts:
    """What the rules can see of a request. `over_quota`: it may start beyond the team's guarantee (borrowed).

    `teams`: the ids of its team and of those above it. `day` and `time` are when it was asked, in the company's zone.
    """

    kind: str
    tiers: tuple[str, ...] = ()
    gpu_count: int = 0
    hours: Decimal | None = None
    estimated_cost: Decimal | None = None
    currency: str = ""
    over_quota: bool = False
    budget_left: Decimal | None = None
    priority: int = 0
    band: int = 0
    teams: tuple[str, ...] = ()
    day: str = ""
    time: str = ""
    asked: str = ""  # in words, for people; no rule sees it

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values, as a case keeps them; decimals are text."""
        plain = {
            key: str(value) if isinstance(value, Decimal) else value for key, value in asdict(self).items()
        }
        return {**plain, "tiers": list(self.tiers), "teams": list(self.teams)}


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


class TimeSpan(PolicyDocument):
    """A span of the day, `until` left out; over midnight where it is the earlier one."""

    since: TimeOfDay
    until: TimeOfDay

    def holds(self, time: str) -> bool:
        if not time:
            return False
        if self.since <= self.until:
            return self.since <= time < self.until
        return time >= self.since or time < self.until


class When(PolicyDocument):
    """Conditions that must all hold; one that is left out always holds. `teams` mean those below them too."""

    kinds: tuple[Kind, ...] | None = None
    teams: tuple[TeamId, ...] | None = None
    # any of the asked tiers is one of these; all of them are among these
    tiers_any: tuple[str, ...] | None = None
    tiers_within: tuple[str, ...] | None = None
    gpu_count: Bounds | None = None
    hours: Bounds | None = None
    estimated_cost: Bounds | None = None
    budget_left: Bounds | None = None
    priority: Bounds | None = None
    band: Bounds | None = None
    over_quota: bool | None = None
    days: tuple[Day, ...] | None = None
    time: TimeSpan | None = None

    @property
    def is_empty(self) -> bool:
        return all(value is None for value in self.__dict__.values())

    def holds(self, facts: Facts) -> bool:
        return self._lists_hold(facts) and self._bounds_hold(facts)

    def _lists_hold(self, facts: Facts) -> bool:
        asked = set(facts.tiers)
        return (
            (self.kinds is None or facts.kind in self.kinds)
            and (self.teams is None or bool(set(facts.teams) & set(self.teams)))
            and (self.tiers_any is None or bool(asked & set(self.tiers_any)))
            and (self.tiers_within is None or asked <= set(self.tiers_within))
            and (self.over_quota is None or facts.over_quota == self.over_quota)
            and (self.days is None or facts.day in self.days)
            and (self.time is None or self.time.holds(facts.time))
        )

    def _bounds_hold(self, facts: Facts) -> bool:
        names = ("gpu_count", "hours", "estimated_cost", "budget_left", "priority", "band")
        bounds: list[tuple[Bounds | None, Any]] = [(getattr(self, one), getattr(facts, one)) for one in names]
        return all(bound is None or bound.holds(value) for bound, value in bounds)


class Step(PolicyDocument):
    """One decision.

    `team`: of somebody with the role on the request's team; `ancestor`: on a team above it; `admin`: of a platform
    admin; `group`: of one of a named group of the company.
    """

    role: Literal["manager", "finance"] = "manager"
    level: Literal["team", "ancestor", "admin", "group"] = "team"
    group: Name | None = None

    @model_validator(mode="after")
    def _group_named(self) -> Self:
        _group_check(self.level, self.group)
        return self


class Escalation(PolicyDocument):
    """Who may decide as well once a stage is past its deadline. `ancestor`: the managers above."""

    to: Literal["ancestor", "group", "admin"] = "ancestor"
    group: Name | None = None

    @model_validator(mode="after")
    def _group_named(self) -> Self:
        _group_check(self.to, self.group)
        return self


def _group_check(level: str, group: str | None) -> None:
    if (level == "group") != (group is not None):
        raise ValueError("Name a group for the level group, and for no other.")


class Stage(PolicyDocument):
    """Decisions that are asked for at the same time: `all` of them are needed, or `any` one."""

    steps: tuple[Step, ...] = Field(min_length=1, max_length=10)
    needs: Literal["all", "any"] = "all"
    deadline_h: Hours | None = None
    escalate: Escalation | None = None

    @model_validator(mode="after")
    def _escalates_after_something(self) -> Self:
        if self.escalate is not None and self.deadline_h is None:
            raise ValueError("Escalation needs a deadline. Give deadline_h.")
        return self


class Then(PolicyDocument):
    """`{"auto": true}`, or `{"stages": [...]}`, decided one after the other.

    `{"steps": [...]}` is short for stages of one step each, and what documents said before there were stages.
    """

    auto: bool = False
    stages: tuple[Stage, ...] = Field(default=(), max_length=5)
    expires_h: Hours | None = None

    @model_validator(mode="before")
    @classmethod
    def _steps_are_stages(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "steps" not in data or "stages" in data:
            return data
        steps = data["steps"]
        rest = {key: value for key, value in data.items() if key != "steps"}
        return {
            **rest,
            "stages": [{"steps": [one]} for one in steps] if isinstance(steps, list | tuple) else steps,
        }

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.auto == bool(self.stages):
            raise ValueError('Give either "auto": true or at least one stage.')
        if self.auto and self.expires_h is not None:
            raise ValueError("What goes through by itself does not expire. Remove expires_h.")
        return self

    def groups(self) -> set[str]:
        """The groups that it names."""
        steps = {step.group for stage in self.stages for step in stage.steps}
        return {one for one in (steps | {s.escalate.group for s in self.stages if s.escalate}) if one}


class Rule(PolicyDocument):
    name: Name
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
    """Which rule decides on these facts, and how: no stages means at once."""

    rule: str
    then: Then
    facts: Facts

    @property
    def is_auto(self) -> bool:
        return self.then.auto


def rule_match(document: ApprovalDocument, facts: Facts) -> RuleMatch:
    """The first rule that holds. The same document and facts always give the same answer."""
    for rule in document.rules:
        if rule.when.holds(facts):
            return RuleMatch(rule.name, rule.then, facts)
    raise AssertionError("the last rule has no conditions")


def rule_named(document: ApprovalDocument, name: str) -> Then:
    """What the rule of this name says; of a version that a case points at, so that it is there."""
    return next(rule.then for rule in document.rules if rule.name == name)


def asked_at(facts: Facts, moment: datetime, time_zone: str) -> Facts:
    """The facts with `day` and `time` as the clocks of the company show."""
    local = moment.astimezone(ZoneInfo(time_zone))
    return replace(facts, day=DAYS[local.weekday()], time=f"{local:%H:%M}")


_AMOUNTS = ("hours", "estimated_cost", "budget_left")


def facts_from_json(data: Mapping[str, Any]) -> Facts:
    """The facts as a case keeps them: an old case lacks what rules learnt to see later."""
    known = {field.name for field in fields(Facts)}
    amounts = {key: None if data.get(key) is None else Decimal(data[key]) for key in _AMOUNTS}
    lists = {key: tuple(data.get(key, ())) for key in ("tiers", "teams")}
    return Facts(**{**{key: value for key, value in data.items() if key in known}, **amounts, **lists})


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
            "then": {
                "stages": [
                    {
                        "steps": [{"role": "manager", "level": "team"}],
                        "deadline_h": 24,
                        "escalate": {"to": "ancestor"},
                    }
                ],
                "expires_h": 336,
            },
        },
    ]
}
"""What a new company begins with."""
