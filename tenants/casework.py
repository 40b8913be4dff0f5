"""How a case moves: states, the table of acts, and what each act makes of the steps. Pure: no Django, no clock.

A case is decided in stages: the steps with equal `stage`, of which all are needed or any one. `Work` is one case with
the steps of its present round; every function answers the case as it is afterwards, or raises `Refused`. The services
(`tenants.cases`, `tenants.deciding`) load, call this, and store the difference.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

OPEN, SENT_BACK = "open", "sent_back"
APPROVED, REJECTED, WITHDRAWN, EXPIRED = "approved", "rejected", "withdrawn", "expired"
CASE_STATES = (OPEN, SENT_BACK, APPROVED, REJECTED, WITHDRAWN, EXPIRED)
LIVE = (OPEN, SENT_BACK)

PENDING, SKIPPED, VOID = "pending", "skipped", "void"
ALL, ANY = "all", "any"


@dataclass(frozen=True)
class Move:
    """From which states an act is possible, and to which it leads."""

    old: frozenset[str]
    new: frozenset[str]


def _move(old: Iterable[str], *new: str) -> Move:
    return Move(frozenset(old), frozenset(new))


MOVES: dict[str, Move] = {
    "approve": _move([OPEN], OPEN, APPROVED),
    "reject": _move([OPEN], REJECTED),
    "send_back": _move([OPEN], SENT_BACK),
    "answer": _move([SENT_BACK], OPEN),
    # to approved: what is asked for now falls under a rule that lets it through
    "amend": _move(LIVE, OPEN, APPROVED),
    "withdraw": _move(LIVE, WITHDRAWN),
    "expire": _move(LIVE, EXPIRED),
}
"""Every act that may move a case. Reminding and escalating change who is asked, never the state."""

CASE_EDGES: dict[str, frozenset[str]] = {
    state: frozenset(new for move in MOVES.values() if state in move.old for new in move.new) - {state}
    for state in CASE_STATES
}
STEP_EDGES: dict[str, frozenset[str]] = {
    PENDING: frozenset({APPROVED, REJECTED, SKIPPED}),
    # what is asked for has changed since: the approval was for something else
    APPROVED: frozenset({VOID}),
    REJECTED: frozenset(),
    SKIPPED: frozenset(),
    VOID: frozenset(),
}


class Refused(Exception):
    """The case does not allow this act now; `code` says why."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class Step:
    """One decision. `stage` orders; `needs` is the stage's: all of its steps, or any one of them."""

    key: Hashable
    stage: int
    needs: str = ALL
    state: str = PENDING
    decided_by: Hashable = None
    on_behalf_of: Hashable = None


@dataclass(frozen=True)
class Work:
    """A case with the steps of its present round. `earlier`: those of the rounds before, which count no more."""

    requester: Hashable
    state: str = OPEN
    round: int = 1
    steps: tuple[Step, ...] = ()
    earlier: tuple[Step, ...] = ()

    @property
    def is_live(self) -> bool:
        return self.state in LIVE

    def turn(self) -> tuple[Step, ...]:
        """The steps that may be decided now: the pending ones of the first stage that has any."""
        pending = [step for step in self.steps if step.state == PENDING]
        stage = min((step.stage for step in pending), default=0)
        return tuple(step for step in pending if step.stage == stage) if self.state == OPEN else ()

    def deciders(self) -> frozenset[Hashable]:
        """Who has decided in this round, or has been decided for."""
        people = [one for step in self.steps for one in (step.decided_by, step.on_behalf_of)]
        return frozenset(one for one in people if one is not None)


# --- What approvers do -------------------------------------------------------------------------------------


def approve(work: Work, key: Hashable, *, by: Hashable, on_behalf_of: Hashable = None) -> Work:
    """Approves one step of the turn. Where any one is enough, the others are skipped; the last one ends the case."""
    step = _decidable(work, "approve", key, by, on_behalf_of)
    steps = []
    for one in work.steps:
        if one.key == key:
            one = replace(one, state=APPROVED, decided_by=by, on_behalf_of=on_behalf_of)
        elif one.stage == step.stage and one.state == PENDING and step.needs == ANY:
            one = replace(one, state=SKIPPED)
        steps.append(one)
    is_over = all(one.state != PENDING for one in steps)
    return _moved(work, "approve", APPROVED if is_over else OPEN, steps)


def reject(work: Work, key: Hashable, *, by: Hashable, on_behalf_of: Hashable = None) -> Work:
    """One rejection ends the case, whatever its stage needs."""
    _decidable(work, "reject", key, by, on_behalf_of)
    steps = [
        replace(one, state=REJECTED, decided_by=by, on_behalf_of=on_behalf_of) if one.key == key else one
        for one in work.steps
    ]
    return _moved(work, "reject", REJECTED, _skipped(steps))


