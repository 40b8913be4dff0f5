"""Arrays: one request and one decision, many workloads; and what waits for other work."""

from __future__ import annotations

from typing import Any

import pytest

from gpuyard.audit.models import Event
from gpuyard.core.errors import Conflict, Forbidden, Invalid
from gpuyard.core.models import User
from scheduling import services
from scheduling.agents.desired import desired_replicas, replicas_of
from scheduling.cases import WorkloadCases
from scheduling.dependencies import dependencies_settle
from scheduling.models import Workload, WorkloadSpec
from tenants.models import Case, Team
from tenants.services import case_decide
from tests import factories as make

pytestmark = pytest.mark.django_db


def _team(document: dict[str, Any] = make.AUTO) -> tuple[Team, User]:
    team = make.team()
    make.approval_policy(team, document)
    return team, make.user("member", team)


def _submit(team: Team, member: User, **request: Any) -> Workload:
    spec = make.spec_document(make.tier(), request_fields=request)
    return services.workload_submit(actor=member, team=team, name="sweep", kind="training", spec=spec)


def _states(array: Workload) -> list[str]:
    members = Workload.objects.filter(array=array.pk).order_by("array_index")
    return list(members.values_list("state", flat=True))


# --- Submitting --------------------------------------------------------------------------------------------


def test_an_array_is_many_workloads_with_one_spec_and_one_case() -> None:
    team, member = _team()

    first = _submit(team, member, array={"count": 5})

    members = list(Workload.objects.filter(array=first).order_by("array_index"))
    assert [one.array_index for one in members] == [0, 1, 2, 3, 4]
    assert members[0] == first
    assert {one.spec_id for one in members} == {first.spec_id}
    assert (_states(first), WorkloadSpec.objects.count(), Case.objects.count()) == (["waiting"] * 5, 1, 1)
    told = [event.new or {} for event in Event.objects.filter(action="workload.submit")]
    assert sorted(one["array_index"] for one in told) == [0, 1, 2, 3, 4]
    assert sum("request" in one for one in told) == 1  # the first says it for all


def test_the_rules_see_all_of_an_array() -> None:
    team, member = _team(make.MANAGER)
    make.user("manager", team)
    tier = make.tier("l4-array", memory_mib=24_000)
    make.rates(Team.objects.get(pk=team.company_id), tier, price="2.000000")
    spec = make.spec_document(tier, request_fields={"share": 250, "array": {"count": 40, "parallel": 8}})
    del spec["request"]["gpus_per_replica"]

    services.workload_submit(actor=member, team=team, name="sweep", kind="training", spec=spec)

    facts = Case.objects.get().facts
    # 8 × ¼ GPU at once; 40 × ¼ GPU × 1 h × 2.00
    assert (facts["gpu_count"], facts["estimated_cost"]) == (2, "20.00")
    assert facts["asked"] == "40 times 0.25 × l4-array"


def test_one_decision_is_for_the_whole_array() -> None:
    team, member = _team(make.MANAGER)
    manager = make.user("manager", team)
    first = _submit(team, member, array={"count": 3})
    assert _states(first) == ["pending_approval"] * 3

    case_decide(actor=manager, case_public_id=Case.objects.get().public_id, approve=True)

    assert _states(first) == ["waiting"] * 3
    assert Event.objects.filter(action="workload.approve").count() == 3


def test_a_rejected_array_has_ended() -> None:
    team, member = _team(make.MANAGER)
    manager = make.user("manager", team)
    first = _submit(team, member, array={"count": 2})

    case_decide(actor=manager, case_public_id=Case.objects.get().public_id, approve=False, reason="no")

    assert _states(first) == ["rejected"] * 2


def test_the_card_of_an_array_says_how_many() -> None:
    team, member = _team(make.MANAGER)
    make.user("manager", team)
    first = _submit(team, member, array={"count": 3})

    (asked, *_rest) = WorkloadCases().card_facts(subject_id=first.pk)
    assert asked.value.startswith("3 times 1 × ")


# --- Stopping ----------------------------------------------------------------------------------------------


def test_one_member_alone_can_be_taken_back_and_the_case_goes_on() -> None:
    team, member = _team(make.MANAGER)
    manager = make.user("manager", team)
    first = _submit(team, member, array={"count": 3})

    services.workload_stop(actor=member, workload=first)
    assert (_states(first)[0], Case.objects.get().state) == ("cancelled", "open")
    case_decide(actor=manager, case_public_id=Case.objects.get().public_id, approve=True)

    assert _states(first) == ["cancelled", "waiting", "waiting"]


