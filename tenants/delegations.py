"""Who stands in for whom, and the named groups that rules may ask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import ProtectedError, Q, QuerySet
from django.utils.translation import gettext as _

from gpuyard.audit.services import event_record
from gpuyard.core import clock, hooks
from gpuyard.core.errors import Conflict, Forbidden, Invalid, NotFound
from gpuyard.core.models import User
from gpuyard.core.text import text_check, text_for_lookup
from tenants.models import ApproverGroup, Delegation, Membership, Team
from tenants.policies import ApprovalDocument
from tenants.selectors import ADMIN, companies_visible, company_require, policy_active

LONGEST = timedelta(days=366)


# --- Delegation ------------------------------------------------------------------------------------------------


def delegation_list(actor: User) -> QuerySet[Delegation]:
    """Where the actor stands in or is stood in for, newest first; an admin sees all."""
    mine = Q() if actor.is_platform_admin else Q(person=actor) | Q(delegate=actor)
    found = Delegation.objects.filter(mine).select_related("company", "person", "delegate", "created_by")
    return found.order_by("-created_at", "-id")


@transaction.atomic
def delegation_create(
    *,
    actor: User,
    company: Team,
    delegate: User,
    starts_at: datetime,
    ends_at: datetime,
    person: User | None = None,
    kinds: Sequence[str] = (),
    teams: Iterable[Team] = (),
    reason: str = "",
) -> Delegation:
    """Lets `delegate` decide for `person` (the actor; an admin may set it for others) while the dates last.

    It counts for cases that are open already, too. Both have a role in the company; what others handed over to the
    person stays with the person. At most one delegation at a time for a person and company.
    """
    person = person or actor
    if person.pk != actor.pk and not actor.is_platform_admin:
        raise Forbidden(
            "own_delegation_only", _("One hands over one’s own decisions only."), remedy=_("Ask an admin.")
        )
    _inside(company, person, "person")
    _inside(company, delegate, "delegate")
    _other(person, delegate)
    span = _span(starts_at, ends_at)
    scope = _scope(company, kinds, teams)
    with _alone():
        made = Delegation.objects.create(
            company=company,
            person=person,
            delegate=delegate,
            span=span,
            reason=text_check(reason, field="reason", longest=400, is_optional=True),
            created_by=actor,
            **scope,
        )
    _delegation_event(actor, made, "delegation.create", new=_told(made), reason=made.reason)
    return made


@transaction.atomic
def delegation_revoke(*, actor: User, delegation_id: UUID, reason: str = "") -> Delegation:
    """Ends it at once: by the person, the delegate (who gives it back) or an admin. A second time changes nothing."""
    found = delegation_list(actor).filter(pk=delegation_id).first()
    if found is None:
        raise NotFound("delegation_unknown", _("There is no such delegation."))
    reason = text_check(reason, field="reason", longest=400, is_optional=True)
    now = clock.now()
    if Delegation.objects.filter(pk=found.pk, revoked_at__isnull=True).update(revoked_at=now):
        found.revoked_at = now
        _delegation_event(actor, found, "delegation.revoke", old=_told(found), reason=reason)
    return found


def _inside(company: Team, person: User, field: str) -> None:
    is_inside = Membership.objects.filter(user=person, team__company=company.pk).exists()
    if not (is_inside and person.is_active):
        raise Invalid(
            "not_in_company",
            _("%(name)s has no role in %(company)s.") % {"name": person.username, "company": company.name},
            field=field,
            remedy=_("Choose somebody of the company: they will see what is asked for there."),
        )


def _other(person: User, delegate: User) -> None:
    if person.pk == delegate.pk:
        raise Invalid(
            "delegate_is_person",
            _("Nobody stands in for themselves."),
            field="delegate",
            remedy=_("Choose somebody else."),
        )


def _span(starts_at: datetime, ends_at: datetime) -> DateTimeTZRange:
    if not (starts_at < ends_at and clock.now() < ends_at):
        raise Invalid(
            "dates_order",
            _("It would end before it begins, or has ended already."),
            field="ends_at",
            remedy=_("Choose a later end."),
        )
    if ends_at - starts_at > LONGEST:
        raise Invalid(
            "too_long",
            _("A delegation lasts for a year at most."),
            field="ends_at",
            remedy=_("Choose an earlier end, or give the person a role."),
        )
    return DateTimeTZRange(starts_at, ends_at)


def _scope(company: Team, kinds: Sequence[str], teams: Iterable[Team]) -> dict[str, Any]:
    known = hooks.case_kinds()
    if unknown := sorted(set(kinds) - set(known)):
        raise Invalid(
            "kind_unknown",
            _("There is no kind %(kind)s.") % {"kind": unknown[0][:80]},
            field="kinds",
            remedy=_("Choose from: %(choices)s.") % {"choices": ", ".join(known)},
        )
    inside = list(teams)
    if any(team.company_id != company.pk for team in inside):
        raise Invalid(
            "team_elsewhere",
            _("A team belongs to another company."),
            field="teams",
            remedy=_("Choose teams of this company."),
        )
    return {"kinds": sorted(set(kinds)), "teams": [team.pk for team in inside]}


@contextmanager
def _alone() -> Iterator[None]:
    """Turns the refusal of the overlap rule into words."""
    try:
        with transaction.atomic():
            yield
    except IntegrityError as exc:
        if "tenants_delegation_once" not in str(exc):
            raise
        raise Conflict(
            "delegated_already",
            _("Somebody stands in for this person then already."),
            field="starts_at",
            remedy=_("End that one first, or choose other dates."),
        ) from exc


def _told(delegation: Delegation) -> dict[str, Any]:
    return {
        "person": delegation.person.username,
        "delegate": delegation.delegate.username,
        "from": delegation.span.lower.isoformat(),
        "to": delegation.span.upper.isoformat(),
        "kinds": delegation.kinds,
        "teams": [str(key) for key in delegation.teams],
    }


def _delegation_event(
    actor: User, delegation: Delegation, action: str, *, old: Any = None, new: Any = None, reason: str = ""
) -> None:
    event_record(
        company_id=delegation.company_id,
        actor=actor,
        action=action,
        subject=delegation,
        old=old,
        new=new,
        reason=reason,
    )


# --- Groups ------------------------------------------------------------------------------------------------------


def group_list(actor: User, company: Team) -> QuerySet[ApproverGroup]:
    """The groups of a company in which the actor has a role."""
    company_require(actor, company)
    return ApproverGroup.objects.filter(company=company).prefetch_related("people").order_by("name")


def group_get(actor: User, group_id: UUID) -> ApproverGroup:
    """A group of a company that the actor is in."""
    companies = companies_visible(actor).values("pk")
    found = ApproverGroup.objects.filter(pk=group_id, company__in=companies).select_related("company").first()
    if found is None:
        raise NotFound("group_unknown", _("There is no such group."))
    return found


@transaction.atomic
def group_create(*, actor: User, company: Team, name: str, people: Sequence[User]) -> ApproverGroup:
    """A new group, by a platform admin: who is in it decides what rules ask it for."""
    company_require(actor, company, ADMIN)
    name = text_check(name, field="name", longest=80)
    for person in people:
        _inside(company, person, "people")
    try:
        with transaction.atomic():
            made = ApproverGroup.objects.create(company=company, name=name)
    except IntegrityError as exc:
        raise Conflict(
            "name_taken",
            _("A group of this name exists. Choose another name."),
            field="name",
            remedy=_("Choose another one."),
        ) from exc
    made.people.set(people)
    _group_event(actor, made, "approver_group.create", new={"name": name, "people": _names(people)})
    return made


@transaction.atomic
def group_set_people(*, actor: User, group: ApproverGroup, people: Sequence[User]) -> ApproverGroup:
    """Who is in it from now on; that counts for open cases, too."""
    company_require(actor, group.company, ADMIN)
    for person in people:
        _inside(group.company, person, "people")
    locked = ApproverGroup.objects.select_for_update(no_key=True).select_related("company").get(pk=group.pk)
    old = _names(locked.people.all())
    locked.people.set(people)
    _group_event(actor, locked, "approver_group.people", old={"people": old}, new={"people": _names(people)})
    return locked


@transaction.atomic
def group_delete(*, actor: User, group: ApproverGroup) -> None:
    """Removes a group that neither the rules in force nor any case names."""
    company_require(actor, group.company, ADMIN)
    # No new version of the rules meanwhile: it might name the group.
    Team.objects.select_for_update(no_key=True).get(pk=group.company_id)
    document = ApprovalDocument.model_validate(policy_active(group.company_id).document)
    names, key = _names(group.people.all()), group.pk
    try:
        if any(group.name in rule.then.groups() for rule in document.rules):
            raise ProtectedError("named", set())
        group.delete()
    except ProtectedError as exc:
        raise Conflict(
            "group_in_use",
            _("The rules in force, or a case, name this group."),
            remedy=_("Take it out of the rules first; a group that has decided stays."),
        ) from exc
    group.pk = key
    _group_event(actor, group, "approver_group.delete", old={"name": group.name, "people": names})


def _names(people: Iterable[User]) -> list[str]:
    return sorted(person.username for person in people)


def _group_event(actor: User, group: ApproverGroup, action: str, *, old: Any = None, new: Any = None) -> None:
    event_record(company_id=group.company_id, actor=actor, action=action, subject=group, old=old, new=new)


# --- People by their public ids ------------------------------------------------------------------------------------


def people_of(actor: User, company: Team, public_ids: Sequence[str], *, field: str) -> list[User]:
    """The people of a company with these ids, in this order; who is not in it does not exist for the actor."""
    company_require(actor, company)
    wanted = [text_for_lookup(one) for one in dict.fromkeys(public_ids)]
    inside = User.objects.filter(public_id__in=wanted, memberships__team__company=company.pk).distinct()
    known = {person.public_id: person for person in inside}
    if unknown := [one for one in wanted if one not in known]:
        raise Invalid(
            "person_unknown",
            _("There is no such person in this company: %(name)s.") % {"name": unknown[0][:80]},
            field=field,
            remedy=_("Give the id of somebody with a role in the company."),
        )
    return [known[one] for one in wanted]
