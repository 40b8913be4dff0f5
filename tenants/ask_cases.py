"""Cases about quota: what a decision does to a grant or to a change of quota, and what an approver is shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID

from django.utils.translation import gettext as _
from pydantic import AwareDatetime, Field

from gpuyard.audit.services import event_record
from gpuyard.core import clock
from gpuyard.core.errors import Conflict, StaleState
from gpuyard.core.hooks import CardFact, CaseOutcome, LessField, SubjectFacts
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.core.policy import PolicyDocument, document_parse
from gpuyard.core.states import state_move
from tenants.asked import (
    amounts_asked,
    ask_facts,
    ask_fingerprint,
    ask_label,
    changes_text,
    gpus_text,
    local_text,
)
from tenants.asking import grant_check
from tenants.constraints import guarantees_fit
from tenants.models import ASK_EDGES, AskState, Grant, Quota, QuotaAsk, QuotaChange
from tenants.quotas import Amounts, amounts_check, amounts_of, quota_at, quota_store, undistributed

_A = TypeVar("_A", bound=QuotaAsk)
_Gpus = Annotated[Decimal, Field(ge=0, le=10_000_000)]
_HOUR = timedelta(hours=1)


def units_of(gpus: Decimal) -> int:
    """GPUs as the whole number of units that is nearest."""
    return round(gpus * UNITS_PER_GPU)


class _AskCases(ABC, Generic[_A]):
    """What both have in common (`core.hooks.CaseHandler`)."""

    model: type[_A]
    kinds: tuple[str, ...]
    word: str

    def _ask(self, subject_id: UUID, *, lock: bool = False) -> _A | None:
        rows = self.model._default_manager.filter(pk=subject_id, state=AskState.ASKED)
        if lock:
            rows = rows.select_for_update(no_key=True, of=("self",))
        return rows.select_related("team", "tier", "requester").first()

    def _held(self, subject_id: UUID) -> _A:
        found = self._ask(subject_id, lock=True)
        if found is None:
            raise StaleState()
        return found

    def fingerprint(self, *, subject_id: UUID, lock: bool = False) -> str | None:
        """Of whose guarantee changes to what and when. None: decided on, or its time is over."""
        found = self._ask(subject_id, lock=lock)
        return None if found is None or self._is_over(found) else ask_fingerprint(found)

    def _is_over(self, ask: _A) -> bool:
        return ask.team.archived_at is not None

    def facts_now(self, *, subject_id: UUID) -> SubjectFacts:
        """The facts after an amendment."""
        found = self._held(subject_id)
        return SubjectFacts(ask_label(found), ask_facts(found).as_json())

    def less_fields(self, *, subject_id: UUID) -> Sequence[LessField]:
        """All or nothing."""
        return ()

    def apply_less(self, *, subject_id: UUID, less: Mapping[str, int], actor: Any, reason: str) -> None:
        """Not reached where `less_fields` names none."""
        raise StaleState()

    @abstractmethod
    def amend(self, *, subject_id: UUID, changes: Mapping[str, Any], actor: Any, reason: str) -> None:
        """Other values, as the same request would take them."""

    def on_case_ended(
        self, *, case_id: UUID, subject_id: UUID, outcome: CaseOutcome, actor: Any, reason: str
    ) -> None:
        """Approved: it counts at once. All of it in the case's transaction, so that a refusal undoes the decision."""
        ask, now = self._held(subject_id), clock.now()
        values: dict[str, Any] = {"ended_at": None if outcome == "approved" else now}
        if outcome == "approved":
            values |= self._take(ask, actor)
        self._move(ask, outcome, values)
        event_record(
            company_id=ask.company_id,
            actor=actor,
            action=f"{self.word}.{outcome}",
            subject=ask,
            new={"team": ask.team.name, "asked": ask_facts(ask).asked},
            reason=reason,
        )

    @abstractmethod
    def _take(self, ask: _A, actor: Any) -> dict[str, Any]:
        """Does what approval does before the state moves; returns what else of the row changes with it."""

    def _move(self, ask: _A, outcome: str, values: Mapping[str, Any]) -> None:
        state_move(self.model, ask.pk, old=AskState.ASKED, new=outcome, edges=ASK_EDGES, **values)

    def public_ids(self, *, subject_ids: Sequence[UUID]) -> Mapping[UUID, str]:
        """Their ids in addresses."""
        found = self.model._default_manager.filter(pk__in=list(subject_ids))
        return dict(found.values_list("pk", "public_id"))

    def card_facts(self, *, subject_id: UUID) -> Sequence[CardFact]:
        """Who asks for what, and what the giver has left."""
        ask = self.model._default_manager.select_related("team__parent", "tier", "requester").get(
            pk=subject_id
        )
        lines = [
            CardFact("asked", _("Asks for"), ask_label(ask)),
            *self._lines(ask),
        ]
        if ask.tier is not None and ask.team.parent is not None:
            left = undistributed(ask.team.parent, ask.tier)
            text = _("%(left)s GPUs of %(team)s's guarantee are not shared out now")
            values = {"left": gpus_text(max(0, left)), "team": ask.team.parent.name}
            lines.append(CardFact("undistributed", _("Left to give"), text % values))
        return lines

    @abstractmethod
    def _lines(self, ask: _A) -> list[CardFact]:
        """What the card says of this kind alone."""


class _GrantChanges(PolicyDocument):
    gpus: _Gpus | None = None
    starts_at: AwareDatetime | None = None
    ends_at: AwareDatetime | None = None


