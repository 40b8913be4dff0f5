"""Rights to bands: given and taken back by admins, and what they do to the next pass."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils.dateparse import parse_datetime

from gpuyard.audit.models import Event
from gpuyard.core import clock
from gpuyard.core.errors import Conflict, Forbidden, Invalid
from gpuyard.core.models import User
from gpuyard.core.money import UNITS_PER_GPU
from scheduling.bands import (
    band_grant,
    band_grant_list,
    band_grants_live,
    band_highest,
    band_revoke,
    bands_used,
)
from scheduling.loader import snapshot_load
from scheduling.models import Attempt, BandGrant, Workload
from scheduling.passes import pass_once
from scheduling.services import workload_submit
from tenants.models import Team
from tests import factories as make

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin() -> User:
    return make.admin()


@pytest.fixture
def team() -> Team:
    made = make.team()
    make.approval_policy(made, make.AUTO)
    return made


def _grant(admin: User, team: Team, band: int = 2, gpus: int = 4, **more: Any) -> BandGrant:
    return band_grant(
        actor=admin, team=team, band=band, cap=gpus * UNITS_PER_GPU, reason="the release", **more
    )


def _submit(team: Team, band: Any, **spec: Any) -> Workload:
    person = make.user("member", team)
    document = make.spec_document(make.tier(), **spec)
    return workload_submit(actor=person, team=team, name="urgent", kind="training", spec=document, band=band)


def test_a_grant_is_recorded_and_reaches_the_pass(admin: User, team: Team) -> None:
    grant = _grant(admin, team)
    event = Event.objects.get(action="band.grant")
    assert (event.company_id, event.reason) == (team.company_id, "the release")
    (known,) = snapshot_load().snapshot.band_grants
    assert (known.team_id, known.band, known.cap) == (str(team.pk), 2, 4 * UNITS_PER_GPU)
    band_revoke(actor=admin, grant_id=grant.pk, reason="over")
    assert snapshot_load().snapshot.band_grants == ()


def test_only_admins_give_and_take(admin: User, team: Team) -> None:
    manager = make.user("manager", team)
    with pytest.raises(Forbidden):
        _grant(manager, team)
    grant = _grant(admin, team)
    with pytest.raises(Forbidden):
        band_revoke(actor=manager, grant_id=grant.pk, reason="x")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"band": 0}, "band"),
        ({"band": 10}, "band"),
        ({"band": True}, "band"),
        ({"cap": 0}, "cap"),
        ({"cap": 10**15}, "cap"),
        ({"reason": " "}, "reason"),
        ({"expires_at": parse_datetime("2001-01-01T00:00:00Z")}, "expires_at"),
    ],
)
def test_what_is_wrong_is_named(admin: User, team: Team, changes: dict[str, Any], field: str) -> None:
    asked = {"actor": admin, "team": team, "band": 1, "cap": 7000, "reason": "x", **changes}
    with pytest.raises(Invalid) as refused:
        band_grant(**asked)
    assert [error.field for error in refused.value.errors] == [field]


def test_one_right_for_each_band_at_a_time(admin: User, team: Team) -> None:
    grant = _grant(admin, team)
    with pytest.raises(Conflict):
        _grant(admin, team)
    band_revoke(actor=admin, grant_id=grant.pk, reason="over")
    with pytest.raises(Conflict):
        band_revoke(actor=admin, grant_id=grant.pk, reason="twice")
    _grant(admin, team)


def test_a_right_ends_by_itself_and_makes_room_for_another(admin: User, team: Team) -> None:
    grant = _grant(admin, team, expires_at=clock.now() + timedelta(hours=1))
    BandGrant.objects.filter(pk=grant.pk).update(
        created_at=clock.now() - timedelta(hours=2), expires_at=clock.now() - timedelta(seconds=1)
    )
    assert not band_grants_live().exists()
    assert band_highest(team) == 0
    assert _grant(admin, team).pk != grant.pk


def test_a_right_covers_lower_bands_and_teams_below(admin: User, team: Team) -> None:
    below = make.team(team)
    _grant(admin, team, band=3)
    assert band_highest(below) == 3
    assert _submit(below, 2).band == 2


@pytest.mark.parametrize("band", [1, 3, 10, -1, "1", True, None])
def test_a_band_that_nobody_gave_is_refused_by_name(admin: User, team: Team, band: Any) -> None:
    sister = make.team(Team.objects.get(pk=team.company_id))
    _grant(admin, sister, band=9)
    with pytest.raises(Invalid) as refused:
        _submit(team, band)
    (error,) = refused.value.errors
    assert (error.field, bool(error.remedy)) == ("band", True)
    assert not Workload.objects.exists()


def test_critical_work_goes_first_up_to_its_cap(admin: User, team: Team) -> None:
    tier = make.tier()
    make.node(tier, 2)
    other = make.team()
    make.workload(other, tier, gpus=2, fields={"queued_at": clock.now() - timedelta(days=1)})
    first = make.workload(team, tier, gpus=1, fields={"band": 2})
    second = make.workload(team, tier, gpus=1, fields={"band": 2})
    grant = _grant(admin, team, gpus=1)
    pass_once()
    bands = dict(Attempt.objects.values_list("workload_id", "band"))
    assert bands[first.pk] == 2
    assert bands.get(second.pk, 0) == 0
    assert bands_used([grant]) == {grant.pk: UNITS_PER_GPU}
    assert {row.band for row in snapshot_load().snapshot.live if row.workload_id == str(first.pk)} == {2}


def test_people_see_the_rights_of_their_teams(admin: User, team: Team) -> None:
    _grant(admin, team)
    below = make.team(team)
    assert band_grant_list(make.user("member", below)).count() == 1
    assert band_grant_list(make.user("member", make.team())).count() == 0
    assert band_grant_list(admin).count() == 1