def test_taking_back_the_last_pending_member_withdraws_the_case() -> None:
    team, member = _team(make.MANAGER)
    make.user("manager", team)
    first = _submit(team, member, array={"count": 2})

    for one in Workload.objects.filter(array=first):
        services.workload_stop(actor=member, workload=one)

    assert (_states(first), Case.objects.get().state) == (["cancelled"] * 2, "withdrawn")


def test_the_whole_array_is_taken_back_whatever_its_members_do() -> None:
    team, member = _team()
    first = _submit(team, member, array={"count": 4})
    tier = make.tier()
    _zero, running, ended, _three = Workload.objects.filter(array=first).order_by("array_index")
    make.placed(running, list(make.node(tier, 1).gpus.all()), running=True)
    Workload.objects.filter(pk=ended.pk).update(state="succeeded")

    assert services.array_stop(actor=member, workload=ended, reason="enough") == 3

    assert _states(first) == ["cancelled", "stopping", "succeeded", "cancelled"]


def test_a_pending_array_is_taken_back_with_its_case() -> None:
    team, member = _team(make.MANAGER)
    make.user("manager", team)
    first = _submit(team, member, array={"count": 3})

    assert services.array_stop(actor=member, workload=first) == 3
    assert (_states(first), Case.objects.get().state) == (["cancelled"] * 3, "withdrawn")


def test_an_array_is_taken_back_by_whom_it_concerns_only() -> None:
    team, member = _team()
    first = _submit(team, member, array={"count": 2})

    with pytest.raises(Forbidden):
        services.array_stop(actor=make.user("member", team), workload=first)
    with pytest.raises(Conflict):
        services.array_stop(actor=member, workload=_submit(team, member))
    assert _states(first) == ["waiting"] * 2


def test_a_member_knows_which_one_it_is() -> None:
    team, member = _team()
    first = _submit(team, member, array={"count": 3})
    second = Workload.objects.get(array=first, array_index=1)
    node = make.node(make.tier(), 1)
    make.placed(second, list(node.gpus.all()))

    (order,) = desired_replicas(replicas_of(node), reported=())

    assert (order["env"]["GPUYARD_ARRAY_INDEX"], order["env"]["GPUYARD_ARRAY_COUNT"]) == ("1", "3")


# --- What waits for other work ---------------------------------------------------------------------------------


def test_a_dependency_must_be_seen_and_may_not_have_failed() -> None:
    team, member = _team()
    failed = make.workload(team, make.tier(), state="failed")
    strangers = make.workload(make.team(), make.tier())

    with pytest.raises(Invalid) as refused:
        _submit(team, member, depends_on=[failed.public_id, strangers.public_id])

    assert {error.field: error.code for error in refused.value.errors} == {
        "spec.request.depends_on.0": "dependency_failed",
        "spec.request.depends_on.1": "workload_unknown",
    }


def test_what_follows_a_failed_workload_is_cancelled_and_says_why_and_so_does_what_follows_that() -> None:
    team, member = _team()
    first = _submit(team, member)
    second = _submit(team, member, depends_on=[first.public_id], array={"count": 2})
    third = _submit(team, member, depends_on=[second.public_id])
    other = _submit(team, member)
    assert dependencies_settle() == 0

    services.workload_stop(actor=member, workload=first)
    assert dependencies_settle() == 3

    third.refresh_from_db()
    other.refresh_from_db()
    assert (_states(second), third.state, other.state) == (["cancelled"] * 2, "cancelled", "waiting")
    assert second.public_id in third.state_reason
    assert dependencies_settle() == 0


# --- Names that mean nothing -----------------------------------------------------------------------------------


def test_unknown_levels_and_nodes_are_refused_and_the_levels_listed() -> None:
    team, member = _team()
    make.domain("rack", "r1")

    with pytest.raises(Invalid) as refused:
        _submit(
            team,
            member,
            topology={"required": "row", "preferred": "island"},
            spread_level="galaxy",
            not_nodes=["nowhere"],
        )

    found = {error.field: error for error in refused.value.errors}
    assert set(found) == {
        "spec.request.topology.required",
        "spec.request.spread_level",
        "spec.request.not_nodes.0",
    }
    assert str(found["spec.request.topology.required"].remedy) == "Choose from: rack, node, island."
    assert str(found["spec.request.spread_level"].remedy) == "Choose from: rack, node."


def test_capabilities_that_no_tier_has_are_refused_and_the_tiers_listed() -> None:
    team, member = _team()

    with pytest.raises(Invalid) as refused:
        _submit(team, member, tiers=[], capabilities={"memory_mib": 10**6})

    (error,) = refused.value.errors
    assert (error.field, error.code) == ("spec.request.capabilities", "capabilities_nowhere")
