"""Cases: what waits for an approval, on what facts, and the decision. Their subject is another app's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpuyard.core import hooks
from gpuyard.core.idempotency import idempotent
from gpuyard.core.models import User
from gpuyard.core.pagination import CursorPages
from gpuyard.core.rest import Document, Flag, Input, Output, PagedView, Text, actor_of, body, query
from scheduling.api.shapes import TeamRef, UserRef
from tenants.inbox import case_get, case_list, cases_to_decide, may_decide
from tenants.models import Case, CaseState, StepState
from tenants.services import case_decide, case_withdraw


class SubjectOut(Output):
    type = serializers.CharField()
    id = serializers.CharField(allow_null=True)
    label = serializers.CharField()  # type: ignore[assignment] # a declared field: the class keeps its own


class CaseRow(Output):
    id = serializers.CharField(source="public_id")
    state = serializers.ChoiceField(CaseState.choices)
    team = TeamRef()
    subject = SubjectOut()
    requester = UserRef()
    justification = serializers.CharField()
    rule = serializers.CharField()
    opened_at = serializers.DateTimeField()
    decided_at = serializers.DateTimeField(allow_null=True)


class StepOut(Output):
    """No team: a platform admin decides."""

    order = serializers.IntegerField()
    role = serializers.CharField()
    team = TeamRef(allow_null=True)
    state = serializers.ChoiceField(StepState.choices)
    decided_by = UserRef(allow_null=True)
    decided_at = serializers.DateTimeField(allow_null=True)
    reason = serializers.CharField()


class FactOut(Output):
    code = serializers.CharField()
    label = serializers.CharField()  # type: ignore[assignment] # a declared field: the class keeps its own
    value = serializers.CharField()


class CaseDetail(CaseRow):
    """`facts` is what the rule saw when the case was opened, `card` what an approver should know now."""

    facts = Document()
    steps = StepOut(many=True, source="steps.all")
    card = FactOut(many=True)
    may_decide = serializers.BooleanField()


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
    facts = hooks.case_handlers.get(case.subject_type).card_facts(subject_id=case.subject_id)
    case.card = facts  # type: ignore[attr-defined] # read by CaseDetail only
    case.may_decide = may_decide(actor, case)  # type: ignore[attr-defined]
    return dict(CaseDetail(case).data)


class _CasePages(CursorPages):
    time_field = "opened_at"


class CasesView(PagedView):
    """The cases of one's teams and one's own, newest first."""

    pagination_class = _CasePages

    class Filters(Input):
        state = serializers.ChoiceField(CaseState.choices, required=False)
        mine = serializers.BooleanField(default=False, help_text="Only those that one asked for oneself.")
        to_decide = serializers.BooleanField(
            default=False, help_text="Only those that wait for one's decision."
        )

    @extend_schema(operation_id="cases_list", parameters=[Filters], responses=CaseRow(many=True))
    def get(self, request: Request) -> Response:
        actor = actor_of(request)
        asked = query(request, self.Filters, is_paged=True)
        cases = case_list(actor, state=asked.get("state"), mine=asked["mine"])
        if asked["to_decide"]:
            cases = cases.filter(pk__in=cases_to_decide(actor).order_by().values("pk"))
        return self.page(request, cases, CaseRow, cases_show)


class CaseView(APIView):
    """One case with the facts for a decision."""

    @extend_schema(operation_id="case_read", responses=CaseDetail)
    def get(self, request: Request, public_id: str) -> Response:
        return Response(case_detail(actor_of(request), public_id))


class CaseDecisionView(APIView):
    """Approves or rejects; a rejection needs a reason. Nobody decides on their own request."""

    class In(Input):
        approve = Flag()
        reason = Text(max_length=2000, allow_blank=True, default="")

    @extend_schema(operation_id="case_decide", request=In, responses=CaseDetail)
    @idempotent
    def post(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        case_get(actor, public_id)
        case_decide(actor=actor, case_public_id=public_id, **body(request, self.In))
        return Response(case_detail(actor, public_id))


class CaseWithdrawView(APIView):
    """Takes an open request back; what it asked for is cancelled."""

    class In(Input):
        reason = Text(max_length=2000, allow_blank=True, default="")

    @extend_schema(operation_id="case_withdraw", request=In, responses=CaseDetail)
    @idempotent
    def post(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        case_get(actor, public_id)
        case_withdraw(actor=actor, case_public_id=public_id, **body(request, self.In))
        return Response(case_detail(actor, public_id))
