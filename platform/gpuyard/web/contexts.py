"""What each page is told. Views build these, templates read nothing else.

Amounts are `Money`, moments are aware datetimes, durations are seconds. `as_of` is the server's clock when
the facts were read; every relative time on the page is counted from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Literal, NamedTuple

from gpuyard.web.wording import state_word

Tone = Literal["ok", "info", "warn", "bad"]
Phase = Literal["done", "now", "todo", "fault"]


class Money(NamedTuple):
    amount: Decimal
    currency: str
    is_some: bool = False  # rounded to cents, and not zero before


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One value of a filter or of a select."""

    value: str
    label: str
    count: int | None = None
    selected: bool = False


# ───────── parts used on several pages ─────────


@dataclass(frozen=True, kw_only=True)
class Part:
    """A stretch of a meter. `fill` is a class of yard.css without its `f-`: active, idle, claimed, ink."""

    fill: str
    value: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Step:
    label: str
    detail: str
    phase: Phase
    at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class ArrayChip:
    """Which member of which array a workload is; in a list that shows one row for an array, what its members do."""

    id: str
    number: int  # from 1
    count: int
    states: str = ""  # "3 running, 12 waiting": the row stands for all of them


@dataclass(frozen=True, kw_only=True)
class WorkloadRow:
    id: str
    name: str
    team: str
    kind: str
    state: str
    state_s: float | None
    gpus: int | Decimal
    tier: str  # the tier it runs on, or those it asked for
    amount: str  # "8 × h100-80g", "0.25 × l4-24g, 6 GiB", "10 GiB of l4-24g"
    nodes: Sequence[str]
    owner: str
    note: str  # one sentence: why it waits, how far it is, how it ended
    requested_at: datetime
    price: Money | None  # charged so far
    pending: Money | None = None  # held, not metered yet
    run_s: float | None = None
    time_limit_s: float | None = None
    array: ArrayChip | None = None

    @property
    def so_far(self) -> Money | None:
        if self.price is None or self.pending is None:
            return self.price or self.pending
        return Money(self.price.amount + self.pending.amount, self.price.currency)

    @property
    def progress(self) -> Sequence[Part]:
        if self.run_s is None or not self.time_limit_s:
            return ()
        return (Part(fill="active", value=min(self.run_s, self.time_limit_s), label="run"),)


@dataclass(frozen=True, kw_only=True)
class Pager:
    total: int
    first: int
    last: int
    previous_page: int | None
    next_page: int | None


@dataclass(frozen=True, kw_only=True)
class QuotaLine:
    """Use of one tier by one team, in GPUs."""

    tier: str
    used: float
    guaranteed: float
    limit: float | None
    note: str
    claimed: float = 0
    team: str = ""
    share: float | None = None  # what fair share gives it now; None where nobody waits

    @property
    def scale(self) -> float:
        return max(self.limit or 0, self.guaranteed, self.used + self.claimed, self.share or 0, 1)


@dataclass(frozen=True, kw_only=True)
class FreeTier:
    """Free GPUs of a tier as the blocks a request could take; a GPU is counted once, in its largest block."""

    tier: str
    free: int
    total: int
    eights: int
    fours: int
    singles: int
    price: Money | None  # per GPU hour, for the reader's team


# ───────── home ─────────


@dataclass(frozen=True, kw_only=True)
class Need:
    icon: str
    title: str
    detail: str
    url: str
    action: str
    tone: Tone = "info"


@dataclass(frozen=True, kw_only=True)
class TeamSpend:
    team: str
    team_id: str
    gpu_hours: Decimal
    price: Money


@dataclass(frozen=True, kw_only=True)
class SpendCard:
    """What teams were charged since the first of the month, the most first."""

    since: date
    until: date
    rows: Sequence[TeamSpend]
    totals: Sequence[Money]  # one for each currency
    metered_until: datetime | None


@dataclass(frozen=True, kw_only=True)
class HomePage:
    as_of: datetime
    summary: str
    needs: Sequence[Need]
    mine: Sequence[WorkloadRow]
    mine_title: str
    ended_today: int
    quotas: Sequence[QuotaLine]
    free: Sequence[FreeTier]
    team: str
    shows_work: bool = True
    spend: SpendCard | None = None  # for those who answer for the money


# ───────── workloads ─────────