class GrantCases(_AskCases[Grant]):
    """The handler of cases about grants."""

    model, word = Grant, "grant"
    kinds: tuple[str, ...] = ("grant",)

    def _is_over(self, ask: Grant) -> bool:
        return super()._is_over(ask) or ask.ends_at <= clock.now()

    def less_fields(self, *, subject_id: UUID) -> Sequence[LessField]:
        """Fewer GPUs, or fewer hours."""
        ask = self._ask(subject_id)
        if ask is None:
            return ()
        gpus, hours = ask.units // UNITS_PER_GPU, max(1, (ask.ends_at - ask.starts_at) // _HOUR)
        fields = [LessField("gpus", _("GPUs"), gpus, 1, gpus)] if gpus > 1 else []
        return [*fields, LessField("hours", _("Hours"), hours, 1, hours)]

    def apply_less(self, *, subject_id: UUID, less: Mapping[str, int], actor: Any, reason: str) -> None:
        """The same grant, smaller or shorter."""
        ask = self._held(subject_id)
        units = less["gpus"] * UNITS_PER_GPU if "gpus" in less else ask.units
        ends_at = ask.starts_at + less["hours"] * _HOUR if "hours" in less else ask.ends_at
        self._store(ask, units, ask.starts_at, ends_at, actor, reason)

    def amend(self, *, subject_id: UUID, changes: Mapping[str, Any], actor: Any, reason: str) -> None:
        """`gpus`, `starts_at`, `ends_at`."""
        asked = document_parse(_GrantChanges, dict(changes), field="changes")
        ask = self._held(subject_id)
        units = ask.units if asked.gpus is None else units_of(asked.gpus)
        self._store(ask, units, asked.starts_at or ask.starts_at, asked.ends_at or ask.ends_at, actor, reason)

    def _store(self, ask: Grant, units: int, starts_at: Any, ends_at: Any, actor: Any, reason: str) -> None:
        grant_check(units, starts_at, ends_at, clock.now())
        old, new = (ask.units, ask.starts_at, ask.ends_at), (units, starts_at, ends_at)
        Grant.objects.filter(pk=ask.pk).update(units=units, starts_at=starts_at, ends_at=ends_at)
        event_record(
            company_id=ask.company_id,
            actor=actor,
            action="grant.amend",
            subject=ask,
            old=_grant_json(*old),
            new=_grant_json(*new),
            reason=reason,
        )

    def _take(self, ask: Grant, actor: Any) -> dict[str, Any]:
        starts_at = max(ask.starts_at, clock.now())
        if starts_at >= ask.ends_at:
            raise Conflict("grant_over", _("Its time is over."), remedy=_("Reject it to close it."))
        # grants are added to a version of the quota, so there has to be one
        if not Quota.objects.filter(team=ask.team, tier=ask.tier, starts_at__lte=starts_at).exists():
            quota_store(ask.team, ask.tier, Amounts(), actor=actor)
        return {"starts_at": starts_at}

    def _move(self, ask: Grant, outcome: str, values: Mapping[str, Any]) -> None:
        with guarantees_fit():
            super()._move(ask, outcome, values)

    def _lines(self, ask: Grant) -> list[CardFact]:
        now = quota_at(ask.team, ask.tier)
        has = now.promised if now else 0
        text = _("%(old)s GPUs now, %(new)s with this")
        values = {"old": gpus_text(has), "new": gpus_text(has + ask.units)}
        span = f"{local_text(ask, ask.starts_at)} – {local_text(ask, ask.ends_at)}"
        return [CardFact("guarantee", _("Guarantee"), text % values), CardFact("span", _("From, to"), span)]


def _grant_json(units: int, starts_at: Any, ends_at: Any) -> dict[str, Any]:
    return {"units": units, "starts_at": starts_at.isoformat(), "ends_at": ends_at.isoformat()}


class _QuotaChanges(PolicyDocument):
    """GPUs; null takes a limit away."""

    guaranteed: _Gpus = Decimal(0)
    limit: _Gpus | None = None
    lend_limit: _Gpus | None = None
    weight: int = 1


class QuotaChangeCases(_AskCases[QuotaChange]):
    """The handler of cases about another quota."""

    model, word = QuotaChange, "quota_change"
    kinds: tuple[str, ...] = ("quota_change",)

    def amend(self, *, subject_id: UUID, changes: Mapping[str, Any], actor: Any, reason: str) -> None:
        """Some of the four values; the others stay as they were asked for."""
        parsed = document_parse(_QuotaChanges, dict(changes), field="changes")
        given = {
            name: value if name == "weight" or value is None else units_of(value)
            for name, value in parsed.model_dump(include=set(changes)).items()
        }
        ask = self._held(subject_id)
        old = amounts_asked(ask)
        new = replace(old, **given)
        amounts_check(ask.tier, new)
        QuotaChange.objects.filter(pk=ask.pk).update(**given)
        event_record(
            company_id=ask.company_id,
            actor=actor,
            action="quota_change.amend",
            subject=ask,
            old={name: getattr(old, name) for name in given},
            new={name: getattr(new, name) for name in given},
            reason=reason,
        )

    def _take(self, ask: QuotaChange, actor: Any) -> dict[str, Any]:
        later = ask.starts_at if ask.starts_at and ask.starts_at > clock.now() else None
        quota_store(ask.team, ask.tier, amounts_asked(ask), actor=actor, starts_at=later, reason=ask.reason)
        return {}

    def _lines(self, ask: QuotaChange) -> list[CardFact]:
        now = amounts_of(quota_at(ask.team, ask.tier))
        lines = [CardFact("change", _("Changes"), text) for text in changes_text(now, amounts_asked(ask))]
        since = local_text(ask, ask.starts_at) if ask.starts_at else _("when it is approved")
        return [*lines, CardFact("since", _("From"), since)]
