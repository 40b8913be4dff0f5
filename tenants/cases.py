"""Approval: the rules in force, and cases on their way through their steps.

Lock order: the case's row first, then its steps, then whatever the subject's handler touches. Two people who decide
at once meet at the case's row; the second finds it decided and gets `StaleState`.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Max
from django.utils.translation import gettext as _

from gpuyard.audit.services import event_record
from gpuyard.core import clock, hooks
from gpuyard.core.errors import Forbidden, Invalid, NotFound, StaleState
from gpuyard.core.models import User
from gpuyard.core.policy import document_dump, document_parse
from gpuyard.core.states import state_move
from gpuyard.core.text import text_check
from tenants import selectors
from tenants.models import CASE_EDGES, STEP_EDGES, ApprovalPolicy, Case, CaseState, CaseStep, StepState, Team
from tenants.policies import ApprovalDocument, Facts, RuleMatch, rule_match
from tenants.selectors import ADMIN, role_require


@transaction.atomic
def approval_policy_activate(
    *, actor: User | None, company: Team, document: dict[str, Any]
) -> ApprovalPolicy:
    """Stores the rules as the company's next version and puts it in force. By a platform admin (or a command).

    Open cases keep the steps that their own version gave them.
    """
    if actor is not None:
        role_require(actor, company, ADMIN)
    parsed = document_parse(ApprovalDocument, document)
    # Two activations at once would take the same version: the second waits here.
    Team.objects.select_for_update(no_key=True).get(pk=company.pk)
    versions = ApprovalPolicy.objects.filter(company=company)
    before = versions.filter(active=True).first()
    versions.filter(active=True).update(active=False)
    latest = versions.aggregate(latest=Max("version"))["latest"] or 0
    policy = ApprovalPolicy.objects.create(
        company=company, version=latest + 1, document=document_dump(parsed), active=True, created_by=actor
    )
    event_record(
        company_id=company.pk,
        actor=actor,
        action="approval_policy.activate",
        subject=policy,
        old={"version": before.version, "document": before.document} if before else None,
        new={"version": policy.version, "document": policy.document},
    )
    return policy


# --- Opening ---------------------------------------------------------------------------------------------


def rule_for(company_id: UUID, facts: Facts) -> tuple[ApprovalPolicy, RuleMatch]:
    """The rule that decides on a request with these facts today."""
    policy = selectors.policy_active(company_id)
    return policy, rule_match(ApprovalDocument.model_validate(policy.document), facts)


@transaction.atomic
def case_open(
    *,
    company: Team,
    team: Team,
    subject_type: str,
    subject_id: UUID,
    subject_label: str,
    requester: User,
    justification: str,
    facts: Facts,
) -> Case:
    """Opens a case under the rule that fits. A rule that says "auto" approves it at once, and its handler acts."""
    policy, match = rule_for(company.pk, facts)
    case = Case.objects.create(
        company=company,
        team=team,
        subject_type=subject_type,
        subject_id=subject_id,
        subject_label=subject_label,
        requester=requester,
        justification=justification,
        policy=policy,
        rule=match.rule,
        facts=facts.as_json(),
        state=CaseState.APPROVED if match.is_auto else CaseState.OPEN,
        decided_at=clock.now() if match.is_auto else None,
    )
    for order, step in enumerate(match.steps, start=1):
        approver = selectors.approver_for(team=team, requester=requester, role=step.role, level=step.level)
        CaseStep.objects.create(
            case=case, order=order, team=approver.team, role=approver.role, requester=requester
        )
    event_record(
        company_id=company.pk,
        actor=requester,
        action="case.open",
        subject=case,
        new={"state": case.state, "rule": case.rule, "policy_version": policy.version, "facts": case.facts},
        reason=justification,
    )
    if match.is_auto:
        _handler_call(case, approved=True, actor=None, reason="")
    return case


# --- Deciding --------------------------------------------------------------------------------------------


@transaction.atomic
def case_decide(*, actor: User, case_public_id: str, approve: bool, reason: str = "") -> Case:
    """Decides the step whose turn it is. A rejection ends the case; the last approval approves it."""
    reason = text_check(reason, field="reason", longest=2000, is_optional=True)
    if not approve and not reason:
        raise Invalid(
            "reason_missing",
            _("A rejection needs a reason."),
            field="reason",
            remedy=_("Say in a sentence why, so that the requester knows what to change."),
        )
    case = _case_locked(selectors.case_get(actor, case_public_id))
    step = _step_to_decide(actor, case)
    state = StepState.APPROVED if approve else StepState.REJECTED
    state_move(
        CaseStep,
        step.pk,
        old=StepState.PENDING,
        new=state,
        edges=STEP_EDGES,
        decided_by=actor,
        decided_at=clock.now(),
        reason=reason,
    )
    event_record(
        company_id=case.company_id,
        actor=actor,
        action="case.step",
        subject=case,
        old={"step": step.order, "state": StepState.PENDING},
        new={"step": step.order, "state": state, "role": step.role},
        reason=reason,
    )
    is_over = not approve or not case.steps.filter(state=StepState.PENDING).exists()
    if is_over:
        _case_end(case, CaseState.APPROVED if approve else CaseState.REJECTED, actor=actor, reason=reason)
        _handler_call(case, approved=approve, actor=actor, reason=reason)
    return selectors.case_get(actor, case_public_id)


@transaction.atomic
def case_withdraw(*, actor: User, case_public_id: str, reason: str = "") -> Case:
    """Takes an open request back: by its requester, a manager of the team or an admin. Its subject is cancelled."""
    reason = text_check(reason, field="reason", longest=2000, is_optional=True)
    case = _case_locked(selectors.case_get(actor, case_public_id))
    if case.requester_id != actor.pk:
        role_require(actor, case.team, "manager", ADMIN)
    _case_end(case, CaseState.WITHDRAWN, actor=actor, reason=reason)
    handler = hooks.case_handlers.get(case.subject_type)
    handler.on_case_withdrawn(case_id=case.pk, subject_id=case.subject_id, actor=actor, reason=reason)
    return selectors.case_get(actor, case_public_id)


def _case_locked(seen: Case) -> Case:
    """The case, open, its row locked until the end of the transaction."""
    case = Case.objects.select_for_update(of=("self",)).select_related("team").get(pk=seen.pk)
    if case.state != CaseState.OPEN:
        raise StaleState("case_decided", _("This request has been decided already. Load it again."))
    return case


def _step_to_decide(actor: User, case: Case) -> CaseStep:
    if case.requester_id == actor.pk:
        raise Forbidden(
            "own_request",
            _("Nobody decides on their own request."),
            remedy=_("Ask another manager, or withdraw it."),
        )
    turn = selectors.steps_next().filter(case=case)
    step = turn.filter(selectors.may_decide_q(actor)).first()
    if step is None:
        if not turn.exists():
            raise NotFound("step_unknown")
        raise Forbidden(
            "not_the_approver",
            _("This request waits for somebody else's decision."),
            remedy=_("Its page says who may decide."),
        )
    return step


def _case_end(case: Case, state: CaseState, *, actor: User, reason: str) -> None:
    state_move(Case, case.pk, old=CaseState.OPEN, new=state, edges=CASE_EDGES, decided_at=clock.now())
    case.steps.filter(state=StepState.PENDING).update(state=StepState.SKIPPED)
    event_record(
        company_id=case.company_id,
        actor=actor,
        action="case.state",
        subject=case,
        old={"state": CaseState.OPEN},
        new={"state": state, "rule": case.rule},
        reason=reason,
    )


def _handler_call(case: Case, *, approved: bool, actor: User | None, reason: str) -> None:
    handler = hooks.case_handlers.get(case.subject_type)
    handler.on_case_decided(
        case_id=case.pk, subject_id=case.subject_id, approved=approved, actor=actor, reason=reason
    )
