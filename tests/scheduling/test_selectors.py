"""Reading workloads: whose they are, in few queries, and nothing of strangers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpuyard.core import hooks
from gpuyard.core.errors import Invalid, NotFound
from scheduling import selectors, services
from scheduling.models import Verdict
from tests import factories as make

pytestmark = pytest.mark.django_db
Filters = selectors.WorkloadFilters


def test_a_member_sees_the_teams_workloads_and_those_below_it() -> None:
    company = make.company()
    mine, sister = make.team(company), make.team(company)
    own, below = make.workload(mine), make.workload(make.team(mine))
    make.workload(sister)

    assert list(selectors.workload_list(make.user("member", mine))) == [below, own]


def test_an_owner_still_sees_what_they_asked_for_after_leaving() -> None:
    workload = make.workload()
    workload.owner.memberships.all().delete()

    assert selectors.workload_get(workload.owner, workload.public_id) == workload


def test_an_admin_sees_all_and_somebody_without_roles_nothing() -> None:
    workload = make.workload()

    assert list(selectors.workload_list(make.admin())) == [workload]
    assert list(selectors.workload_list(make.user())) == []


@pytest.mark.parametrize(
    "read",
    [
        lambda actor, workload: selectors.workload_get(actor, workload.public_id),
        lambda actor, workload: selectors.workload_events(actor, workload),
        lambda actor, workload: selectors.attempt_list(actor, workload),
        lambda actor, workload: selectors.log_read(actor, workload),
        lambda actor, workload: selectors.workload_list(actor, Filters(team=workload.team.public_id)),
        lambda actor, workload: selectors.request_check(
            actor, workload.team, kind="training", spec=workload.spec.document
        ),
        lambda actor, workload: services.workload_stop(actor=actor, workload=workload),
    ],
    ids=["get", "events", "attempts", "log", "filter", "check", "stop"],
)
def test_a_strangers_workload_is_not_found(read: Callable[..., Any]) -> None:
    workload = make.workload()
    sister = make.team(make.company())

    for stranger in (make.user(), make.user("manager", sister)):
        with pytest.raises(NotFound):
            read(stranger, workload)


@pytest.mark.parametrize("public_id", ["w-00000000", "", "\x00", "\ud800", "w" * 100_000])
def test_an_unknown_id_is_not_found(public_id: str) -> None:
    with pytest.raises(NotFound):
        selectors.workload_get(make.admin(), public_id)


def test_filters_narrow_the_list() -> None:
    team = make.team()
    member = make.user("member", team)
    first = make.workload(team, "a100-40g", owner=member, name="llm-train", state="waiting")
    second = make.workload(team, "l4-24g", name="chat", kind="inference", state="running")

    def found(**filters: Any) -> list[str]:
        return [row.name for row in selectors.workload_list(member, Filters(**filters))]

    assert found() == [second.name, first.name]
    assert found(states=("waiting", "failed")) == [first.name]
    assert found(kind="inference") == [second.name]
    assert found(owner="me") == [first.name]
    assert found(owner=second.owner.public_id) == [second.name]
    assert found(tier="a100-40g") == [first.name]
    assert found(search="LLM") == [first.name]
    assert found(search=second.public_id[:6]) == [second.name]
    assert found(search="%") == []
    assert found(owner="\x00", tier="\x00", search="\x00") == []


@pytest.mark.parametrize(("field", "filters"), [("state", {"states": ("x",)}), ("kind", {"kind": "x"})])
def test_an_unknown_choice_is_refused(field: str, filters: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as refused:
        selectors.workload_list(make.admin(), Filters(**filters))
    assert refused.value.errors[0].field == field


@pytest.mark.parametrize("count", [1, 8])
def test_the_list_takes_as_many_queries_for_eight_as_for_one(
    count: int, django_assert_num_queries: Any
) -> None:
    tier, team = make.tier(), make.team()
    node = make.node(tier, 8)
    for gpu in list(node.gpus.all())[:count]:
        make.placed(make.workload(team, tier), [gpu])
    member = make.user("member", team)

    with django_assert_num_queries(3):
        rows = list(selectors.workload_list(member))
        places = [selectors.live_attempt(row) for row in rows]
        nodes = [replica.node.name for place in places if place for replica in place.replicas.all()]
        assert [row.team.name for row in rows] == [team.name] * count
        assert nodes == [node.name] * count


def test_the_timeline_holds_the_workload_its_case_and_its_attempt() -> None:
    team = make.team()
    make.approval_policy(team)
    member = make.user("member", team)
    tier = make.tier()
    workload = services.workload_submit(
        actor=member, team=team, name="train", kind="training", spec=make.spec_document(tier)
    )

    actions = [event.action for event in selectors.workload_events(member, workload)]

    assert actions == ["workload.submit", "case.open", "workload.approve"]


def test_the_queue_is_in_the_order_of_the_last_pass_and_only_ones_own() -> None:
    team = make.team()
    late, early = make.workload(team), make.workload(team)
    make.workload()
    make.workload(team, state="running")
    Verdict.objects.create(workload=late, pass_number=1, position=2, blockers=[])
    Verdict.objects.create(workload=early, pass_number=1, position=1, blockers=[])
    unjudged = make.workload(team)

    assert list(selectors.queue_list(make.user("member", team))) == [early, late, unjudged]


# --- Why it waits --------------------------------------------------------------------------------------------


def _verdict_held_by(*team_ids: Any) -> list[dict[str, Any]]:
    holders = [{"team_id": str(key), "gpus": 4.0, "next_end_us": None} for key in team_ids]
    data = {
        "tier_id": "gone",
        "total_free": 0,
        "largest_free": 0,
        "needed": 1,
        "gpus_per_replica": 1,
        "holders": holders,
    }
    return [{"code": "not_enough_free_gpus", "data": data}]


def test_a_verdict_names_ones_own_teams_and_hides_others() -> None:
    company = make.company()
    mine, sister = make.team(company, "vision"), make.team(company, "secret-project")
    workload = make.workload(mine)
    blockers = _verdict_held_by(mine.pk, sister.pk)
    Verdict.objects.create(workload=workload, pass_number=7, position=3, blockers=blockers)

    why = selectors.verdict_explain(make.user("member", mine), workload)

    assert why is not None
    assert why.reasons[0].text == "no gone is free; held by team vision 4, others 4"
    assert (why.position, why.pass_number, why.headline.startswith("Waiting: no gone")) == (3, 7, True)
    assert str(sister.pk) not in str(why)
    assert selectors.verdict_explain(make.admin(), workload).reasons[0].text.count("team") == 2  # type: ignore[union-attr]


def test_the_company_whose_limit_binds_a_team_is_named() -> None:
    company = make.company("Acme")
    team = make.team(company)
    workload = make.workload(team)
    data = {"team_id": str(company.pk), "tier_id": None, "used": 7000, "limit": 7000, "asked": 7000}
    Verdict.objects.create(
        workload=workload, pass_number=1, blockers=[{"code": "quota_limit_total", "data": data}]
    )

    why = selectors.verdict_explain(make.user("member", team), workload)

    assert why is not None
    assert "team Acme uses 1 of its 1" in why.headline


def test_what_must_succeed_first_is_named_by_its_public_id_if_it_is_ones_own() -> None:
    company = make.company()
    mine, sister = make.team(company), make.team(company)
    workload, first, foreign = make.workload(mine), make.workload(mine), make.workload(sister)
    data = {"workload_ids": [str(first.pk), str(foreign.pk)], "count": 2}
    blockers = [{"code": "dependency", "data": data}]
    Verdict.objects.create(workload=workload, pass_number=1, blockers=blockers)

    why = selectors.verdict_explain(make.user("member", mine), workload)

    assert why is not None
    assert why.reasons[0].text == f"{first.public_id}, other work must succeed first"
    assert str(foreign.pk) not in str(why)


def test_an_unjudged_workload_has_no_explanation_and_a_refused_start_has_one() -> None:
    workload = make.workload()
    assert selectors.verdict_explain(workload.owner, workload) is None

    blockers = [{"code": "changed_meanwhile", "data": {"what": "node_full"}}]
    Verdict.objects.create(workload=workload, pass_number=1, blockers=blockers)

    why = selectors.verdict_explain(workload.owner, workload)
    assert why is not None
    assert "next pass tries again" in why.headline


def test_the_estimated_start_is_the_verdicts() -> None:
    workload = make.workload()
    assert hooks.eta.get()(workload.pk).starts_at is None
    verdict = Verdict.objects.create(
        workload=workload, pass_number=1, blockers=[], eta="2030-01-01T00:00:00Z"
    )
    verdict.refresh_from_db()

    assert hooks.eta.get()(workload.pk).starts_at == verdict.eta
