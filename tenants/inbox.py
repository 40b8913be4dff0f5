"""Cases as their readers see them: lists, one case, and what waits for one's own decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Exists, OuterRef, Prefetch, Q, QuerySet
from django.utils.translation import gettext as _

from gpuyard.core.errors import NotFound
from gpuyard.core.models import User
from gpuyard.core.text import text_for_lookup
from tenants.approvers import may_decide_q, steps_next
from tenants.casework import LIVE
from tenants.models import Case, CaseMessage, CaseState, CaseStep, StepState
from tenants.selectors import team_get, visible_q

_RELATED = ("team", "company", "requester", "policy")
_STEPS = ("decided_by", "on_behalf_of", "team", "group", "up_team", "up_group")


def _steps() -> Prefetch[str, QuerySet[CaseStep], str]:
    return Prefetch("steps", CaseStep.objects.select_related(*_STEPS))


def _cases(actor: User) -> QuerySet[Case]:
    visible = visible_q(actor)
    # An empty condition means "all", but `|` with an empty one would mean "only their own".
    if visible:
        # whoever is asked sees what they are asked about, on whichever team; and later what they decided
        asked = CaseStep.objects.filter(may_decide_q(actor) | Q(decided_by=actor), case_id=OuterRef("pk"))
        visible = Q(requester=actor) | visible | Q(Exists(asked))
    return Case.objects.filter(visible).select_related(*_RELATED).prefetch_related(_steps())


@dataclass(frozen=True)
class CaseFilters:
    """What a list shows. `team` and `requester` are public ids; a team means those below it, too."""

    state: str = ""
    states: Sequence[str] = ()
    team: str = ""
    kind: str = ""
    requester: str = ""
    mine: bool = False
    to_decide: bool = False


def case_list(actor: User, filters: CaseFilters = CaseFilters()) -> QuerySet[Case]:
    """The cases of the actor's teams, their own, and those that they are asked about; newest first."""
    cases = _cases(actor)
    if filters.state or filters.states:
        cases = cases.filter(state__in=[filters.state] if filters.state else filters.states)
    if filters.team:
        cases = cases.filter(team__path__contains=[team_get(actor, filters.team).pk])
    if filters.kind:
        cases = cases.filter(facts__kind=text_for_lookup(filters.kind))
    if filters.requester:
        cases = cases.filter(requester__public_id=text_for_lookup(filters.requester))
    if filters.mine:
        cases = cases.filter(requester=actor)
    if filters.to_decide:
        cases = cases.filter(pk__in=cases_to_decide(actor).order_by().values("pk"))
    return cases.order_by("-opened_at", "-id")


def case_get(actor: User, public_id: str) -> Case:
    """A case of one of the actor's teams, their own, or one that they are asked about."""
    found = _cases(actor).filter(public_id=text_for_lookup(public_id)).first()
    if found is None:
        raise NotFound("case_unknown", _("There is no such request, or you may not see it."))
    return found


def case_of(actor: User, subject_type: str, subject_id: UUID) -> Case | None:
    """The latest case about a subject; None if it never needed one, or it is not for the actor."""
    found = _cases(actor).filter(subject_type=subject_type, subject_id=subject_id)
    return found.order_by("-opened_at").first()


def case_live_of(subject_type: str, subject_id: UUID) -> Case | None:
    """The case that has not ended, for services that act on its subject."""
    return Case.objects.filter(subject_type=subject_type, subject_id=subject_id, state__in=LIVE).first()


def case_turn(case: Case) -> list[CaseStep]:
    """The steps that may be decided now, from the steps that the case was loaded with."""
    if case.state != CaseState.OPEN:
        return []
    pending = [one for one in case.steps.all() if one.round == case.round and one.state == StepState.PENDING]
    stage = min((one.order for one in pending), default=0)
    return [one for one in pending if one.order == stage]


def case_messages(case: Case) -> list[CaseMessage]:
    """The thread of a case that the reader may see, oldest first."""
    return list(case.messages.select_related("author", "on_behalf_of"))


def cases_to_decide(actor: User) -> QuerySet[Case]:
    """The open cases whose turn the actor may decide, oldest first. Never their own."""
    turn = steps_next().filter(may_decide_q(actor), case_id=OuterRef("pk"))
    cases = Case.objects.filter(Exists(turn), state=CaseState.OPEN).exclude(requester=actor)
    return cases.select_related(*_RELATED).prefetch_related(_steps()).order_by("opened_at", "id")


def may_decide(actor: User, case: Case) -> bool:
    """Whether the case waits for a decision that this actor may take."""
    return cases_to_decide(actor).filter(pk=case.pk).exists()
