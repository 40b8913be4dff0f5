"""The approval rules of a company, as an admin edits and everybody else reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gpuyard.core import clock
from gpuyard.core.models import User
from gpuyard.web.case_contexts import CaseEffect, RuleChange, RulesPage, RulesPreviewCard, RulesVersion
from gpuyard.web.contexts import Choice
from tenants.models import Team
from tenants.policies import ApprovalDocument
from tenants.rules import RulesPreview, approval_policy_list
from tenants.selectors import companies_visible

MOST_VERSIONS = 50


def build(
    actor: User,
    company: Team,
    *,
    document: str | None = None,
    preview: RulesPreviewCard | None = None,
    errors: Sequence[str] = (),
) -> RulesPage:
    versions = list(approval_policy_list(actor, company)[:MOST_VERSIONS])
    active = next(one for one in versions if one.active)
    return RulesPage(
        as_of=clock.now(),
        company=company.name,
        company_id=company.public_id,
        companies=[
            Choice(value=one.public_id, label=one.name, selected=one.pk == company.pk)
            for one in companies_visible(actor).order_by("name")
        ],
        number=active.version,
        document=as_text(active.document) if document is None else document,
        may_edit=actor.is_platform_admin,
        versions=[
            RulesVersion(
                number=one.version,
                author=one.created_by.username if one.created_by else "",
                note=one.note,
                at=one.created_at,
                is_active=one.active,
            )
            for one in versions
        ],
        preview=preview,
        errors=errors,
    )


def as_text(document: Any) -> str:
    """The rules without what they leave out: short enough to be edited by hand."""
    rules = ApprovalDocument.model_validate(document).model_dump(
        mode="json", exclude_none=True, exclude_defaults=True
    )
    return json.dumps(rules, indent=2, ensure_ascii=False)


def preview_card(
    preview: RulesPreview, document: str, *, restores: int | None = None, reason: str = ""
) -> RulesPreviewCard:
    return RulesPreviewCard(
        changes=[
            RuleChange(name=one.name, old=_rule_text(one.old), new=_rule_text(one.new))
            for one in preview.changes
        ],
        cases=[
            CaseEffect(
                id=one.case.public_id,
                label=one.case.subject_label,
                requester=one.case.requester.username,
                old_rule=one.case.rule,
                new_rule=one.rule,
            )
            for one in preview.cases
        ],
        open_cases=preview.open_cases,
        document=document,
        restores=restores,
        reason=reason,
    )


def _rule_text(rule: Any) -> str:
    if rule is None:
        return ""
    shown = {key: _short(value) for key, value in rule.items() if key != "name"}
    return json.dumps(shown, ensure_ascii=False)


def _short(value: Any) -> Any:
    """Without what is left out."""
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items() if one not in (None, False, [])}
    return [_short(one) for one in value] if isinstance(value, list) else value
