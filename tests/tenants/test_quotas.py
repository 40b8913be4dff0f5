"""Quotas have a history and begin by the clock; what is promised below a team fits into its own at every moment."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from gpuyard.audit.models import Event
from gpuyard.core import clock
from gpuyard.core.errors import Conflict, Forbidden, Invalid
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.fleet.models import Tier
from scheduling.loader import snapshot_load
from tenants.models import Quota, Team
from tenants.quotas import Amounts, amounts_of, quota_at, quota_cancel, quota_history, quota_set
from tests import factories as make

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


def _set(team: Team, tier: Tier, gpus: int, *, in_days: int = 0, **values: int | None) -> Quota:
    limit = values.pop("limit", None)
    return quota_set(
        actor=make.admin(),
        team=team,
        tier=tier,
        guaranteed=gpus * UNITS_PER_GPU,
        limit=limit,
        starts_at=clock.now() + in_days * DAY if in_days else None,
        **values,  # type: ignore[arg-type]
    )


def _now(team: Team, tier: Tier) -> Amounts:
    return amounts_of(quota_at(team, tier))


def test_all_four_values_are_set_and_the_old_ones_stay_readable() -> None:
    company, tier = make.company(), make.tier()
    _set(company, tier, 8)
    _set(company, tier, 4, limit=9 * UNITS_PER_GPU, lend_limit=2 * UNITS_PER_GPU, weight=3)

    assert _now(company, tier) == Amounts(4 * UNITS_PER_GPU, 9 * UNITS_PER_GPU, 2 * UNITS_PER_GPU, 3)
    history = quota_history(make.user("auditor", company), company)
    assert [row.guaranteed // UNITS_PER_GPU for row in history] == [4, 8]
    changed = Event.objects.filter(action="quota.set", old__guaranteed=8 * UNITS_PER_GPU)
    assert changed.get().new["weight"] == 3  # type: ignore[index]


def test_a_later_version_takes_effect_by_the_clock_alone(advance_clock: Callable[[float], None]) -> None:
    company, tier = make.company(), make.tier()
    _set(company, tier, 8)
    _set(company, tier, 2, in_days=3)

    assert [row.guaranteed for row in snapshot_load().snapshot.quotas] == [8 * UNITS_PER_GPU]
    advance_clock(3 * 86400 + 1)
    assert [row.guaranteed for row in snapshot_load().snapshot.quotas] == [2 * UNITS_PER_GPU]


def test_children_fit_into_the_parent_on_every_day_to_come() -> None:
    company, tier = make.company(), make.tier()
    team = make.team(company)
    _set(company, tier, 8)
    _set(company, tier, 4, in_days=7)

    with pytest.raises(Conflict) as refused:
        _set(team, tier, 8)  # today there is room for it, in a week there is not
    assert refused.value.code == "guarantees_exceed_parent"
    _set(team, tier, 4)
    with pytest.raises(Conflict):
        _set(company, tier, 3, in_days=9)


def test_what_shrinks_in_time_makes_room_from_then_on() -> None:
    company, tier = make.company(), make.tier()
    first, second = make.team(company), make.team(company)
    _set(company, tier, 8)
    _set(first, tier, 8)
    _set(first, tier, 2, in_days=5)

    with pytest.raises(Conflict):
        _set(second, tier, 6, in_days=4)
    _set(second, tier, 6, in_days=6)


def test_a_version_that_has_not_begun_is_taken_back_and_others_are_history() -> None:
    company, tier, admin = make.company(), make.tier(), make.admin()
    team = make.team(company)
    now, later = _set(company, tier, 8), _set(company, tier, 9, in_days=5)
    relies = _set(team, tier, 9, in_days=6)

    with pytest.raises(Conflict):  # the team's guarantee relies on it
        quota_cancel(actor=admin, quota_id=later.pk)
    quota_cancel(actor=admin, quota_id=relies.pk)
    quota_cancel(actor=admin, quota_id=later.pk)
    with pytest.raises(Conflict) as refused:
        quota_cancel(actor=admin, quota_id=now.pk)
    assert refused.value.code == "quota_begun"
    with pytest.raises(Forbidden):
        quota_cancel(actor=make.user("manager", company), quota_id=now.pk)


def test_a_start_in_the_past_and_a_weight_of_nothing_are_refused() -> None:
    company, tier = make.company(), make.tier()
    for field, values in {"starts_at": {"in_days": -1}, "weight": {"weight": 0}}.items():
        with pytest.raises(Invalid) as refused:
            _set(company, tier, 1, **values)
        assert refused.value.errors[0].field == field