def send_back(work: Work, key: Hashable, *, by: Hashable, on_behalf_of: Hashable = None) -> Work:
    """Asks the requester something; nothing is decided until the answer."""
    _decidable(work, "send_back", key, by, on_behalf_of)
    return _moved(work, "send_back", SENT_BACK, work.steps)


def _decidable(work: Work, act: str, key: Hashable, by: Hashable, on_behalf_of: Hashable) -> Step:
    _allowed(work, act)
    step = next((one for one in work.turn() if one.key == key), None)
    if step is None:
        raise Refused("not_its_turn")
    people = {by, on_behalf_of} - {None}
    if work.requester in people:
        raise Refused("own_request")
    if by == on_behalf_of:
        raise Refused("for_oneself")
    if people & work.deciders():
        raise Refused("decided_before")
    return step


# --- What the requester does, and time -----------------------------------------------------------------------


def answer(work: Work) -> Work:
    """The question is answered: the same step waits again."""
    _allowed(work, "answer")
    return _moved(work, "answer", OPEN, work.steps)


def amend(work: Work, steps: Iterable[Step] | None) -> Work:
    """`steps` None: nothing that matters has changed, and the case goes on as it was.

    Else it is asked anew: what has been approved is void, and a new round begins (none: a rule lets it through).
    """
    _allowed(work, "amend")
    if steps is None:
        return _moved(work, "amend", OPEN, work.steps)
    asked = tuple(steps)
    voided = [
        replace(one, state=VOID if one.state == APPROVED else SKIPPED if one.state == PENDING else one.state)
        for one in work.steps
    ]
    begun = replace(work, round=work.round + 1, earlier=(*work.earlier, *voided))
    return _moved(begun, "amend", OPEN if asked else APPROVED, asked)


def end(work: Work, act: str) -> Work:
    """`withdraw` or `expire`: nobody decided."""
    _allowed(work, act)
    (state,) = MOVES[act].new
    return _moved(work, act, state, _skipped(work.steps))


def _allowed(work: Work, act: str) -> None:
    if work.state not in MOVES[act].old:
        raise Refused(
            "sent_back" if work.state == SENT_BACK else "case_open" if work.is_live else "case_ended"
        )


def _moved(work: Work, act: str, state: str, steps: Iterable[Step]) -> Work:
    assert state in MOVES[act].new, (act, state)
    return replace(work, state=state, steps=tuple(steps))


def _skipped(steps: Iterable[Step]) -> tuple[Step, ...]:
    return tuple(replace(one, state=SKIPPED) if one.state == PENDING else one for one in steps)


# --- Time ------------------------------------------------------------------------------------------------------

NOTICE = timedelta(hours=24)


@dataclass(frozen=True)
class Timer:
    """What falls due when; None: never, or done already. `noticed_at`: when its end was last announced."""

    remind_at: datetime | None = None
    due_at: datetime | None = None
    escalated_at: datetime | None = None
    notice_at: datetime | None = None
    noticed_at: datetime | None = None
    expires_at: datetime | None = None


def stage_timer(now: datetime, deadline: timedelta | None) -> Timer:
    """Of a stage that begins now: reminded of at half time."""
    if deadline is None:
        return Timer()
    return Timer(remind_at=now + deadline / 2, due_at=now + deadline)


def notice_lead(lifetime: timedelta) -> timedelta:
    """So long before its end a case is announced to expire: a day, or a quarter of a short life."""
    return min(NOTICE, lifetime / 4)


def acts_due(timer: Timer, now: datetime, *, state: str) -> tuple[str, ...]:
    """What is to be done now, in this order. However late this is asked, a case expires only after a notice.

    Who decides is reminded and escalated past only while it is their turn.
    """
    acts = []
    is_waiting = state == OPEN
    is_late = timer.due_at is not None and timer.due_at <= now and timer.escalated_at is None
    if is_waiting and is_late:
        acts.append("escalate")
    elif is_waiting and timer.remind_at is not None and timer.remind_at <= now:
        acts.append("remind")
    if timer.noticed_at is None and timer.notice_at is not None and timer.notice_at <= now:
        acts.append("notice")
    elif timer.noticed_at is not None and timer.expires_at is not None and timer.expires_at <= now:
        acts.append("expire")
    return tuple(acts)


def expiry_after_notice(expires_at: datetime, noticed_at: datetime, lead: timedelta) -> datetime:
    """A late notice moves the end: from notice to end there is always the lead."""
    return max(expires_at, noticed_at + lead)