@dataclass(frozen=True, kw_only=True)
class WorkloadListPage:
    as_of: datetime
    rows: Sequence[WorkloadRow]
    states: Sequence[Choice]
    kinds: Sequence[Choice]
    q: str
    sort: str  # "-requested", "name", …
    pager: Pager
    filtered: bool
    array: str = ""  # the id of the array whose members these are


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One GPU as drawn: `state` is a key of wording.GPU_STATES."""

    index: int
    state: str
    title: str
    island: int = 0
    url: str = ""
    picked: bool = False


# ───────── request ─────────


@dataclass(frozen=True, kw_only=True)
class TierChoice:
    name: str
    detail: str  # "80 GB · bf16 fp8 nvlink"
    free: int
    largest_block: int
    price: Money | None
    selected: bool = False


@dataclass(frozen=True, kw_only=True)
class Check:
    tone: Tone
    icon: str
    title: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class AnswerPanel:
    as_of: datetime
    headline: str  # "now", "when a GPU is free", "never, as asked"
    detail: str
    checks: Sequence[Check]
    cost: Money | None
    formula: str  # "8 × 12 h × 4.60 €"
    submit: str  # "Request 8 × h100-80g"


@dataclass(frozen=True, kw_only=True)
class RequestPage:
    as_of: datetime
    tiers: Sequence[TierChoice]
    answer: AnswerPanel
    idempotency_key: str
    has_bands: bool
    again: str = ""  # the id this request was filled from
    advanced_open: bool = False


# ───────── fleet, queue, costs ─────────


@dataclass(frozen=True, kw_only=True)
class StateCount:
    state: str
    count: int


@dataclass(frozen=True, kw_only=True)
class NodeRow:
    id: str
    name: str
    tier: str
    condition: str  # ready, cordoned, maintenance, down, lost
    cells: Sequence[Cell]
    held: int
    free: int
    cpu_free_m: int
    cpu_total_m: int
    memory_free_mib: int
    memory_total_mib: int
    synced_at: datetime | None
    late: bool  # silent for more than three syncs
    agent_version: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeWorkRow:
    """What one replica has on a node."""

    name: str  # "another team" where the reader may not see it
    url: str
    team: str
    gpus: str  # "gpu 0-3", "0.25 of gpu 2"
    memory: str  # of a part of a card, "6 GiB"
    state: str
    until: datetime | None  # None: it has no time limit


@dataclass(frozen=True, kw_only=True)
class NodeNow:
    as_of: datetime
    row: NodeRow | None  # None: retired
    work: Sequence[NodeWorkRow]


@dataclass(frozen=True, kw_only=True)
class PoolRows:
    name: str
    detail: str
    nodes: Sequence[NodeRow]


@dataclass(frozen=True, kw_only=True)
class FleetPage:
    as_of: datetime
    summary: str
    counts: Sequence[StateCount]
    pools: Sequence[PoolRows]
    tiers: Sequence[FreeTier]
    tier_choices: Sequence[Choice]
    warnings: Sequence[str] = ()

    @property
    def total(self) -> int:
        return sum(count.count for count in self.counts)

    @property
    def count_parts(self) -> Sequence[Part]:
        return tuple(
            Part(fill=state_word(count.state).glyph, value=count.count, label=count.state)
            for count in self.counts
        )


@dataclass(frozen=True, kw_only=True)
class CostLine:
    day: date
    team: str
    team_id: str
    tier: str
    kind: str
    gpu_hours: Decimal
    price: Money
    cost: Money | None  # None where the reader may not see cost


@dataclass(frozen=True, kw_only=True)
class CostSum:
    """One currency's."""

    gpu_hours: Decimal
    price: Money
    cost: Money | None


@dataclass(frozen=True, kw_only=True)
class CostBucket:
    fill: str
    label: str
    hours: Decimal
    cost: Money


@dataclass(frozen=True, kw_only=True)
class CostsPage:
    as_of: datetime
    first_day: str  # as typed, so that a wrong one can be corrected
    last_day: str
    rows: Sequence[CostLine]
    totals: Sequence[CostSum]
    shows_cost: bool
    metered_until: datetime | None
    buckets: Sequence[CostBucket] = ()  # the whole fleet, for those who may see it
    fleet_cost: Money | None = None
    error: str = ""

    @property
    def bucket_parts(self) -> Sequence[Part]:
        return tuple(
            Part(fill=bucket.fill, value=float(bucket.cost.amount), label=bucket.label)
            for bucket in self.buckets
        )
