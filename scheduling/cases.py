"""Cases about workloads: what a decision does to them, and what an approver is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _

from gpuyard.core import clock
from gpuyard.core.errors import DomainError, StaleState
from gpuyard.core.hooks import CardFact
from scheduling.asked import asked_text
from scheduling.facts import request_facts
from scheduling.models import Workload
from scheduling.services import request_members, workloads_cancel, workloads_move
from scheduling.specs import spec_parse
from scheduling.states import WorkloadState
from scheduling.supply import free_text
from scheduling.wake import wake
from tenants.models import Case
from tenants.policies import Facts


class WorkloadCases:
    """The handler of cases about workloads (`core.hooks.case_handlers`)."""

    def on_case_decided(
        self, *, case_id: UUID, subject_id: UUID, approved: bool, actor: Any, reason: str
    ) -> None:
        """Approved: all of it waits for GPUs from now on, and the pass is woken. Rejected: it has ended."""
        found, pending, now = request_members(subject_id), WorkloadState.PENDING_APPROVAL, clock.now()
        if approved:
            rule = "" if actor else Case.objects.values_list("rule", flat=True).get(pk=case_id)
            changes = {"approved_by_rule": rule, "queued_at": now}
            new, action = WorkloadState.WAITING, "workload.approve"
        else:
            changes = {"state_reason": reason[:400], "ended_at": now}
            new, action = WorkloadState.REJECTED, "workload.reject"
        if not workloads_move(found, pending, new, action=action, actor=actor, reason=reason, **changes):
            raise StaleState()
        if approved:
            wake()

    def on_case_withdrawn(self, *, case_id: UUID, subject_id: UUID, actor: Any, reason: str) -> None:
        """It is cancelled."""
        if not workloads_cancel(request_members(subject_id), WorkloadState.PENDING_APPROVAL, actor, reason):
            raise StaleState()

    def card_facts(self, *, subject_id: UUID) -> Sequence[CardFact]:
        """What is asked, quota before and after, price, and what is free now."""
        workload = Workload.objects.select_related("spec", "team").get(pk=subject_id)
        assert workload.spec is not None
        spec = spec_parse(workload.spec.document)
        facts = [
            CardFact("asked", _("Asks for"), asked_text(spec.request)),
            CardFact("time_limit", _("For"), _duration(spec.time_limit_s)),
        ]
        try:
            known = request_facts(workload.team, workload.kind, spec, priority=workload.priority)
        except DomainError as exc:  # a tier that is gone meanwhile: say so instead of hiding the card
            return [*facts, CardFact("tiers", _("Tiers"), str(exc.errors[0].message))]
        if workload.band:
            text = _("Band %(band)s: before all fair share") % {"band": workload.band}
            facts.append(CardFact("band", _("Critical"), text))
        for check in known.quota:
            facts.append(
                CardFact("quota", _("Guarantee, %(tier)s") % {"tier": check.tier.name}, check.text())
            )
        facts.append(CardFact("estimate", _("Estimated cost"), _price(known.facts)))
        for supply in free_text(workload.team, [one.tier for one in known.size]):
            facts.append(CardFact("free", _("Free now"), supply))
        return facts


def _duration(time_limit_s: int | None) -> str:
    if time_limit_s is None:
        return _("no time limit")
    hours, minutes = divmod(time_limit_s // 60, 60)
    parts = [f"{hours} h"] if hours else []
    parts += [f"{minutes} m"] if minutes or not hours else []
    return _("at most %(time)s") % {"time": " ".join(parts)}


def _price(facts: Facts) -> str:
    if facts.estimated_cost is None:
        return _("not known: no time limit, or no price for it")
    return f"{facts.estimated_cost} {facts.currency}"
