"""The pure table of a case: histories of acts by several people, some of whom saw an older case."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenants import casework
from tenants.casework import CASE_EDGES, MOVES, Refused, Step, Timer, Work, acts_due

REQUESTER = "asks"
PEOPLE = (REQUESTER, "ann", "bob", "cem", "dia")
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def _steps(random: Random, round_: int) -> tuple[Step, ...]:
    found = []
    for stage in range(1, random.randint(1, 3) + 1):
        needs = random.choice([casework.ALL, casework.ANY])
        found += [Step((round_, stage, place), stage, needs) for place in range(random.randint(1, 3))]
    return tuple(found)


@dataclass
class History:
    """One case and everything that was tried on it; `events` are what the acts would have recorded."""

    work: Work
    events: list[tuple[str, str, str]] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def act(self, random: Random, seen: Work) -> None:
        """Somebody who looked at `seen` acts on the case as it is now."""
        name = random.choice([*MOVES])
        before = self.work
        try:
            self.work = self._done(random, name, seen)
        except Refused as refused:
            self.refusals.append(refused.code)
            return
        if self.work.state != before.state:
            self.events.append((name, before.state, self.work.state))

    def _done(self, random: Random, name: str, seen: Work) -> Work:
        if name in ("approve", "reject", "send_back"):
            if seen.round != self.work.round:
                raise Refused("case_changed")
            steps = seen.turn() or seen.steps
            if not steps:
                raise Refused("not_its_turn")
            act = getattr(casework, name)
            behalf = random.choice([None, None, *PEOPLE])
            found: Work = act(
                self.work, random.choice(steps).key, by=random.choice(PEOPLE), on_behalf_of=behalf
            )
            return found
        if name == "answer":
            return casework.answer(self.work)
        if name == "amend":
            new = random.choice([None, (), _steps(random, self.work.round + 1)])
            return casework.amend(self.work, new)
        return casework.end(self.work, name)


def _history(seed: int, acts: int = 14) -> History:
    random = Random(seed)
    history = History(Work(REQUESTER, steps=_steps(random, 1)))
    seen = [history.work]
    for _turn in range(acts):
        # mostly what is there now; sometimes what somebody had open on the screen since
        look = history.work if random.random() < 0.7 else random.choice(seen)
        history.act(random, look)
        seen.append(history.work)
        _holds(history)
    return history


def _holds(history: History) -> None:
    work = history.work
    everything = (*work.steps, *work.earlier)
    assert work.state in casework.CASE_STATES
    assert all(REQUESTER not in (step.decided_by, step.on_behalf_of) for step in everything)
    assert all(step.state in casework.STEP_EDGES for step in everything)
    decided = ("approved", "rejected", "void")
    assert all((step.decided_by is not None) == (step.state in decided) for step in everything)
    assert not any(step.state in ("approved", "pending") for step in work.earlier)
    # each edge taken has its event, and nothing moved along an edge that the table lacks
    states = ["open", *(new for _act, _old, new in history.events)]
    assert states[-1] == work.state
    assert all(old == was for (_act, old, _new), was in zip(history.events, states, strict=False))
    assert all(new in CASE_EDGES[old] and new in MOVES[act].new for act, old, new in history.events)
    people = [who for step in work.steps for who in (step.decided_by, step.on_behalf_of) if who]
    assert len(people) == len(set(people))
    _ended_well(work)


def _ended_well(work: Work) -> None:
    if work.is_live:
        assert work.steps
        assert any(step.state == "pending" for step in work.steps)
        return
    assert not work.turn()
    assert not any(step.state == "pending" for step in work.steps)
    if work.state == "approved":
        for stage in {step.stage for step in work.steps}:
            states = [step.state for step in work.steps if step.stage == stage]
            assert "approved" in states
            assert "rejected" not in states
    assert (work.state == "rejected") == any(step.state == "rejected" for step in work.steps)


def test_ten_thousand_histories_break_no_rule() -> None:
    histories = [_history(seed) for seed in range(10_000)]

    taken = {(old, new) for one in histories for _act, old, new in one.events}
    assert taken == {(old, new) for old, edges in CASE_EDGES.items() for new in edges}
    refused = {code for one in histories for code in one.refusals}
    assert refused >= {"own_request", "decided_before", "for_oneself", "not_its_turn", "case_changed"}
    assert refused >= {"sent_back", "case_open", "case_ended"}


@settings(deadline=None, max_examples=200)
@given(st.integers(min_value=10_000))
def test_so_does_whatever_seed(seed: int) -> None:
    _history(seed, acts=40)


# --- One by one --------------------------------------------------------------------------------------------


def test_where_any_is_enough_the_others_are_skipped() -> None:
    work = Work(REQUESTER, steps=(Step(1, 1, "any"), Step(2, 1, "any"), Step(3, 2)))

    work = casework.approve(work, 2, by="ann")

    assert [one.state for one in work.steps] == ["skipped", "approved", "pending"]
    assert [one.key for one in work.turn()] == [3]
    assert casework.approve(work, 3, by="bob").state == "approved"


def test_where_all_are_needed_two_people_decide() -> None:
    work = casework.approve(Work(REQUESTER, steps=(Step(1, 1), Step(2, 1))), 1, by="ann")

    with pytest.raises(Refused, match="decided_before"):
        casework.approve(work, 2, by="ann")
    with pytest.raises(Refused, match="decided_before"):
        casework.approve(work, 2, by="bob", on_behalf_of="ann")
    assert casework.approve(work, 2, by="bob").state == "approved"


def test_a_material_amendment_voids_what_was_approved() -> None:
    work = casework.approve(Work(REQUESTER, steps=(Step(1, 1), Step(2, 2))), 1, by="ann")

    work = casework.amend(work, (Step(3, 1),))

    assert [one.state for one in work.earlier] == ["void", "skipped"]
    assert (work.round, work.state) == (2, "open")
    assert casework.approve(work, 3, by="ann").state == "approved"


# --- Time ------------------------------------------------------------------------------------------------------


def test_a_stage_is_reminded_of_then_escalated_once() -> None:
    timer = casework.stage_timer(NOW, 4 * HOUR)

    assert acts_due(timer, NOW + HOUR, state="open") == ()
    assert acts_due(timer, NOW + 2 * HOUR, state="open") == ("remind",)
    assert acts_due(timer, NOW + 4 * HOUR, state="open") == ("escalate",)
    assert acts_due(timer, NOW + 4 * HOUR, state="sent_back") == ()
    escalated = Timer(due_at=timer.due_at, escalated_at=NOW + 4 * HOUR)
    assert acts_due(escalated, NOW + 9 * HOUR, state="open") == ()


def test_after_a_down_time_a_case_is_announced_before_it_expires() -> None:
    late = Timer(due_at=NOW, notice_at=NOW, expires_at=NOW + HOUR)

    assert acts_due(late, NOW + 99 * HOUR, state="open") == ("escalate", "notice")
    moved = casework.expiry_after_notice(NOW + HOUR, NOW + 99 * HOUR, HOUR)
    told = Timer(noticed_at=NOW + 99 * HOUR, expires_at=moved)
    assert acts_due(told, NOW + 99 * HOUR, state="open") == ()
    assert acts_due(told, NOW + 100 * HOUR, state="sent_back") == ("expire",)


def test_a_short_life_has_a_short_notice() -> None:
    assert casework.notice_lead(4 * HOUR) == HOUR
    assert casework.notice_lead(30 * 24 * HOUR) == 24 * HOUR
