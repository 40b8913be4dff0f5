"""How cases look in JSON: their steps, their thread, and what an approver should know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from gpuyard.core import hooks
from gpuyard.core.models import User
from gpuyard.core.rest import Anything, Document, Output
from scheduling.api.shapes import TeamRef, UserRef
from tenants.deciding import less_fields
from tenants.inbox import case_get, case_messages, may_decide
from tenants.models import Case, CaseState, StepState


class SubjectOut(Output):
    type = serializers.CharField()
    id = serializers.CharField(allow_null=True)
    label = serializers.CharField()  # type: ignore[assignment] # a declared field: the class keeps its own


class CaseRow(Output):
    """`due_at`: when the step whose turn it is should be decided; `expires_at`: when it ends by itself."""

    id = serializers.CharField(source="public_id")
    state = serializers.ChoiceField(CaseState.choices)
    team = TeamRef()
    subject = SubjectOut()
    requester = UserRef()
    justification = serializers.CharField()
    rule = serializers.CharField()
    round = serializers.IntegerField()
    opened_at = serializers.DateTimeField()
    due_at = serializers.DateTimeField(allow_null=True)
    escalated_at = serializers.DateTimeField(allow_null=True)
    expires_at = serializers.DateTimeField(allow_null=True)
    decided_at = serializers.DateTimeField(allow_null=True)


class EscalatedOut(Output):
    role = serializers.CharField(source="up_role")
    team = TeamRef(source="up_team", allow_null=True)
    group = serializers.CharField(source="up_group.name", allow_null=True, default=None)
    at = serializers.DateTimeField(source="escalated_at")


class StepOut(Output):
    """No team and no group: a platform admin decides. Steps of one `order` are a stage: all or any are needed."""

    round = serializers.IntegerField()
    order = serializers.IntegerField()
    needs = serializers.ChoiceField(["all", "any"])
    role = serializers.CharField()
    team = TeamRef(allow_null=True)
    group = serializers.CharField(source="group.name", allow_null=True, default=None)
    escalated = serializers.SerializerMethodField()
    state = serializers.ChoiceField(StepState.choices)
    decided_by = UserRef(allow_null=True)
    on_behalf_of = UserRef(allow_null=True)
    decided_at = serializers.DateTimeField(allow_null=True)
    reason = serializers.CharField()

    @extend_schema_field(EscalatedOut(allow_null=True))
    def get_escalated(self, step: Any) -> Any:
        return EscalatedOut(step).data if step.escalated_at else None


class FactOut(Output):
    code = serializers.CharField()
    label = serializers.CharField()  # type: ignore[assignment] # a declared field: the class keeps its own
    value = serializers.CharField()


class ChangeOut(Output):
    name = serializers.CharField()
    old = Anything()
    new = Anything()


class MessageOut(Output):
    """No author: GPU Yard itself."""

    act = serializers.CharField()
    round = serializers.IntegerField()
    author = UserRef(allow_null=True)
    on_behalf_of = UserRef(allow_null=True)
    text = serializers.CharField()
    changes = ChangeOut(many=True)
    at = serializers.DateTimeField(source="created_at")


class LessOut(Output):
    """What may be granted less: from `least` to `most`; `now` null: it has no bound yet."""

    name = serializers.CharField()
    label = serializers.CharField()  # type: ignore[assignment] # a declared field: the class keeps its own
    now = serializers.IntegerField(allow_null=True)
    least = serializers.IntegerField()
    most = serializers.IntegerField()


class CaseDetail(CaseRow):
    """`facts` is what the rule saw, `granted` the facts after less was approved, `card` what to know now."""

    facts = Document()
    granted = Document(allow_null=True)
    steps = StepOut(many=True, source="steps.all")
    messages = MessageOut(many=True, source="thread")
    card = FactOut(many=True)
    less = LessOut(many=True)
    may_decide = serializers.BooleanField()
    is_mine = serializers.BooleanField()


def cases_show(cases: Iterable[Case]) -> list[Case]:
    """Gives each case its `subject` by public id, in one query for each type of subject."""
    rows = list(cases)
    by_type: dict[str, list[UUID]] = {}
    for row in rows:
        by_type.setdefault(row.subject_type, []).append(row.subject_id)
    known: dict[UUID, str] = {}
    for key, subject_ids in by_type.items():
        known |= hooks.case_handlers.get(key).public_ids(subject_ids=subject_ids)
    for row in rows:
        row.subject = {  # type: ignore[attr-defined] # read by CaseRow only
            "type": row.subject_type,
            "id": known.get(row.subject_id),
            "label": row.subject_label,
        }
    return rows


def case_detail(actor: User, public_id: str) -> dict[str, Any]:
    """The JSON of one case for this reader."""
    (case,) = cases_show([case_get(actor, public_id)])
    decides = may_decide(actor, case)
    case.card = hooks.case_handlers.get(case.subject_type).card_facts(subject_id=case.subject_id)  # type: ignore[attr-defined] # read by CaseDetail only
    case.thread = case_messages(case)  # type: ignore[attr-defined]
    case.less = less_fields(case) if decides else ()  # type: ignore[attr-defined]
    case.may_decide = decides  # type: ignore[attr-defined]
    case.is_mine = case.requester_id == actor.pk  # type: ignore[attr-defined]
    return dict(CaseDetail(case).data)
