"""A company's approval rules: the version in force, changing it, going back, and what a change would do.

A version is never edited: each change appends one, which counts from the next request on. Open cases keep the steps
that their own version gave them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from gpuyard.audit.services import event_record
from gpuyard.core import clock, hooks
from gpuyard.core.errors import FieldError, Invalid, NotFound
from gpuyard.core.models import User
from gpuyard.core.policy import PolicyChange, document_dump, document_parse, same_base, unchanged
from gpuyard.core.text import text_check
from tenants.approvers import StageAsked, stages_asked
from tenants.casework import LIVE
from tenants.models import ApprovalPolicy, ApproverGroup, Case, Team
from tenants.policies import (
    ApprovalDocument,
    Facts,
    RuleMatch,
    asked_at,
    facts_from_json,
    rule_match,
    rule_named,
)
from tenants.selectors import ADMIN, ANY_ROLE, company_require, policy_active, role_require

LARGEST_NUMBER = 2**31 - 1


# --- Matching --------------------------------------------------------------------------------------------------


def rule_for(team: Team, facts: Facts, now: datetime) -> tuple[ApprovalPolicy, RuleMatch]:
    """The rule that decides on a request of this team with these facts, asked now."""
    above = {one.pk: one for one in Team.objects.filter(pk__in=team.path)}
    zone = above[team.company_id].time_zone
    known = replace(asked_at(facts, now, zone), teams=tuple(above[key].public_id for key in team.path))
    policy = policy_active(team.company_id)
    return policy, rule_match(_parsed(policy), known)


def rule_preview(actor: User, team: Team, facts: Facts) -> tuple[RuleMatch, tuple[StageAsked, ...]]:
    """Which rule would decide on a request of the actor with these facts, and whom it would ask. Stores nothing."""
    role_require(actor, team, *ANY_ROLE, ADMIN)
    _policy, match = rule_for(team, facts, clock.now())
    return match, stages_asked(match.then, team=team, requester=actor)


def _parsed(policy: ApprovalPolicy) -> ApprovalDocument:
    return ApprovalDocument.model_validate(policy.document)


# --- Reading ---------------------------------------------------------------------------------------------------


def approval_policy_list(actor: User, company: Team) -> QuerySet[ApprovalPolicy]:
    """All versions of a company's rules, the newest first. Whoever has a role there may know the rules."""
    company_require(actor, company)
    return ApprovalPolicy.objects.filter(company=company).select_related("created_by").order_by("-version")


def approval_policy_get(actor: User, company: Team, version: int | None = None) -> ApprovalPolicy:
    """One version; without a number the one in force."""
    versions = approval_policy_list(actor, company)
    wanted = versions.filter(active=True) if version is None else versions.filter(version=version)
    found = wanted.first() if version is None or 0 < version <= LARGEST_NUMBER else None
    if found is None:
        raise NotFound("policy_version_unknown", _("There is no such version of the policy."))
    return found


# --- Changing --------------------------------------------------------------------------------------------------


@transaction.atomic
def approval_policy_activate(
    *,
    actor: User | None,
    company: Team,
    document: Any,
    based_on: int | None = None,
    note: str = "",
    restores: int | None = None,
) -> ApprovalPolicy:
    """Stores the rules as the company's next version and puts it in force. By a platform admin (or a command).

    `based_on` is the version that the change was made from: `Conflict` if another one came in between.
    """
    if actor is not None:
        company_require(actor, company, ADMIN)
    parsed = rules_check(company, document)
    note = text_check(note, field="note", longest=400, is_optional=True)
    # Two activations at once would take the same version: the second waits here.
    Team.objects.select_for_update(no_key=True).get(pk=company.pk)
    before = ApprovalPolicy.objects.filter(company=company, active=True).first()
    if based_on is not None:
        same_base(based_on, before.version if before else 0)
        if before and not rules_changes(_parsed(before), parsed):
            raise unchanged("document" if restores is None else "version")
    return _append(actor, company, before, parsed, note, restores)


def _append(
    actor: User | None,
    company: Team,
    before: ApprovalPolicy | None,
    parsed: ApprovalDocument,
    note: str,
    restores: int | None,
) -> ApprovalPolicy:
    versions = ApprovalPolicy.objects.filter(company=company)
    versions.filter(active=True).update(active=False)
    latest = versions.order_by("-version").values_list("version", flat=True).first() or 0
    policy = ApprovalPolicy.objects.create(
        company=company,
        version=latest + 1,
        document=document_dump(parsed),
        active=True,
        created_by=actor,
        note=note,
    )
    event_record(
        company_id=company.pk,
        actor=actor,
        action="approval_policy.activate" if restores is None else "approval_policy.rollback",
        subject=policy,
        old={"version": before.version, "document": before.document} if before else None,
        new={
            "version": policy.version,
            **({} if restores is None else {"restores": restores}),
            "document": policy.document,
        },
        reason=note,
    )
    return policy


