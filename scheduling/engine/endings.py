"""When what runs is expected to end, and with it the cards that several share."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scheduling.engine.decisions import Policy
from scheduling.engine.order import FOREVER_US, Ask
from scheduling.engine.placement import Fleet, Ints, Shape, TierNodes
from scheduling.engine.snapshot import WHOLE, Live


@dataclass(frozen=True, slots=True)
class Ending:
    """A live group and when it is expected to be gone; None: nobody knows."""

    live: Live
    ends_us: int | None
    is_estimate: bool  # no time limit: by what is usual for its kind


def expected_end(live: Live, policy: Policy, now_us: int, speed: int = 0) -> Ending:
    """Its limit; else what is usual for its kind, doubled as often as it has outlived that already.

    `speed`: of its tier, in thousandths of the slowest; 0: not known.
    """
    step_us = max(1, policy.timeline_step_s) * 1_000_000
    soon_us = (now_us // step_us + 1) * step_us
    if live.state == "stopping":
        return Ending(live, soon_us, is_estimate=False)
    if live.ends_us is not None:
        return Ending(live, live.ends_us if live.ends_us > now_us else soon_us, is_estimate=False)
    run_s = policy.expected_run_s(live.kind)
    if run_s is None or run_s <= 0 or live.state == "unconfirmed":
        return Ending(live, None, is_estimate=True)
    run_us = at_speed(run_s * 1_000_000, speed)
    while live.started_us + run_us <= now_us:
        run_us *= 2
    return Ending(live, live.started_us + run_us, is_estimate=True)


def at_speed(run_us: int, speed: int) -> int:
    """How long work runs that takes so long on the slowest tier."""
    return max(1, run_us * 1000 // speed) if speed > 0 and run_us < FOREVER_US else run_us


def run_on(fleet: Fleet, tier_id: str, ask: Ask) -> int:
    """How long it is expected to run there: a limit stays a limit, what is usual depends on the speed."""
    if ask.request.time_limit_s is not None:
        return ask.run_us
    return at_speed(ask.run_us, fleet.speed(tier_id, ask.request.kind))


class SharedCards:
    """When the cards of one tier that shares are on are expected to be free again."""

    def __init__(self, tier: TierNodes, live: Iterable[Live], endings: Iterable[Ending]) -> None:
        self._tier = tier
        known: dict[tuple[int, int], int] = {}  # slots of those whose end is known
        self.ends: dict[tuple[int, int], int] = {}  # by row and column; FOREVER_US: nobody knows
        for ending in endings:
            for card in self._cards(ending.live):
                known[card] = known.get(card, 0) + ending.live.slots
                self.ends[card] = max(self.ends.get(card, 0), ending.ends_us or FOREVER_US)
        for card in {card for row in live if row.slots < WHOLE for card in self._cards(row)}:
            gpu = tier.gpus[card[0]][card[1]]
            if known.get(card, 0) < WHOLE - gpu.slots_free:
                self.ends[card] = FOREVER_US

    @cached_property
    def _column(self) -> dict[str, tuple[int, int]]:
        """Where each GPU of the tier is; a yard without shares never asks."""
        return {gpu.id: (row, c) for row, gpus in enumerate(self._tier.gpus) for c, gpu in enumerate(gpus)}

    def _cards(self, live: Live) -> Iterable[tuple[int, int]]:
        if live.slots == WHOLE or live.tier_id != self._tier.tier_id:
            return ()
        return (self._column[gpu_id] for gpu_id in live.gpu_ids if gpu_id in self._column)

    def join(self, row: int, gpu_id: str, end_us: int) -> int:
        """Somebody joins the card; back comes when it would have been free without that, 0 if it is now."""
        card = self._column[gpu_id]
        before_us = self.ends.get(card, 0)
        self.ends[card] = max(before_us, end_us)
        return before_us

    def joinable(self, shape: Shape, time_us: int, until_us: int) -> tuple[Ints, Ints]:
        """(tier nodes,) twice: replicas on shared cards that are taken until then anyhow, and that are free before."""
        tier, slots = self._tier, self._tier.slots_of(shape)
        longer, shorter = np.zeros_like(tier.usable), np.zeros_like(tier.usable)
        joins = (tier.sharer == tier.code_of(shape)) & (tier.slots >= slots) & (tier.held > 0)
        for row, column in zip(*joins.nonzero(), strict=True):
            # One that nobody on the timeline is known to be on stays as it is.
            end_us = self.ends.get((int(row), int(column)), FOREVER_US)
            if end_us > time_us:
                (longer if end_us >= until_us else shorter)[row] += tier.slots[row, column] // slots
        return longer, shorter
