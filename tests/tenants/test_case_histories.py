"""Random histories of a case against the database: it moves as the pure table says, each edge with its event."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.audit.models import Event
from gpuyard.core import clock
from gpuyard.core.errors import DomainError
from gpuyard.core.models import User
from tenants import casework, services
from tenants.deadlines import cases_tick
from tenants.delegations import delegation_create
from tenants.models import ApproverGroup, Case, CaseStep, Team
from tests import factories as make
from tests.tenants import things

STAGES = {
    "rules": [
        {"name": "one", "when": {"gpu_count": {"max": 1}}, "then": {"auto": True}},
        {
            "name": "the rest",
            "then": {
                "stages": [
                    {"needs": "any", "steps": [{}, {"level": "group", "group": "board"}], "deadline_h": 1},
                    {"needs": "all", "steps": [{"level": "ancestor"}, {"role": "finance"}]},
                ],
                "expires_h": 8,
            },
        },
    ]
}
_TIMES = ("remind_at", "due_at", "notice_at", "noticed_at", "expires_at")


class Story:
    """Some people of a company, several of whom could decide if it were not their own request."""

    def __init__(self) -> None:
        self.company = make.company()
        self.team: Team = make.team(self.company)
        group = ApproverGroup.objects.create(company=self.company, name="board")
        make.approval_policy(self.company, STAGES)
        roles = [("manager", self.team), ("manager", self.company), ("finance", self.company)]
        self.people = [make.user(role, on) for role, on in roles]
        self.people += [make.user("member", self.team), make.admin()]
        group.people.set(self.people)
        self.stand_in = make.user("member", make.team(self.company))
        self.people.append(self.stand_in)

    def run(self, random: Random) -> Case:
        # a manager asks, who is in the group, and has handed everything over
        requester = random.choice(self.people[:4])
        case = things.ask(self.team, requester, gpu_count=random.choice([2, 4, 8]))
        away, now = random.choice(self.people[:3]), clock.now()
        delegation_create(
            actor=away,
            company=self.company,
            delegate=random.choice([one for one in [*self.people[:4], self.stand_in] if one != away]),
            starts_at=now,
            ends_at=now + make.LONG_AGO,
        )
        for _turn in range(10):
            before = Case.objects.get(pk=case.pk)
            self._act(random, before)
            after = Case.objects.get(pk=case.pk)
            if after.state != before.state:
                assert after.state in casework.CASE_EDGES[before.state]
        return Case.objects.get(pk=case.pk)

    def _act(self, random: Random, case: Case) -> None:
        who, key = random.choice(self.people), case.public_id
        acts: list[Callable[[], Any]] = [
            *[lambda: services.case_decide(actor=who, case_public_id=key, approve=True)] * 3,
            lambda: services.case_decide(actor=who, case_public_id=key, approve=False, reason="no"),
            lambda: services.case_decide(
                actor=who, case_public_id=key, approve=True, less={"gpu_count": random.randint(1, 4)}
            ),
            lambda: services.case_decide(
                actor=who, case_public_id=key, approve=True, seen_round=random.randint(1, 3)
            ),
            lambda: services.case_send_back(actor=who, case_public_id=key, question="why?"),
            lambda: services.case_answer(actor=case.requester, case_public_id=key, answer="so"),
            lambda: services.case_amend(
                actor=case.requester,
                case_public_id=key,
                changes=random.choice([{"gpu_count": random.randint(1, 8)}, {"colour": "green"}]),
            ),
            lambda: services.case_withdraw(actor=who, case_public_id=key),
            *[lambda: _time_passes(case, random)] * 2,
        ]
        try:
            with transaction.atomic():
                random.choice(acts)()
        except DomainError:
            pass


def _time_passes(case: Case, random: Random) -> None:
    moved = timedelta(hours=random.choice([1, 3, 9]))
    found = Case.objects.get(pk=case.pk)
    values = {one: getattr(found, one) - moved for one in _TIMES if getattr(found, one) is not None}
    if found.state in casework.LIVE and values:
        Case.objects.filter(pk=case.pk).update(**values)
    cases_tick()


def _holds(case: Case) -> None:
    steps = list(case.steps.all())
    for step in steps:
        assert case.requester_id not in (step.decided_by_id, step.on_behalf_of_id)
    events = Event.objects.filter(subject_id=case.pk).order_by("created_at", "id")
    states = [event for event in events if event.action == "case.state"]
    walked = ["open"]
    for event in states:
        assert event.old is not None
        assert event.new is not None
        assert event.old["state"] == walked[-1]
        assert event.new["state"] in casework.CASE_EDGES[walked[-1]]
        assert event.new["state"] in casework.MOVES[event.new["act"]].new
        walked.append(event.new["state"])
    assert walked[-1] == case.state
    decided = [step for step in steps if step.decided_by_id]
    recorded = [
        event for event in events if event.action == "case.step" and (event.new or {})["state"] != "void"
    ]
    assert len(decided) == len(recorded)
    _subject_agrees(case, steps)


def _subject_agrees(case: Case, steps: list[CaseStep]) -> None:
    pending = [step for step in steps if step.state == "pending"]
    assert bool(pending) == (case.state in casework.LIVE)
    assert all(step.round == case.round for step in pending)
    assert (case.decided_at is None) == (case.state in casework.LIVE)
    thing = things.thing_of(case)
    assert thing["state"] == ("pending" if case.state in casework.LIVE else case.state)
    assert thing["gpu_count"] == (case.granted or case.facts)["gpu_count"]
    outcomes = [outcome for outcome, _actor, _reason in things.THINGS.told.get(case.subject_id, [])]
    assert outcomes == ([] if case.state in casework.LIVE else [case.state])


@pytest.mark.django_db
@pytest.mark.parametrize("count", [15, pytest.param(200, marks=pytest.mark.proof)])
def test_histories_move_as_the_table_says(count: int) -> None:
    story, ends = Story(), set()

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(min_value=0, max_value=2**32))
    def histories(seed: int) -> None:
        point = transaction.savepoint()
        case = story.run(Random(seed))
        _holds(case)
        ends.add(case.state)
        transaction.savepoint_rollback(point)

    histories()
    assert count < 200 or ends >= {"open", "approved", "rejected", "withdrawn", "expired"}


# --- At the same time, on real connections ---------------------------------------------------------------------


def _at_once(*acts: Callable[[], Any]) -> list[str]:
    """What each came to: "done", or why not."""
    barrier, outcomes = threading.Barrier(len(acts)), ["?"] * len(acts)

    def run(place: int) -> None:
        barrier.wait(5)
        try:
            acts[place]()
            outcomes[place] = "done"
        except DomainError as error:
            outcomes[place] = error.code
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return outcomes


def _asked(team: Team) -> tuple[User, User, Case]:
    member, manager = make.user("member", team), make.user("manager", team)
    return member, manager, things.ask(team, member, gpu_count=8)


@pytest.mark.django_db(transaction=True)
def test_of_an_amendment_and_an_approval_at_once_nothing_is_half_done() -> None:
    team = make.team()
    make.approval_policy(team, make.MANAGER)
    for _turn in range(6):
        member, manager, case = _asked(team)
        outcomes = _at_once(
            partial(
                services.case_decide,
                actor=manager,
                case_public_id=case.public_id,
                approve=True,
                seen_round=1,
            ),
            partial(
                services.case_amend,
                actor=member,
                case_public_id=case.public_id,
                changes={"gpu_count": 2},
            ),
        )
        case.refresh_from_db()
        if outcomes[0] == "done":
            assert (outcomes[1], case.state, case.round) == ("case_decided", "approved", 1)
        else:
            assert (outcomes, case.state, case.round) == (["case_changed", "done"], "open", 2)
        _holds(case)


@pytest.mark.django_db(transaction=True)
def test_a_subject_that_vanishes_while_it_is_approved() -> None:
    """Whoever takes it away holds its row: the approval waits, then finds nothing to approve."""
    team = make.team()
    make.approval_policy(team, make.MANAGER)
    _member, manager, case = _asked(team)
    is_held, goes_on = threading.Event(), threading.Event()

    def vanish() -> None:
        with transaction.atomic():
            things.thing_change(case.subject_id, state="cancelled")
            is_held.set()
            goes_on.wait(10)

    def approve() -> None:
        is_held.wait(10)
        threading.Timer(0.3, goes_on.set).start()
        services.case_decide(actor=manager, case_public_id=case.public_id, approve=True)

    assert _at_once(vanish, approve) == ["done", "subject_gone"]
    case.refresh_from_db()
    assert case.state == "open"
    assert [step.state for step in case.steps.all()] == ["pending"]
    assert things.thing_of(case)["state"] == "cancelled"
    assert not Event.objects.filter(subject_id=case.pk).exclude(action="case.open").exists()


@pytest.mark.django_db(transaction=True)
def test_time_and_people_at_once() -> None:
    team = make.team()
    rules = {"rules": [{"name": "r", "then": {"steps": [{}], "expires_h": 4}}]}
    make.approval_policy(team, rules)
    for _turn in range(4):
        member, manager, case = _asked(team)
        now = clock.now()
        Case.objects.filter(pk=case.pk).update(noticed_at=now, expires_at=now)
        outcomes = _at_once(
            cases_tick,
            cases_tick,
            partial(services.case_decide, actor=manager, case_public_id=case.public_id, approve=True),
            partial(services.case_withdraw, actor=member, case_public_id=case.public_id),
        )
        case.refresh_from_db()
        assert outcomes[:2] == ["done", "done"]
        assert case.state in ("expired", "approved", "withdrawn")
        assert outcomes[2:].count("done") == (case.state != "expired")
        _holds(case)
