"""Who sees which costs, and that pages and files add up."""

import csv
from datetime import timedelta
from decimal import Decimal

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from billing.metering import meter
from billing.selectors import (
    CostFilters,
    cost_by_team_day,
    cost_csv,
    cost_rate_list,
    fleet_cost,
    price_rate_list,
    workload_cost,
    workloads_pending,
)
from gpuyard.core import clock
from gpuyard.core.errors import Forbidden, Invalid, NotFound
from scheduling.models import Allocation
from tenants.models import Team
from tests import factories
from tests.billing.ledgers import HOUR, MINUTE, at_hour, end, fleet, held


@pytest.fixture
def company(db: None) -> Team:
    return factories.company()


def used(team: Team, *, minutes: int = 60, price: str = "2.000000", cost: str = "1.000000") -> Allocation:
    """A run of that length, metered."""
    since = at_hour(6)
    _node, (gpu,) = fleet(since=since, cost=cost)
    allocation = end(held(gpu, since, team=team, price=price), since + minutes * MINUTE)
    meter(everything=True)
    return allocation


def test_a_member_sees_the_price_but_not_the_cost(company: Team) -> None:
    team = factories.team(company)
    used(team)
    (row,) = cost_by_team_day(factories.user("member", team)).rows
    assert (row.team_name, row.gpu_hours, row.price, row.currency, row.cost) == (
        team.name,
        Decimal("1.0000"),
        Decimal("2.00"),
        "EUR",
        None,
    )


@pytest.mark.parametrize("role", ["manager", "finance", "auditor"])
def test_those_who_answer_for_a_team_see_its_cost_too(company: Team, role: str) -> None:
    team = factories.team(factories.team(company))
    used(team)
    assert team.parent is not None
    table = cost_by_team_day(factories.user(role, team.parent))
    assert [row.cost for row in table.rows] == [Decimal("1.00")]
    assert table.totals[0].cost == Decimal("1.00")


def test_an_admin_sees_all_and_a_stranger_nothing(company: Team) -> None:
    used(factories.team(company))
    used(factories.team())
    assert len(cost_by_team_day(factories.admin()).rows) == 2
    stranger = factories.user("finance", factories.company())
    table = cost_by_team_day(stranger)
    assert (table.rows, table.totals) == ((), ())


def test_a_member_who_manages_another_team_sees_the_cost_of_that_one_only(company: Team) -> None:
    mine, managed = factories.team(company), factories.team(company)
    used(mine)
    used(managed)
    person = factories.user("member", mine)
    factories.membership(person, managed, "manager")
    table = cost_by_team_day(person)
    assert {row.team_name: row.cost for row in table.rows} == {mine.name: None, managed.name: Decimal("1.00")}
    assert table.totals[0].cost is None


def test_the_rows_add_up_to_the_rounded_total(company: Team) -> None:
    for _ in range(3):  # a third of an hour at 1.00 each: 0.333… three times is 1.00, not 0.99
        used(factories.team(company), minutes=20, price="1.000000")
    table = cost_by_team_day(factories.user("finance", company))
    assert sorted(row.price for row in table.rows) == [Decimal("0.33"), Decimal("0.33"), Decimal("0.34")]
    assert table.totals[0].price == Decimal("1.00")


def test_the_csv_is_exactly_the_pages_rows(company: Team) -> None:
    evil = factories.team(company, name="=HYPERLINK(1)")
    used(evil, minutes=20)
    used(factories.team(company), minutes=50)
    finance = factories.user("finance", company)
    table = cost_by_team_day(finance)
    rows = list(csv.DictReader(cost_csv(finance)))
    assert [row["price"] for row in rows] == [str(row.price) for row in table.rows]
    assert sum(Decimal(row["price"]) for row in rows) == table.totals[0].price
    assert sum(Decimal(row["cost"]) for row in rows) == table.totals[0].cost
    assert "'=HYPERLINK(1)" in {row["team"] for row in rows}


def test_filters_narrow_the_rows(company: Team) -> None:
    one, other = factories.team(company), factories.team(company)
    used(one)
    used(other)
    admin = factories.admin()
    (row,) = cost_by_team_day(admin, CostFilters(team=one.public_id)).rows
    assert row.team_id == one.public_id
    assert len(cost_by_team_day(admin, CostFilters(team=company.public_id, kind="training")).rows) == 2
    tomorrow = row.day + timedelta(days=1)
    assert cost_by_team_day(admin, CostFilters(since=tomorrow)).rows == ()
    assert cost_by_team_day(admin, CostFilters(until=row.day, tier=row.tier)).rows == (row,)


