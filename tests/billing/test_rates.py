"""Rates: which applies, how they are set, and what a request is estimated at."""

import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal

import pytest
from django.db import connections

from billing.estimates import estimate
from billing.metering import RATES_LOCK
from billing.models import CostRate, PriceRate
from billing.rates import CostSpan, PriceKey, PriceSpan, RateBook
from billing.services import cost_rate_set, price_rate_set
from gpuyard.audit.models import Event
from gpuyard.core import clock
from gpuyard.core.errors import Conflict, Forbidden, Invalid
from gpuyard.core.hooks import EstimateRequest
from gpuyard.core.money import UNITS_PER_GPU
from tests import factories
from tests.conftest import Connection

COMPANY, TEAM, TIER = uuid.UUID(int=1), uuid.UUID(int=2), uuid.UUID(int=3)
KEY = PriceKey((COMPANY, TEAM), TIER, "training", "guaranteed")


def price(team: uuid.UUID, rate: int, kind: str = "any", service_class: str = "any") -> PriceSpan:
    return PriceSpan(team, TIER, kind, service_class, Decimal(rate), 0, None)


@pytest.mark.parametrize(
    ("rates", "applies"),
    [
        ([], None),
        ([price(COMPANY, 1)], 1),
        ([price(COMPANY, 1, "training", "guaranteed"), price(TEAM, 2)], 2),
        ([price(TEAM, 1, "any", "guaranteed"), price(TEAM, 2, "training")], 2),
        ([price(TEAM, 1), price(TEAM, 2, "any", "guaranteed")], 2),
        ([price(TEAM, 1, "inference"), price(COMPANY, 2, "any", "borrowed"), price(COMPANY, 3)], 3),
    ],
)
def test_the_most_specific_price_applies(rates: list[PriceSpan], applies: int | None) -> None:
    assert RateBook([], rates).price(KEY, 5) == (None if applies is None else Decimal(applies))


def test_a_cost_applies_within_its_span() -> None:
    book = RateBook([CostSpan(TIER, Decimal(1), 0, 10), CostSpan(TIER, Decimal(2), 10, None)], [])
    assert [book.cost(TIER, moment) for moment in (-1, 9, 10)] == [None, Decimal(1), Decimal(2)]
    assert sorted(set(book.cost_changes([TIER]))) == [0, 10]


@pytest.mark.django_db
def test_a_new_cost_ends_the_one_before_and_is_logged() -> None:
    admin, tier = factories.admin(), factories.tier()
    cost_rate_set(actor=admin, tier=tier, rate=Decimal("1.5"))
    new = cost_rate_set(actor=admin, tier=tier, rate=Decimal("2.25"), reason="dearer power")
    old = CostRate.objects.exclude(pk=new.pk).get(tier=tier)
    assert old.span.upper == new.span.lower
    event = Event.objects.filter(action="cost_rate.set").latest("created_at", "id")
    assert event.old
    assert event.new
    assert (event.old["rate"], event.new["rate"], event.reason) == ("1.500000", "2.25", "dearer power")


@pytest.mark.django_db
def test_a_price_is_set_for_one_kind_beside_the_general_one() -> None:
    admin, team, tier = factories.admin(), factories.team(), factories.tier()
    price_rate_set(actor=admin, team=team, tier=tier, rate=Decimal(2))
    price_rate_set(actor=admin, team=team, tier=tier, rate=Decimal(1), kind="development")
    assert PriceRate.objects.filter(team=team, span__endswith__isnull=True).count() == 2


@pytest.mark.django_db
def test_only_admins_set_rates() -> None:
    team, tier = factories.team(), factories.tier()
    with pytest.raises(Forbidden):
        price_rate_set(actor=factories.user("finance", team), team=team, tier=tier, rate=Decimal(0))


@pytest.mark.django_db
@pytest.mark.parametrize("rate", ["-1", "NaN", "Infinity", "0.0000001", "100000000"])
def test_odd_rates_are_refused(rate: str) -> None:
    with pytest.raises(Invalid) as refused:
        cost_rate_set(actor=factories.admin(), tier=factories.tier(), rate=Decimal(rate))
    assert refused.value.errors[0].field == "rate"


@pytest.mark.django_db
def test_a_rate_begins_now_or_later_and_in_order() -> None:
    admin, tier, now = factories.admin(), factories.tier(), clock.now()
    with pytest.raises(Invalid):
        cost_rate_set(actor=admin, tier=tier, rate=Decimal(1), starts_at=now - timedelta(days=1))
    cost_rate_set(actor=admin, tier=tier, rate=Decimal(1), starts_at=now + timedelta(days=1))
    with pytest.raises(Conflict):
        cost_rate_set(actor=admin, tier=tier, rate=Decimal(2))


@pytest.mark.django_db(transaction=True)
def test_a_rate_waits_for_a_run_that_is_being_metered(other_connection: Callable[..., Connection]) -> None:
    admin, tier = factories.admin(), factories.tier()
    metering = other_connection(autocommit=False)
    metering.execute("SELECT pg_advisory_xact_lock_shared(hashtextextended(%s, 0))", (RATES_LOCK,))
    done = threading.Event()

    def run() -> None:
        cost_rate_set(actor=admin, tier=tier, rate=Decimal(1))
        done.set()
        connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    assert not done.wait(0.5)
    metering.rollback()
    thread.join()
    assert done.is_set()


# --- Estimates ------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_an_estimate_takes_the_dearest_of_the_tiers() -> None:
    team, cheap, dear = factories.team(), factories.tier(), factories.tier()
    factories.price_rate(team, cheap, "1.000000")
    factories.price_rate(team, dear, "3.500000")
    request = EstimateRequest(team.pk, "training", (cheap.pk, dear.pk), 4 * UNITS_PER_GPU, 7200)
    found = estimate(request)
    assert found is not None
    assert (found.currency, found.hourly, found.total) == ("EUR", Decimal(14), Decimal(28))


@pytest.mark.django_db
def test_without_a_limit_there_is_no_total_and_without_a_rate_no_estimate() -> None:
    team, tier = factories.team(), factories.tier()
    request = EstimateRequest(team.pk, "inference", (tier.pk,), UNITS_PER_GPU, None)
    assert estimate(request) is None
    factories.price_rate(team, tier, "1.000000")
    found = estimate(request)
    assert found is not None
    assert (found.hourly, found.total) == (Decimal(1), None)