def approval_policy_rollback(
    *, actor: User, company: Team, version: int, based_on: int, note: str = ""
) -> ApprovalPolicy:
    """A new version that says what an old one said."""
    old = approval_policy_get(actor, company, version)
    return approval_policy_activate(
        actor=actor, company=company, document=old.document, based_on=based_on, note=note, restores=version
    )


def rules_check(company: Team, document: Any, *, field: str = "document") -> ApprovalDocument:
    """The rules, whole; `Invalid` also names kinds, teams and groups that there are not."""
    parsed = document_parse(ApprovalDocument, document, field=field)
    kinds = hooks.case_kinds()
    groups = set(ApproverGroup.objects.filter(company=company).values_list("name", flat=True))
    named = {one for rule in parsed.rules for one in rule.when.teams or ()}
    teams = set(Team.objects.filter(company=company, public_id__in=named).values_list("public_id", flat=True))
    errors: list[FieldError] = []
    for number, rule in enumerate(parsed.rules):
        at = f"{field}.rules.{number}"
        for kind in set(rule.when.kinds or ()) - set(kinds):
            remedy = _("Choose from: %(choices)s.") % {"choices": ", ".join(kinds)}
            errors.append(_unknown(f"{at}.when.kinds", "kind_unknown", kind, remedy))
        for team in set(rule.when.teams or ()) - teams:
            remedy = _("Give the id of a team of this company.")
            errors.append(_unknown(f"{at}.when.teams", "team_unknown", team, remedy))
        for group in rule.then.groups() - groups:
            errors.append(_unknown(f"{at}.then.stages", "group_unknown", group, _("Make the group first.")))
    if errors:
        raise Invalid("document_invalid", _("The document is not valid."), errors=errors)
    return parsed


def _unknown(field: str, code: str, name: str, remedy: str) -> FieldError:
    return FieldError(field, code, _("There is no %(name)s.") % {"name": name}, remedy)


# --- What would change -----------------------------------------------------------------------------------------


def rules_changes(old: ApprovalDocument, new: ApprovalDocument) -> tuple[PolicyChange, ...]:
    """The rules that differ, by name, in the order of the new document; a moved rule differs in its place."""
    before, after = _by_name(old), _by_name(new)
    names = [*after, *(name for name in before if name not in after)]
    found = [PolicyChange(name, before.get(name), after.get(name)) for name in names]
    kept_before = [name for name in before if name in after]
    kept_after = [name for name in after if name in before]
    moved = {name for name, was in zip(kept_after, kept_before, strict=True) if name != was}
    return tuple(one for one in found if one.old != one.new or one.name in moved)


def _by_name(document: ApprovalDocument) -> dict[str, Mapping[str, Any]]:
    return {rule.name: document_dump(rule) for rule in document.rules}


@dataclass(frozen=True)
class CaseUnder:
    """An open case that today's facts of it would put under another rule; it keeps its own."""

    case: Case
    rule: str
    is_auto: bool


@dataclass(frozen=True)
class RulesPreview:
    """What a draft changes, and which open cases would fall under another rule, or under one that asks otherwise."""

    based_on: int
    changes: tuple[PolicyChange, ...]
    open_cases: int
    cases: tuple[CaseUnder, ...]


def approval_policy_preview(*, actor: User, company: Team, document: Any) -> RulesPreview:
    """Tries a draft on the facts of the open cases. Changes nothing. For platform admins."""
    company_require(actor, company, ADMIN)
    draft = rules_check(company, document)
    active = policy_active(company.pk)
    live = Case.objects.filter(company=company, state__in=LIVE).select_related("team", "requester", "policy")
    cases = list(live.order_by("opened_at", "id"))
    matches = [(case, rule_match(draft, facts_from_json(case.granted or case.facts))) for case in cases]
    differing = [
        CaseUnder(case, match.rule, match.is_auto)
        for case, match in matches
        if match.rule != case.rule or match.then != rule_named(_parsed(case.policy), case.rule)
    ]
    return RulesPreview(
        based_on=active.version,
        changes=rules_changes(_parsed(active), draft),
        open_cases=len(cases),
        cases=tuple(differing),
    )