def test_odd_filters_are_refused(company: Team) -> None:
    finance, today = factories.user("finance", company), clock.now().date()
    with pytest.raises(Invalid):
        cost_csv(finance, CostFilters(since=today, until=today - timedelta(days=1)))
    with pytest.raises(NotFound):
        cost_by_team_day(finance, CostFilters(team=factories.team().public_id))


# --- One workload ---------------------------------------------------------------------------------------------


def test_a_running_workload_costs_also_what_is_not_metered_yet(company: Team) -> None:
    team, since = factories.team(company), clock.now() - HOUR
    _node, (gpu,) = fleet(since=since)
    workload = held(gpu, since, team=team, price="3.600000").workload
    member = factories.user("member", team)
    before = workload_cost(member, workload)
    meter(everything=True)
    after = workload_cost(member, workload)
    assert before.buckets == ()
    assert before.price == before.pending == pytest.approx(Decimal("3.60"), abs=Decimal("0.02"))
    assert [bucket.bucket for bucket in after.buckets] == ["transition"]
    assert after.price >= before.price
    assert after.pending < Decimal("0.05")
    assert after.cost is None


def test_a_list_says_what_is_not_metered_yet_in_one_go_for_all_rows(company: Team) -> None:
    team, since = factories.team(company), clock.now() - HOUR
    _node, gpus = fleet(3, since=since)
    factories.price_rate(team, gpus[0].tier, "3.600000")
    workloads = [held(gpu, since, team=team, price=None).workload for gpu in gpus]
    with CaptureQueriesContext(connection) as queries:
        pending = workloads_pending(workloads)
    assert pending.keys() == {workload.pk for workload in workloads}
    assert all(amount == pytest.approx(Decimal("3.60"), abs=Decimal("0.02")) for amount in pending.values())
    with CaptureQueriesContext(connection) as fewer:
        workloads_pending(workloads[:1])
    assert len(queries) == len(fewer)
    meter(everything=True)
    assert sum(workloads_pending(workloads).values()) < Decimal("0.05")


def test_less_than_a_cent_is_known_to_be_something(company: Team) -> None:
    allocation = used(factories.team(company), minutes=1, price="0.060000", cost="0.000000")
    (row,) = cost_by_team_day(factories.user("manager", company)).rows
    assert (row.price, row.has_price, row.has_cost) == (Decimal("0.00"), True, False)
    cost = workload_cost(factories.user("manager", company), allocation.workload)
    assert [bucket.has_price for bucket in cost.buckets] == [True]


def test_a_workloads_cost_stands_beside_its_estimate(company: Team) -> None:
    allocation = used(factories.team(company), price="2.000000")
    manager = factories.user("manager", company)
    cost = workload_cost(manager, allocation.workload)
    assert (cost.price, cost.gpu_hours, cost.cost) == (Decimal("2.00"), Decimal(1), Decimal("1.00"))
    assert cost.estimate is not None
    assert (cost.estimate.currency, cost.estimate.total) == ("EUR", Decimal(2))


def test_a_strangers_workload_is_not_there(company: Team) -> None:
    allocation = used(factories.team(company))
    with pytest.raises(NotFound):
        workload_cost(factories.user("member", factories.team()), allocation.workload)


# --- The fleet and the rates ------------------------------------------------------------------------------------


def test_the_fleets_cost_is_for_admins(company: Team) -> None:
    used(factories.team(company))
    found = fleet_cost(factories.admin())
    assert found.cost == sum(bucket.cost for bucket in found.buckets) > 0
    assert found.charged == Decimal("2.00")
    today = clock.now().date()
    assert fleet_cost(factories.admin(), since=today + timedelta(days=1)).buckets == ()
    assert fleet_cost(factories.admin(), since=today - timedelta(days=2), until=today).cost == found.cost
    for refused in (fleet_cost, cost_rate_list):
        with pytest.raises(Forbidden):
            refused(factories.user("finance", company))


def test_prices_are_shown_to_those_who_pay_them(company: Team) -> None:
    tier = factories.tier()
    factories.rates(company, tier)
    member = factories.user("member", factories.team(company))
    assert [rate.tier for rate in price_rate_list(member)] == [tier]
    assert not price_rate_list(factories.user("member", factories.team())).exists()
    assert [rate.tier for rate in cost_rate_list(factories.admin())] == [tier]
