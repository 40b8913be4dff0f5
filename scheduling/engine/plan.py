"""One pass: admit, order, place, take back, grow, explain. Same snapshot, policy and time: same plan, to the byte."""

from collections.abc import Iterable, Sequence

from scheduling.engine.collector import collector_paused
from scheduling.engine.consolidation import consolidate
from scheduling.engine.decisions import (
    Blocker,
    Claim,
    Plan,
    Policy,
    ReplicaPlacement,
    Reservation,
    Start,
    Verdict,
    plan_to_json,
)
from scheduling.engine.gangs import grow_running, grow_starts, start_mixed
from scheduling.engine.order import Ask, Line
from scheduling.engine.serving import Pass
from scheduling.engine.snapshot import Snapshot
from scheduling.engine.takeback import TakeBack
from scheduling.engine.verdicts import Explainer
from scheduling.engine.victims import BAND, RETURN, SLACK

__all__ = [
    "Blocker",
    "Plan",
    "Policy",
    "ReplicaPlacement",
    "Reservation",
    "Start",
    "Verdict",
    "plan",
    "plan_to_json",
]


def plan(snapshot: Snapshot, policy: Policy, now_us: int) -> Plan:
    """What a guarantee or a band is owed is taken before borrowed work may start on what is free."""
    with collector_paused():
        return _plan(snapshot, policy, now_us)


def _plan(snapshot: Snapshot, policy: Policy, now_us: int) -> Plan:
    current = Pass(snapshot, policy, now_us)
    back = TakeBack(current)
    waiting = _serve_bands(current, back)
    waiting = current.serve(waiting, within_guarantee=True)
    waiting = back.take(waiting, RETURN)
    waiting = current.serve(waiting, within_guarantee=False)
    waiting = start_mixed(current, waiting)
    back.take(waiting, SLACK)
    consolidate(current, back)
    decided = {placing.ask.id for placing in current.starts}
    waited_for = _waited_for(current, [ask for ask in current.ready if ask.id not in decided])
    if policy.grow_gangs:
        grow_starts(current, waited_for)
    grows = grow_running(current, waited_for) if policy.grow_running else ()
    current.fleet.finish_reasons()
    written = [placing.decided() for placing in current.starts]
    return Plan(
        starts=tuple(row for row in written if isinstance(row, Start)),
        claims=tuple(row for row in written if isinstance(row, Claim)),
        stops=tuple(back.stops),
        grows=grows,
        verdicts=_verdicts(current, [ask for ask in current.asks if ask.id not in decided]),
        reservations=current.timeline.reservations(),
        shares=current.standing.fair_shares(),
        oversold=current.shares.oversold(),
    )


def _serve_bands(current: Pass, back: TakeBack) -> list[Ask]:
    """The highest band first; who has no grant for it, or none with room, stands in line like all others."""
    left = list(current.ready)
    for band in sorted({ask.request.band for ask in left if ask.request.band > 0}, reverse=True):
        members = [ask for ask in left if ask.request.band == band and current.may_use_band(ask)]
        ids = {ask.id for ask in members}
        left = [ask for ask in left if ask.id not in ids]
        left += back.take(current.serve(members, within_guarantee=False, band=band), BAND, band=band)
    return left


def _waited_for(current: Pass, waiting: Sequence[Ask]) -> set[str]:
    """The tiers that somebody waits for whom the quotas would let in."""
    return {tier_id for ask in waiting for tier_id in ask.tiers if not current.is_barred(ask, tier_id)}


def _verdicts(current: Pass, waiting: Iterable[Ask]) -> tuple[Verdict, ...]:
    """Judged by the state at the end of the pass."""
    live = [*current.live, *(held for placing in current.starts for held in placing.live(current.now_us))]
    current.shares.forget_plans()
    asks = list(waiting)
    for ask in asks:
        if ask.band and not current.may_use_band(ask):
            ask.band = 0
    explainer = Explainer(
        current.fleet,
        current.shares,
        current.timeline,
        current.snapshot.tiers,
        live,
        current.policy.eta_shapes,
        current.gates,
    )
    return explainer.verdicts(asks, Line(current.shares, current.standing))
