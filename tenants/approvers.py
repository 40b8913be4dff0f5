"""Who may decide: by role, by group, for somebody else who is away, and admins where nobody else is left.

A step names its approvers (see `CaseStep`); once it is escalated, a second lot may decide as well. Nobody decides on
their own request, and each step of a round is decided by another person: whoever has decided, or was decided for, has
had their say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import Exists, OuterRef, Q, QuerySet

from gpuyard.core.clock import YardNow
from gpuyard.core.models import User
from tenants.models import ApproverGroup, Case, CaseStep, Delegation, Membership, Role, StepState, Team
from tenants.policies import Escalation, Step, Then
from tenants.selectors import ADMIN

GROUP = "group"  # the role of a step that a group decides
_LISTED = ApproverGroup.people.through.objects


# --- Whom a rule asks -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Approver:
    """Who decides a step: people with `role` on `team` (or inherited), or of `group`; neither: the admins."""

    role: str
    team: Team | None
    people: tuple[User, ...]
    group: ApproverGroup | None = None


def approver_for(
    *,
    team: Team,
    requester: User,
    role: str = Role.MANAGER,
    level: str = "team",
    group: str | None = None,
) -> Approver:
    """The nearest team with somebody in the role, the requester not counted, or the group; last the admins."""
    if level == GROUP:
        found = _group_with_others(team.company_id, group or "", requester)
        return found or _admins(requester)
    path = list(team.path) if level == "team" else list(team.path[:-1]) if level == "ancestor" else []
    eligible = Membership.objects.filter(team_id__in=path, role=role, user__is_active=True)
    by_team: dict[UUID, list[User]] = {}
    for one in eligible.exclude(user=requester).select_related("user").order_by("user__username"):
        by_team.setdefault(one.team_id, []).append(one.user)
    for team_id in reversed(path):
        if people := by_team.get(team_id):
            nearest = team if team_id == team.pk else Team.objects.get(pk=team_id)
            return Approver(role, nearest, tuple(people))
    return _admins(requester)


def approver_of(step: Step, *, team: Team, requester: User) -> Approver:
    """Whom a step of a rule asks, today."""
    return approver_for(team=team, requester=requester, role=step.role, level=step.level, group=step.group)


@dataclass(frozen=True)
class StageAsked:
    """Who would be asked at the same time; `needs`: all of them, or any one."""

    needs: str
    approvers: tuple[Approver, ...]
    deadline_h: int | None


def stages_asked(then: Then, *, team: Team, requester: User) -> tuple[StageAsked, ...]:
    """Whom a rule would ask, today, in this order; nobody where it lets requests through."""
    return tuple(
        StageAsked(
            stage.needs,
            tuple(approver_of(step, team=team, requester=requester) for step in stage.steps),
            stage.deadline_h,
        )
        for stage in then.stages
    )


def approver_above(escalation: Escalation, step: CaseStep) -> Approver:
    """Who may decide a late step as well. `ancestor`: the managers above those who were asked."""
    if escalation.to == GROUP:
        group = escalation.group
        return approver_for(team=step.case.team, requester=step.requester, level=GROUP, group=group)
    asked = step.team or step.case.team
    level = "ancestor" if escalation.to == "ancestor" and step.role != ADMIN else ADMIN
    return approver_for(team=asked, requester=step.requester, level=level)


def _group_with_others(company_id: UUID, name: str, requester: User) -> Approver | None:
    group = ApproverGroup.objects.filter(company=company_id, name=name).first()
    if group is None:
        return None
    inside = Membership.objects.filter(user=OuterRef("pk"), team__company=company_id)
    people = group.people.filter(Exists(inside), is_active=True).exclude(pk=requester.pk)
    found = tuple(people.order_by("username"))
    return Approver(GROUP, None, found, group) if found else None


def _admins(requester: User) -> Approver:
    admins = User.objects.filter(is_platform_admin=True, is_active=True).exclude(pk=requester.pk)
    return Approver(ADMIN, None, tuple(admins.order_by("username")))


# --- Whose turn it is ---------------------------------------------------------------------------------------


def steps_next() -> QuerySet[CaseStep]:
    """For each case the steps whose turn it is: the pending ones of its first stage that has any."""
    earlier = CaseStep.objects.filter(
        case_id=OuterRef("case_id"), state=StepState.PENDING, order__lt=OuterRef("order")
    )
    return CaseStep.objects.filter(~Exists(earlier), state=StepState.PENDING)


def may_decide_q(actor: User) -> Q:
    """The condition, on steps, "this actor may decide it", in the own name or for somebody who is away."""
    allowed = _own_q(actor)
    for delegation in delegations_now(actor):
        allowed |= for_another_q(delegation)
    return allowed & _is_free_q(actor)


def own_name_q(actor: User) -> Q:
    """The same, in the own name only."""
    return _own_q(actor) & _is_free_q(actor)


def for_another_q(delegation: Delegation) -> Q:
    """The condition, on steps, "the person could decide it by role or group, and has handed it over"."""
    scope = Q(case__company_id=delegation.company_id)
    if delegation.kinds:
        scope &= Q(case__facts__kind__in=delegation.kinds)
    if delegation.teams:
        scope &= Q(case__team__path__overlap=delegation.teams)
    return scope & _seated_q(delegation.person) & _is_free_q(delegation.person)


def delegations_now(actor: User) -> list[Delegation]:
    """For whom the actor stands in at this moment. Both must still have a role in the company."""
    inside = Membership.objects.filter(user=actor, team__company=OuterRef("company"))
    person_inside = Membership.objects.filter(user=OuterRef("person"), team__company=OuterRef("company"))
    found = Delegation.objects.filter(
        Exists(inside),
        Exists(person_inside),
        delegate=actor,
        person__is_active=True,
        revoked_at__isnull=True,
        span__contains=YardNow(),
    )
    return list(found.select_related("person").order_by("created_at", "id"))


def _own_q(actor: User) -> Q:
    if not actor.is_platform_admin:
        return _seated_q(actor)
    return _seated_q(actor) | Q(role=ADMIN) | Q(up_role=ADMIN) | _stands_in_q()


def _seated_q(person: User) -> Q:
    """Asked for by role or group: by the step, or by its escalation."""
    inside = Membership.objects.filter(user=person, team__company=OuterRef("approvergroup__company"))
    allowed = Q(pk__in=[])
    for prefix in ("", "up_"):
        mine = Membership.objects.filter(user=person, role=OuterRef(f"{prefix}role")).values("team_id")
        allowed |= Q(**{f"{prefix}team__path__overlap": ArraySubquery(mine)})
        listed = _LISTED.filter(Exists(inside), approvergroup_id=OuterRef(f"{prefix}group_id"), user=person)
        allowed |= Q(Exists(listed))
    return allowed


def _stands_in_q() -> Q:
    """Nobody who was asked is left: admins decide, so that no request waits for ever."""
    had_say = _had_say(OuterRef(OuterRef("case_id")), OuterRef(OuterRef("round")))
    with_role = Membership.objects.filter(role=OuterRef("role"), user__is_active=True)
    others = with_role.exclude(user_id=OuterRef("requester_id"))
    others = others.exclude(Exists(had_say.filter(_is_by(OuterRef("user_id")))))
    by_role = Q(team__isnull=False) & ~Q(team__path__overlap=ArraySubquery(others.values("team_id")))
    inside = Membership.objects.filter(
        user=OuterRef("user_id"), team__company=OuterRef("approvergroup__company")
    )
    listed = _LISTED.filter(Exists(inside), approvergroup_id=OuterRef("group_id"), user__is_active=True)
    members = listed.exclude(user_id=OuterRef("requester_id"))
    members = members.exclude(Exists(had_say.filter(_is_by(OuterRef("user_id")))))
    return by_role | Q(group__isnull=False) & ~Q(Exists(members))


def _had_say(case_id: OuterRef, round_: OuterRef) -> QuerySet[CaseStep]:
    return CaseStep.objects.filter(case_id=case_id, round=round_)


def _is_by(person: object) -> Q:
    return Q(decided_by=person) | Q(on_behalf_of=person)


def _is_free_q(person: User) -> Q:
    """Not the own request, and no say had yet in this round."""
    had_say = _had_say(OuterRef("case_id"), OuterRef("round")).filter(_is_by(person))
    return ~Q(requester=person) & ~Q(Exists(had_say))


# --- Whom to tell ------------------------------------------------------------------------------------------------


def people_asked(steps: Sequence[CaseStep]) -> list[User]:
    """Who may decide these steps of a case by what they name, with those who stand in for them now; by name."""
    found: dict[UUID, User] = {}
    for step in steps:
        for prefix in ("", "up_") if step.escalated_at else ("",):
            found |= {person.pk: person for person in _people_named(step, prefix)}
    if not found:
        return []
    case = steps[0].case
    for delegation in _away_now(case, found):
        found[delegation.delegate_id] = delegation.delegate
    found.pop(case.requester_id, None)
    return sorted(found.values(), key=lambda one: one.username)


def _away_now(case: Case, people: Iterable[UUID]) -> list[Delegation]:
    """The delegations of these people that cover the case."""
    found = Delegation.objects.filter(
        person__in=list(people),
        company=case.company_id,
        revoked_at__isnull=True,
        span__contains=YardNow(),
        delegate__is_active=True,
    )
    kind, path = case.facts.get("kind"), set(case.team.path)
    return [
        one
        for one in found.select_related("delegate").order_by("created_at", "id")
        if (not one.kinds or kind in one.kinds) and (not one.teams or path & set(one.teams))
    ]


def _people_named(step: CaseStep, prefix: str) -> QuerySet[User]:
    team, role = getattr(step, f"{prefix}team"), getattr(step, f"{prefix}role")
    people = User.objects.filter(is_active=True)
    if role == GROUP:
        return people.filter(approver_groups=getattr(step, f"{prefix}group_id"))
    if team is not None:
        return people.filter(memberships__role=role, memberships__team=team).distinct()
    return people.filter(is_platform_admin=True)
