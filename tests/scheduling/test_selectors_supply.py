"""The fleet and a draft's chances: numbers for everybody, holders for their own team only."""

from __future__ import annotations

from typing import Any

import pytest

from gpuyard.core import hooks
from gpuyard.core.errors import Forbidden, Invalid, NotFound
from gpuyard.core.models import User
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.fleet.models import Tier
from scheduling import selectors
from scheduling.freespace import free_space
from scheduling.models import Workload
from scheduling.policies import policy_set
from scheduling.specs import request_of
from tenants.models import Case, Team
from tests import factories as make

pytestmark = pytest.mark.django_db


def _check(member: User, team: Team, *tiers: Tier, **request: Any) -> selectors.RequestCheck:
    spec = make.spec_document(*tiers, **request)
    return selectors.request_check(member, team, kind="training", spec=spec)


def _team(document: dict[str, Any] = make.AUTO) -> tuple[Team, User]:
    team = make.team()
    make.approval_policy(team, document)
    return team, make.user("member", team)


# --- Quota in use ----------------------------------------------------------------------------------------------


def test_use_is_summed_up_the_tree() -> None:
    company, tier = make.company(), make.tier()
    first, second = make.team(company), make.team(company)
    node = make.node(tier, 3)
    gpus = list(node.gpus.all())
    make.placed(make.workload(first, tier, gpus=2), gpus[:2])
    make.placed(make.workload(second, tier), gpus[2:])

    use = selectors.quota_use([company.pk, first.pk])

    assert use == {(company.pk, tier.pk): 3 * UNITS_PER_GPU, (first.pk, tier.pk): 2 * UNITS_PER_GPU}
    assert selectors.quota_use([]) == {}


# --- The request form ------------------------------------------------------------------------------------------


def test_a_draft_is_answered_in_numbers() -> None:
    company, tier = make.company(), make.tier()
    team = make.team(company)
    make.approval_policy(company)
    make.quota(company, tier, guaranteed_gpus=4, limit_gpus=6)
    make.quota(team, tier, guaranteed_gpus=4)
    big, small = make.node(tier, 4), make.node(tier, 2)
    make.placed(make.workload(team, tier), [big.gpus.all()[0]])
    make.gpu(small, tier, index=7, condition="down")

    check = _check(make.user("member", team), team, tier, gpus=3)

    (quota,), (supply,) = check.quota, check.supply
    assert (quota.used, quota.guaranteed, quota.room) == tuple(n * UNITS_PER_GPU for n in (1, 4, 5))
    assert (supply.total, supply.free, supply.blocks) == (7, 5, (3, 2))
    assert (check.fits_quota, check.fits_guarantee, check.fits_now) == (True, True, True)
    assert check.approval.is_auto
    assert not _check(make.user("member", team), team, tier, gpus=4).fits_now


def test_a_draft_beyond_the_limit_says_whose_limit() -> None:
    company, tier = make.company(), make.tier()
    team = make.team(company)
    make.approval_policy(company)
    make.quota(company, None, limit_gpus=2)

    check = _check(make.user("member", team), team, tier, gpus=3)

    assert not check.fits_quota
    assert (check.quota[0].limit, check.quota[0].limit_team_id) == (2 * UNITS_PER_GPU, company.pk)


def test_a_draft_says_who_would_be_asked() -> None:
    team, member = _team(make.MANAGER)
    manager = make.user("manager", team)

    check = _check(member, team, make.tier())

    (approver,) = check.approval.approvers
    assert (check.approval.rule, approver.people) == ("ask the manager", (manager,))
    assert not Case.objects.exists()
    assert not Workload.objects.exists()


def test_a_draft_that_no_node_could_ever_hold_says_so() -> None:
    team, member = _team()
    tier, absent = make.tier("big-tier"), make.tier("absent-tier")
    make.node(tier, 2)

    check = _check(member, team, tier, absent, gpus=16)

    assert check.never_fits == (
        "The largest big-tier node has 2 GPUs; a replica must fit onto one node.",
        "No absent-tier has joined that your team may use.",
    )
    assert _check(member, team, tier, absent, gpus=2).never_fits == ()
    assert "CPU" in _check(member, team, tier, gpus=1, cpu_m=10**6).never_fits[0]


def test_cordoned_lost_and_dedicated_nodes_are_not_free() -> None:
    team, member = _team()
    tier = make.tier()
    make.node(tier, 1, cordoned=True)
    make.node(tier, 1, draining=True)
    make.node(tier, 1, state="lost")
    make.node(tier, 1, in_pool=make.pool(only_for=make.team()))
    make.node(tier, 1, in_pool=make.pool(only_for=team))

    (supply,) = _check(member, team, tier).supply

    assert (supply.total, supply.free) == (4, 1)


