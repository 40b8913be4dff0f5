"""Cases about workloads: what a decision does to them, and what an approver is shown."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _

from gpuyard.core import clock
from gpuyard.core.errors import DomainError, StaleState
from gpuyard.core.hooks import CardFact, CaseOutcome, LessField, SubjectFacts
from scheduling.amending import pending_members, request_amend, request_less, request_less_fields
from scheduling.asked import asked_text
from scheduling.facts import request_facts
from scheduling.models import Kind, Workload
from scheduling.services import request_members, workloads_cancel, workloads_move
from scheduling.specs import spec_parse
from scheduling.states import WorkloadState
from scheduling.submit import subject_label
from scheduling.supply import free_text
from scheduling.wake import wake
from tenants.models import Case
from tenants.policies import Facts

_MOVES = {
    "approved": (WorkloadState.WAITING, "workload.approve"),
    "rejected": (WorkloadState.REJECTED, "workload.reject"),
    "expired": (WorkloadState.EXPIRED, "workload.expire"),
}


class WorkloadCases:
    """The handler of cases about workloads (`core.hooks.case_handlers`)."""

    kinds = tuple(Kind.values)

    def fingerprint(self, *, subject_id: UUID, lock: bool = False) -> str | None:
        """Of who asks for which GPUs, how long and how urgently; not of the program that runs on them."""
        members = pending_members(subject_id, lock=lock)
        if not members:
            return None
        first = members[0]
        assert first.spec is not None
        asked = {name: getattr(first, name) for name in ("kind", "priority", "band")}
        document = spec_parse(first.spec.document)
        text = json.dumps(
            {
                **asked,
                "team": str(first.team_id),
                "time_limit_s": document.time_limit_s,
                "request": document.as_json()["request"],
            },
            sort_keys=True,
        )
        return hashlib.sha256(text.encode()).hexdigest()

    def facts_now(self, *, subject_id: UUID) -> SubjectFacts:
        """The facts of a request as it is after an amendment."""
        members = pending_members(subject_id)
        if not members:
            raise StaleState()
        workload = members[0]
        assert workload.spec is not None
        spec = spec_parse(workload.spec.document)
        known = request_facts(
            workload.team, workload.kind, spec, priority=workload.priority, band=workload.band
        )
        return SubjectFacts(subject_label(workload.name, spec), known.facts.as_json())

    def less_fields(self, *, subject_id: UUID) -> Sequence[LessField]:
        """Fewer GPUs or replicas, less time, a lower priority."""
        return request_less_fields(subject_id)

    def apply_less(self, *, subject_id: UUID, less: Mapping[str, int], actor: Any, reason: str) -> None:
        """A new revision of the spec."""
        request_less(subject_id=subject_id, less=less, actor=actor, reason=reason)

    def amend(self, *, subject_id: UUID, changes: Mapping[str, Any], actor: Any, reason: str) -> None:
        """A new revision of the spec, or another priority."""
        request_amend(subject_id=subject_id, changes=changes, actor=actor, reason=reason)

    def on_case_ended(
        self, *, case_id: UUID, subject_id: UUID, outcome: CaseOutcome, actor: Any, reason: str
    ) -> None:
        """Approved: all of it waits for GPUs from now on, and the pass is woken. Else it has ended."""
        found, pending, now = request_members(subject_id), WorkloadState.PENDING_APPROVAL, clock.now()
        if outcome == "withdrawn":
            if not workloads_cancel(found, pending, actor, reason):
                raise StaleState()
            return
        new, action = _MOVES[outcome]
        changes = {"state_reason": reason[:400], "ended_at": now}
        if outcome == "approved":
            rule = "" if actor else Case.objects.values_list("rule", flat=True).get(pk=case_id)
            changes = {"approved_by_rule": rule, "queued_at": now}
        if not workloads_move(found, pending, new, action=action, actor=actor, reason=reason, **changes):
            raise StaleState()
        if outcome == "approved":
            wake()

    def public_ids(self, *, subject_ids: Sequence[UUID]) -> Mapping[UUID, str]:
        """The ids of workloads."""
        found = Workload.objects.filter(pk__in=list(subject_ids))
        return dict(found.values_list("pk", "public_id"))

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
