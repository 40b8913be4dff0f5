"""Asking the team above for more: grants for a time, and other quotas."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.db import connections

from gpuyard.audit.models import Event
from gpuyard.core import clock
from gpuyard.core.errors import Conflict, DomainError, Forbidden, Invalid, NotFound
from gpuyard.core.models import User
from gpuyard.core.money import UNITS_PER_GPU
from gpuyard.notify.models import Notification
from gpuyard.notify.sending import deliver_all
from scheduling.loader import snapshot_load
from tenants.asking import grant_ask, grant_renew, grant_revoke, quota_ask
from tenants.grant_news import grants_remind
from tenants.models import AskState, Case, CaseState, Grant, QuotaChange, Team
from tenants.policies import DEFAULT_DOCUMENT
from tenants.quotas import Amounts, amounts_of, quota_at, undistributed
from tenants.services import case_amend, case_decide, case_withdraw
from tests import factories as make

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


class World:
    """A company of 8 GPUs, with a team that has none of them."""

    def __init__(self) -> None:
        self.company, self.tier = make.company(), make.tier()
        make.approval_policy(self.company, make.MANAGER)
        make.quota(self.company, self.tier, guaranteed_gpus=8)
        self.head = make.user("manager", self.company)
        self.team = make.team(self.company)
        self.member = make.user("member", self.team)
        self.lead = make.user("manager", self.team)

    def ask(self, gpus: int = 8, *, days: int = 7, in_days: int = 0, team: Team | None = None) -> Grant:
        begins = clock.now() + in_days * DAY
        return grant_ask(
            actor=self.member if team is None else make.user("member", team),
            team=team or self.team,
            tier=self.tier,
            units=gpus * UNITS_PER_GPU,
            starts_at=begins if in_days else None,
            ends_at=begins + days * DAY,
            reason="the paper is due",
        )

    def promised(self, team: Team | None = None, in_days: float = 0) -> float:
        row = quota_at(team or self.team, self.tier, clock.now() + in_days * DAY)
        return row.promised / UNITS_PER_GPU if row else 0


def _case(ask: Any) -> Case:
    return Case.objects.get(subject_id=ask.pk)


def _approve(actor: User, ask: Any, **values: Any) -> Case:
    return case_decide(actor=actor, case_public_id=_case(ask).public_id, approve=True, **values)


# --- Grants --------------------------------------------------------------------------------------------------------


def test_the_team_above_decides_and_the_grant_counts_for_its_time(
    advance_clock: Callable[[float], None],
) -> None:
    world = World()
    grant = world.ask(8, days=7, in_days=2)

    with pytest.raises(NotFound):  # not the own manager's to give: it is a case of the team above
        _approve(world.lead, grant)
    _approve(world.head, grant)

    assert [world.promised(in_days=days) for days in (0, 1.9, 2.1, 8.9, 9.1)] == [0, 0, 8, 8, 0]
    advance_clock(3 * 86400)
    quotas = {row.team_id: row.guaranteed for row in snapshot_load().snapshot.quotas}
    assert quotas[str(world.team.pk)] == 8 * UNITS_PER_GPU
    assert undistributed(world.company, world.tier) == 0
    advance_clock(7 * 86400)
    assert undistributed(world.company, world.tier) == 8 * UNITS_PER_GPU


def test_what_another_grant_has_taken_meanwhile_is_told_and_nothing_is_half_done() -> None:
    world = World()
    late, other = world.ask(2, days=9), world.ask(7, days=1, in_days=5, team=make.team(world.company))
    _approve(world.head, other)

    with pytest.raises(Conflict) as refused:
        _approve(world.head, late)

    assert refused.value.code == "guarantees_exceed_parent"
    assert (_case(late).state, Grant.objects.get(pk=late.pk).state) == (CaseState.OPEN, AskState.ASKED)
    # in its first four days there is room: the approver gives less
    _approve(world.head, late, less={"hours": 96})
    assert Grant.objects.get(pk=late.pk).state == AskState.APPROVED


def test_a_grant_whose_time_is_over_cannot_be_approved(advance_clock: Callable[[float], None]) -> None:
    world = World()
    grant = world.ask(1, days=1)
    advance_clock(2 * 86400)

    with pytest.raises(Conflict) as refused:
        _approve(world.head, grant)
    assert refused.value.code == "subject_gone"


def test_a_grant_that_was_amended_asks_anew_and_a_withdrawn_one_ends() -> None:
    world = World()
    grant = world.ask(8)
    public_id = _case(grant).public_id

    case_amend(actor=world.member, case_public_id=public_id, changes={"gpus": 3}, reason="fewer will do")
    assert (_case(grant).round, _case(grant).facts["gpu_count"]) == (2, 3)
    with pytest.raises(Invalid):
        case_amend(actor=world.member, case_public_id=public_id, changes={"colour": "red"})
    case_withdraw(actor=world.member, case_public_id=public_id)
    assert Grant.objects.get(pk=grant.pk).state == AskState.WITHDRAWN


def test_a_renewal_follows_on_and_there_is_one_of_it() -> None:
    world = World()
    grant = world.ask(8, days=7)
    _approve(world.head, grant)
    until = grant.ends_at + 7 * DAY

    renewal = grant_renew(
        actor=world.member, grant_public_id=grant.public_id, ends_at=until, reason="two weeks more"
    )
    _approve(world.head, renewal)

    assert [world.promised(in_days=days) for days in (1, 6.9, 7.1, 13.9, 14.1)] == [8, 8, 8, 8, 0]
    with pytest.raises(Conflict):
        grant_renew(actor=world.member, grant_public_id=grant.public_id, ends_at=until, reason="again")


def test_a_revoked_grant_ends_at_once() -> None:
    world = World()
    grant = world.ask(8)
    _approve(world.head, grant)

    with pytest.raises(Forbidden):
        grant_revoke(actor=world.lead, grant_public_id=grant.public_id, reason="mine")
    grant_revoke(actor=world.head, grant_public_id=grant.public_id, reason="the paper is out")

    assert world.promised() == 0
    assert Event.objects.get(action="grant.revoke").reason == "the paper is out"


def test_a_company_has_nobody_above_to_ask() -> None:
    world = World()
    with pytest.raises(Forbidden) as refused:
        world.ask(1, team=world.company)
    assert refused.value.code == "company_quota"


@pytest.mark.django_db(transaction=True)
def test_of_fifty_approvals_for_the_last_eight_gpus_one_wins() -> None:
    world = World()
    grants = [world.ask(8, team=make.team(world.company)) for _number in range(50)]
    public_ids = [_case(grant).public_id for grant in grants]

    def approve(public_id: str) -> str:
        try:
            case_decide(actor=world.head, case_public_id=public_id, approve=True)
        except DomainError as refused:
            return refused.code
        finally:
            connections.close_all()
        return "approved"

    with ThreadPoolExecutor(10) as threads:
        outcomes = list(threads.map(approve, public_ids))

    assert sorted(outcomes) == ["approved"] + ["guarantees_exceed_parent"] * 49
    assert Grant.objects.filter(state=AskState.APPROVED).count() == 1
    assert Case.objects.filter(state=CaseState.OPEN).count() == 49
    assert undistributed(world.company, world.tier) == 0


# --- Quotas ----------------------------------------------------------------------------------------------------------


def _ask_quota(world: World, gpus: int, **values: Any) -> QuotaChange:
    amounts = Amounts(gpus * UNITS_PER_GPU, limit=8 * UNITS_PER_GPU, weight=2)
    return quota_ask(
        actor=world.lead, team=world.team, tier=world.tier, amounts=amounts, reason="we grow", **values
    )


def test_another_quota_is_asked_for_and_approved() -> None:
    world = World()
    change = _ask_quota(world, 4)
    case = _case(change)
    assert (case.facts["kind"], case.facts["over_quota"]) == ("quota_change", True)
    assert "guarantee from 0 to 4" in case.facts["asked"]

    with pytest.raises(Conflict):  # one at a time
        _ask_quota(world, 5)
    _approve(world.head, change)

    assert amounts_of(quota_at(world.team, world.tier)) == Amounts(
        4 * UNITS_PER_GPU, 8 * UNITS_PER_GPU, None, 2
    )
    with pytest.raises(Invalid):
        _ask_quota(world, 4)


def test_a_quota_from_a_day_to_come_is_checked_for_that_day() -> None:
    world = World()
    _approve(world.head, world.ask(6, days=30, team=make.team(world.company)))
    change = _ask_quota(world, 4, starts_at=clock.now() + 10 * DAY)

    with pytest.raises(Conflict) as refused:
        _approve(world.head, change)
    assert refused.value.code == "guarantees_exceed_parent"

    case_amend(actor=world.lead, case_public_id=_case(change).public_id, changes={"guaranteed": 2})
    _approve(world.head, change)
    assert [world.promised(in_days=days) for days in (9, 11)] == [0, 2]


def test_small_requests_for_quota_do_not_slip_through_the_first_rule() -> None:
    world = World()
    company = make.company()
    make.approval_policy(company, DEFAULT_DOCUMENT)
    make.quota(company, world.tier, guaranteed_gpus=8)

    grant = world.ask(1, days=1, team=make.team(company))

    assert grant.state == AskState.ASKED


# --- Reminders -------------------------------------------------------------------------------------------------------


def test_a_reminder_whose_day_was_missed_is_sent_once(advance_clock: Callable[[float], None]) -> None:
    world = World()
    grant = world.ask(8, days=20)
    _approve(world.head, grant)
    assert grants_remind() == 0

    advance_clock(15 * 86400)  # a week before its end nothing ran
    assert (grants_remind(), grants_remind()) == (1, 0)
    advance_clock(4.5 * 86400)
    assert (grants_remind(), grants_remind()) == (1, 0)
    told = Notification.objects.filter(event="grant.ending", user__isnull=False)
    assert {one.user for one in told} == {world.member, world.lead}
    advance_clock(86400)
    assert grants_remind() == 0


def test_nobody_is_reminded_of_what_is_being_renewed_or_was_revoked() -> None:
    world = World()
    renewed, revoked = world.ask(4, days=8), world.ask(4, days=8)
    for grant in (renewed, revoked):
        _approve(world.head, grant)
        Grant.objects.filter(pk=grant.pk).update(
            starts_at=clock.now() - 9 * DAY, ends_at=clock.now() + 2 * DAY
        )
    assert grants_remind() == 2

    grant_renew(
        actor=world.member,
        grant_public_id=renewed.public_id,
        ends_at=clock.now() + 9 * DAY,
        reason="a week more",
    )
    grant_revoke(actor=world.head, grant_public_id=revoked.public_id, reason="the paper is out")

    assert not Notification.objects.filter(event="grant.ending", read_at=None).exists()


def test_forty_grants_that_end_in_one_week_are_one_mail() -> None:
    world = World()
    for _number in range(40):
        Grant.objects.create(
            company=world.company,
            team=world.team,
            tier=world.tier,
            requester=world.member,
            reason="many",
            units=1,
            starts_at=clock.now() - 30 * DAY,
            ends_at=clock.now() + 5 * DAY,
            state=AskState.APPROVED,
        )
    User.objects.filter(pk=world.member.pk).update(email="member@example.org")

    assert grants_remind() == 40
    deliver_all()

    assert [one.subject for one in mail.outbox if one.to == ["member@example.org"]] == [
        "[GPU Yard] 40 notices"
    ]
