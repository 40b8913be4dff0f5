"""Cases: what waits for an approval, on what facts, and what approvers and requesters do with it."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpuyard.api.case_shapes import CaseDetail, CaseRow, case_detail, cases_show
from gpuyard.core.idempotency import idempotent
from gpuyard.core.pagination import CursorPages
from gpuyard.core.problems import problem_data
from gpuyard.core.rest import Anything, Flag, Input, Output, PagedView, Text, Whole, actor_of, body, query
from scheduling.api.shapes import SpecField
from scheduling.services import HIGHEST_PRIORITY
from tenants.deciding import MOST_AT_ONCE, Decided
from tenants.inbox import CaseFilters, case_get, case_list
from tenants.models import CaseState
from tenants.services import (
    case_amend,
    case_answer,
    case_decide,
    case_send_back,
    case_withdraw,
    cases_decide,
)

_LARGEST = 2**31 - 1


class _CasePages(CursorPages):
    time_field = "opened_at"


class CasesView(PagedView):
    """The cases of one's teams, one's own, and those that one is asked about; newest first."""

    pagination_class = _CasePages

    class Filters(Input):
        state = serializers.ChoiceField(CaseState.choices, required=False)
        team = serializers.CharField(required=False, help_text="The id of a team; those below it count, too.")
        kind = serializers.CharField(required=False, help_text="What is asked for: `training`, for example.")
        requester = serializers.CharField(required=False, help_text="The id of who asked.")
        mine = serializers.BooleanField(default=False, help_text="Only those that one asked for oneself.")
        to_decide = serializers.BooleanField(
            default=False, help_text="Only those that wait for one's decision."
        )

    @extend_schema(operation_id="cases_list", parameters=[Filters], responses=CaseRow(many=True))
    def get(self, request: Request) -> Response:
        asked = query(request, self.Filters, is_paged=True)
        cases = case_list(actor_of(request), CaseFilters(**asked))
        return self.page(request, cases, CaseRow, cases_show)


class CaseView(APIView):
    """One case with the facts for a decision."""

    @extend_schema(operation_id="case_read", responses=CaseDetail)
    def get(self, request: Request, public_id: str) -> Response:
        return Response(case_detail(actor_of(request), public_id))


class CaseDecisionView(APIView):
    """Approves or rejects; a rejection needs a reason. Nobody decides on their own request.

    `round` is that of the case as it was looked at: 409 if it has been amended since. `less` approves less than was
    asked for, by the names and bounds that the case lists.
    """

    class In(Input):
        approve = Flag()
        reason = Text(max_length=2000, allow_blank=True, default="")
        round = Whole(min_value=1, max_value=_LARGEST, required=False)
        less = serializers.DictField(child=Whole(min_value=-_LARGEST, max_value=_LARGEST), required=False)

    @extend_schema(operation_id="case_decide", request=In, responses=CaseDetail)
    @idempotent
    def post(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        case_get(actor, public_id)
        asked = body(request, self.In)
        case_decide(
            actor=actor,
            case_public_id=public_id,
            approve=asked["approve"],
            reason=asked["reason"],
            seen_round=asked.get("round"),
            less=asked.get("less"),
        )
        return Response(case_detail(actor, public_id))


class CaseSendBackView(APIView):
    """Sends it back to the requester with a question; nobody decides until it is answered."""

    class In(Input):
        question = Text(max_length=2000)
        round = Whole(min_value=1, max_value=_LARGEST, required=False)

    @extend_schema(operation_id="case_send_back", request=In, responses=CaseDetail)
    @idempotent
    def post(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        case_get(actor, public_id)
        asked = body(request, self.In)
        case_send_back(
            actor=actor,
            case_public_id=public_id,
            question=asked["question"],
            seen_round=asked.get("round"),
        )
        return Response(case_detail(actor, public_id))


class CaseAnswerView(APIView):
    """Answers the question that one's request was sent back with."""

    class In(Input):
        answer = Text(max_length=2000)

    @extend_schema(operation_id="case_answer", request=In, responses=CaseDetail)
    @idempotent
    def post(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        case_get(actor, public_id)
        case_answer(actor=actor, case_public_id=public_id, **body(request, self.In))
        return Response(case_detail(actor, public_id))


class CaseAmendView(APIView):
    """Changes one's request while it waits. A change of what is asked for asks anew: approvals so far are void.

    Of a workload: its whole `spec`, its `priority`. An open question counts as answered with `reason`.
    """

    class In(Input):
        spec = SpecField(required=False)
        priority = Whole(min_value=-HIGHEST_PRIORITY, max_value=HIGHEST_PRIORITY, required=False)
        justification = Text(max_length=2000, allow_blank=True, required=False)
        reason = Text(max_length=2000, allow_blank=True, default="")

    @extend_schema(operation_id="case_amend", request=In, responses=CaseDetail)
    @idempotent
    def post(self, request: Request, public_id: str) -> Response:
        actor = actor_of(request)
        case_get(actor, public_id)
        asked = body(request, self.In)
        case_amend(
            actor=actor,
            case_public_id=public_id,
            changes={name: asked[name] for name in ("spec", "priority") if name in asked},
            justification=asked.get("justification"),
            reason=asked["reason"],
        )
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


class OutcomeOut(Output):
    """`problem` null: it was decided, and this is its state now. Else nothing was changed."""

    id = serializers.CharField()
    state = serializers.ChoiceField(CaseState.choices, allow_null=True)
    problem = Anything(allow_null=True)


def _outcome(decided: Decided, path: str) -> dict[str, Any]:
    problem = problem_data(decided.error, instance=path) if decided.error else None
    return {"id": decided.case_public_id, "state": decided.state, "problem": problem}


class CaseDecisionsView(APIView):
    """Decides on many cases alike, each for itself. Sent again, it changes nothing: what is decided stays so."""

    class In(Input):
        cases = serializers.ListField(child=Text(max_length=16), min_length=1, max_length=MOST_AT_ONCE)
        approve = Flag()
        reason = Text(max_length=2000, allow_blank=True, default="")

    class Out(Output):
        outcomes = OutcomeOut(many=True)

    # No Idempotency-Key: its transaction would hold all of them, and undo all where one fails.
    @extend_schema(operation_id="cases_decide", request=In, responses=Out)
    def post(self, request: Request) -> Response:
        asked = body(request, self.In)
        found = cases_decide(
            actor=actor_of(request),
            case_public_ids=asked["cases"],
            approve=asked["approve"],
            reason=asked["reason"],
        )
        return Response(self.Out({"outcomes": [_outcome(one, request.path) for one in found]}).data)