@pytest.mark.parametrize("kind", ["mining", "", None])
def test_an_invalid_draft_is_refused(kind: Any) -> None:
    team, member = _team()

    with pytest.raises(Invalid):
        selectors.request_check(member, team, kind=kind, spec=make.spec_document(make.tier()))
    with pytest.raises(Invalid):
        selectors.request_check(member, team, kind="training", spec=make.spec_document("nothing"))
    with pytest.raises(Forbidden):
        _check(make.user("auditor", team), team, make.tier())
    with pytest.raises(NotFound):
        _check(make.user(), team, make.tier())


@pytest.mark.parametrize("count", [1, 6])
def test_a_draft_takes_as_many_queries_in_a_large_fleet(
    count: int, django_assert_max_num_queries: Any
) -> None:
    team, member = _team(make.MANAGER)
    make.user("manager", team)
    tiers = [make.tier() for _ in range(count)]
    for tier in tiers:
        make.quota(make.team(team.parent), tier, limit_gpus=3)
        make.node(tier, 2)

    with django_assert_max_num_queries(17):
        assert len(_check(member, team, *tiers).supply) == count


# --- The fleet page --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scope", "free"), [("team", 1), ("company", 2)])
def test_a_part_of_a_sisters_card_is_free_where_the_policy_says_so(scope: str, free: int) -> None:
    team, tier = _team()[0], make.tier()
    sister, node = make.team(team.parent, "sister"), make.node(tier, 2)
    if scope == "company":
        policy_set(actor=make.admin(), changes={"share_scope": "company"}, based_on=0, reason="try")
    piece = make.workload(sister, tier, request_fields={"share": 500})
    rank = make.replica(make.attempt(piece, tier), node)
    whose = sister.company_id if scope == "company" else sister.pk
    make.allocation(rank, node.gpus.order_by("index")[0], shares=(0, 500), scope=whose)
    asked = request_of(make.spec_document(tier, request_fields={"share": 500}))
    (supply,) = selectors.tier_supply(team, [tier], asked)
    rooms = free_space(make.user("member", team), [tier], team=team)
    assert sum(node.replicas_now(asked, 500) for node in supply.nodes) == 1 + free
    assert len(rooms[0].own_cards) == free - 1


def test_everybody_sees_the_fleet_but_holders_only_of_their_teams() -> None:
    tier = make.tier()
    node = make.node(tier, 3)
    first, second, _third = node.gpus.all()
    mine, others = make.workload(None, tier), make.workload(None, tier)
    make.placed(mine, [first], running=True)
    make.placed(others, [second])

    (shown,) = selectors.fleet_list(mine.owner).nodes

    states = [(cell.state, cell.is_running, cell.is_others) for cell in shown.cells]
    assert states == [("held", True, False), ("held", False, True), ("free", False, False)]
    assert shown.cells[0].holder is not None
    assert shown.cells[0].holder.workload_public_id == mine.public_id
    assert shown.cells[0].holder.ends_at is not None
    assert others.public_id not in str(shown.cells)
    assert shown.free == 1


def test_a_gpu_that_is_not_ready_shows_its_condition() -> None:
    tier = make.tier()
    node = make.node(tier)
    for index, condition in enumerate(["ready", "down", "maintenance", "cordoned"]):
        make.gpu(node, tier, index=index, condition=condition)

    view = selectors.fleet_list(make.user(), node_public_id=node.public_id)

    assert [cell.state for cell in view.nodes[0].cells] == ["free", "down", "maintenance", "cordoned"]


@pytest.mark.parametrize("count", [1, 6])
def test_the_fleet_takes_as_many_queries_for_six_nodes_as_for_one(
    count: int, django_assert_num_queries: Any
) -> None:
    tier = make.tier()
    for _ in range(count):
        node = make.node(tier, 2)
        make.placed(make.workload(None, tier), [node.gpus.all()[0]])
    person = make.user()

    with django_assert_num_queries(6):
        assert len(selectors.fleet_list(person).nodes) == count


def test_holders_are_summed_for_each_workload() -> None:
    tier = make.tier()
    workload = make.workload(None, tier, gpus=2, time_limit_s=None)
    make.placed(workload, list(make.node(tier, 2).gpus.all()))
    make.placed(make.workload(), list(make.node(make.tier(), 1).gpus.all()))

    (holder,) = hooks.holders.get()([tier.pk])

    assert (holder.workload_id, holder.units, holder.ends_at) == (workload.pk, 2 * UNITS_PER_GPU, None)
