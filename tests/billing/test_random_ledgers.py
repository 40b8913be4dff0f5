"""Ledgers made at random, metered in random pieces: the separate SQL must come to the same books."""

import itertools
import random
from datetime import datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

from billing.metering import meter
from billing.models import Charge, CostRate, PriceRate, UsageLine
from billing.verify import books_verify
from gpuyard.core import clock
from gpuyard.core.ids import uuid7
from gpuyard.fleet.models import Condition, Gpu, GpuCondition, GpuTelemetry, Tier
from scheduling.models import Allocation, Replica
from tenants.models import Team
from tests import factories
from tests.billing.ledgers import HOUR

SPAN = 30 * HOUR


class Maker:
    """Fills GPUs with what the ledger allows: lanes of slots in which one holder follows the other."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.start = clock.now() - SPAN - HOUR
        self.tiers = [factories.tier(), factories.tier()]
        zones = ["Asia/Kathmandu", "America/New_York"]
        self.sharers: dict[UUID, Team] = {}
        self.teams = [factories.team(factories.company(time_zone=zone)) for zone in zones]
        for tier in self.tiers:
            self.rates(tier)

    def times(self, count: int) -> list[datetime]:
        """That many moments in order."""
        limit = SPAN // timedelta(microseconds=1)
        found = sorted(self.random.sample(range(1, limit), count))
        return [self.start + timedelta(microseconds=us) for us in found]

    def rates(self, tier: Tier) -> None:
        edges = [self.start - HOUR, *self.times(2), None]
        for begin, end in itertools.pairwise(edges):
            rate = Decimal(self.random.randrange(10**7)).scaleb(-6)
            CostRate.objects.create(tier=tier, rate=rate, span=DateTimeTZRange(begin, end))
            for team in self.teams:
                PriceRate.objects.create(
                    team=team.company, tier=tier, rate=rate * 2, span=DateTimeTZRange(begin, end)
                )

    def gpu(self) -> Gpu:
        gpu = factories.gpu(factories.node(self.tiers[0]), self.tiers[0], since=self.start)
        row = gpu.conditions.get()
        for at in self.times(self.random.randrange(4)):
            GpuCondition.objects.filter(pk=row.pk).update(span=DateTimeTZRange(row.span.lower, at))
            row = GpuCondition.objects.create(
                gpu=gpu,
                tier=self.random.choice(self.tiers),
                condition=self.random.choice(Condition.values),
                span=DateTimeTZRange(at, None),
            )
        return gpu

    def lane(self, gpu: Gpu, low: int, high: int) -> None:
        before: Allocation | None = None
        times = self.times(2 * self.random.randrange(1, 6))
        for begin, end in zip(times[::2], times[1::2], strict=True):
            if before is not None:
                self.follow(before, begin)
            before = self.hold(gpu, begin, end, low, high)
        if before is not None and self.random.random() < 0.5:
            self.end(before)

    def hold(self, gpu: Gpu, begin: datetime, end: datetime, low: int, high: int) -> Allocation:
        is_share = (low, high) != (0, 1000)
        # A card is shared inside one team only.
        team = self.random.choice(self.teams)
        team = self.sharers.setdefault(gpu.card, team) if is_share else team
        attempt = factories.attempt(factories.workload(team, gpu.tier, cpu_m=1, memory_mib=1), gpu.tier)
        replica: Replica = factories.replica(attempt, gpu.node)
        made = Allocation(
            company_id=attempt.workload.company_id,
            team_id=attempt.workload.team_id,
            workload=attempt.workload,
            attempt=attempt,
            replica=replica,
            gpu=gpu,
            card=gpu.card,
            is_instance=0,
            tier=gpu.tier,
            slots=Multirange([Range(low, high)]),
            scope=team.id if is_share else None,
            units=7 * (high - low),
            span=DateTimeTZRange(begin, None),
            state="held",
            running_at=self.random.choice([None, begin + (end - begin) / 3]),
            stopping_at=self.random.choice([None, begin + (end - begin) / 2]),
        )
        made.save(force_insert=True)
        made.expires_at = end  # only remembered here: when it will end
        if self.random.random() < 0.4:
            off, on = sorted(begin + (end - begin) * self.random.random() for _ in range(2))
            made.uncharged = Multirange([Range(off, on, "[)")])
            made.save(update_fields=["uncharged"])
        return made

    def follow(self, before: Allocation, begin: datetime) -> None:
        """Ends the one before; sometimes a claim waited meanwhile, which was dropped before the next began."""
        assert before.expires_at is not None
        if self.random.random() < 0.5:
            Allocation.objects.filter(pk=before.pk).update(state="stopping")
            began, gone = before.span.lower, before.expires_at
            claimed = began + (gone - began) * self.random.random()
            claim = Allocation.objects.get(pk=before.pk)
            claim.pk, claim.state, claim.uncharged = uuid7(), "claimed", Multirange([])
            claim.running_at = claim.stopping_at = None
            claim.span, claim.expires_at = DateTimeTZRange(claimed, None), begin
            claim.save(force_insert=True)
            until = claimed + (begin - claimed) * self.random.random() + timedelta(microseconds=1)
            Allocation.objects.filter(pk=claim.pk).update(
                state="dropped", span=DateTimeTZRange(claimed, min(until, begin))
            )
        self.end(before)

    def end(self, row: Allocation) -> None:
        span = DateTimeTZRange(row.span.lower, row.expires_at)
        Allocation.objects.filter(pk=row.pk).update(state="ended", span=span)

    def telemetry(self, gpu: Gpu) -> None:
        hour = (self.start + self.random.randrange(24) * HOUR).replace(minute=0, second=0, microsecond=0)
        seconds = [self.random.choice([0.0, 30.0, 60.0]) for _ in range(60)]
        GpuTelemetry.objects.create(
            gpu=gpu,
            hour=hour,
            seconds=seconds,
            busy=[one * self.random.choice([1.0, 80.0]) for one in seconds],
            memory_used_mib=[None] * 60,
            power_w=[None] * 60,
            temperature_c=[None] * 60,
        )


@pytest.mark.django_db
@pytest.mark.parametrize("seed", range(6))
def test_metering_and_the_check_agree(seed: int) -> None:
    maker = Maker(seed)
    for _ in range(3):
        gpu = maker.gpu()
        for low, high in maker.random.choice([[(0, 1000)], [(0, 333), (333, 1000)], [(100, 350)]]):
            maker.lane(gpu, low, high)
        maker.telemetry(gpu)
    for until in maker.times(maker.random.randrange(4)):
        assert meter(until=until, everything=True).broken == ()
    meter(everything=True)
    assert books_verify().problems == ()
    assert UsageLine.objects.exists()
    assert Charge.objects.exists()
