"""What the request form answers while somebody types: quota, approval, price, and what is free now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuyard.core import clock, hooks
from gpuyard.core.models import User
from scheduling.facts import kind_check, request_facts
from scheduling.references import references_check
from scheduling.sizes import Size, tiers_of
from scheduling.specs import Spec, spec_parse
from scheduling.supply import TierSupply, never_fits_text, tier_supply
from scheduling.usage import QuotaCheck
from tenants.approvers import Approver, StageAsked, stages_asked
from tenants.models import Role, Team
from tenants.policies import Facts
from tenants.rules import rule_for
from tenants.selectors import role_require


@dataclass(frozen=True)
class ApprovalCheck:
    """Which rule would decide, and who would be asked, in this order. Nobody: it goes through at once."""

    rule: str
    stages: tuple[StageAsked, ...]

    @property
    def approvers(self) -> tuple[Approver, ...]:
        """Of all stages."""
        return tuple(one for stage in self.stages for one in stage.approvers)

    @property
    def is_auto(self) -> bool:
        return not self.stages


@dataclass(frozen=True)
class RequestCheck:
    """The answers as of now; quota and supply tier by tier, in the order of preference.

    `never_fits` has one sentence for each tier on which it could never start, if that is so for all of them.
    """

    spec: Spec
    facts: Facts
    size: tuple[Size, ...]
    quota: tuple[QuotaCheck, ...]
    approval: ApprovalCheck
    estimate: hooks.Estimate | None
    supply: tuple[TierSupply, ...]
    never_fits: tuple[str, ...]
    as_of: datetime

    @property
    def fits_quota(self) -> bool:
        """Whether the limits leave enough for it to start on one of its tiers."""
        return any(check.is_within_limit for check in self.quota)

    @property
    def fits_guarantee(self) -> bool:
        """Whether it would run inside the team's guarantee, whichever tier it gets."""
        return all(check.is_within_guarantee for check in self.quota)

    @property
    def fits_now(self) -> bool:
        """Whether there is room at this moment within quota; the queue may still be ahead of it."""
        return any(
            supply.fits_now(self.spec.request) and check.is_within_limit
            for supply, check in zip(self.supply, self.quota, strict=True)
        )


def request_check(
    actor: User, team: Team, *, kind: str, spec: Any, priority: int = 0, band: int = 0
) -> RequestCheck:
    """Answers for a draft that could be submitted; `Invalid` says what is still wrong with it. Stores nothing."""
    role_require(actor, team, Role.MEMBER, Role.MANAGER)
    kind_check(kind)
    parsed = spec_parse(spec)
    tiers = tiers_of(parsed.request)
    references_check(actor, parsed.request)
    known = request_facts(team, kind, parsed, priority=priority, band=band, tiers=tiers)
    supply = tuple(tier_supply(team, tiers, parsed.request))
    never = tuple(never_fits_text(one, parsed.request) for one in supply)
    now = clock.now()
    return RequestCheck(
        spec=parsed,
        facts=known.facts,
        size=known.size,
        quota=known.quota,
        approval=_approval(actor, team, known.facts, now),
        estimate=known.estimate,
        supply=supply,
        never_fits=never if all(never) else (),
        as_of=now,
    )


def _approval(actor: User, team: Team, facts: Facts, now: datetime) -> ApprovalCheck:
    _policy, match = rule_for(team, facts, now)
    return ApprovalCheck(match.rule, stages_asked(match.then, team=team, requester=actor))
