"""What the pages about the scheduler are told: the queue, the free space and the passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.utils.translation import gettext as _

from gpuyard.web.contexts import Choice, Pager, Part, QuotaLine
from gpuyard.web.wording import number

# ───────── free space ─────────


@dataclass(frozen=True, kw_only=True)
class HeatCell:
    """One node: how many of its GPUs are free, as a digit and a shade. `level`: 0 none … 4 wholly free, x closed."""

    node: str
    free: int
    level: str
    text: str


@dataclass(frozen=True, kw_only=True)
class SizeCount:
    on_node: int
    on_island: int | None  # None where islands make no difference


@dataclass(frozen=True, kw_only=True)
class SpaceTier:
    name: str
    sentence: str  # "14 free, but at most 4 on one node"
    free: int
    total: int
    cells: Sequence[HeatCell]
    more_nodes: int  # with fewer free GPUs than those drawn
    sizes: Sequence[SizeCount]  # for `FreeSpacePage.sizes`
    useless: str  # "6 of no use for 8 at once", or empty
    parts: str  # "2 shared cards have room, at most 0.75", or empty
    out: str  # "4 not counted: 3 cordoned, 1 down", or empty


@dataclass(frozen=True, kw_only=True)
class FreeSpacePage:
    as_of: datetime
    summary: str
    sizes: Sequence[int]
    tiers: Sequence[SpaceTier]
    tier_choices: Sequence[Choice]


# ───────── passes ─────────


@dataclass(frozen=True, kw_only=True)
class PassRow:
    number: int
    at: datetime
    load_ms: float
    plan_ms: float
    commit_ms: float
    starts: int
    claims: int
    stops: int
    grown: int
    waiting: int

    @property
    def duration_ms(self) -> int:
        return round(self.load_ms + self.plan_ms + self.commit_ms)

    @property
    def did(self) -> str:
        """`12 started, 3 taken back`, in words; what it changed where it moved nothing."""
        parts = [
            (_("%s started"), self.starts),
            (_("%s promised"), self.claims),
            (_("%s taken back"), self.stops),
            (_("%s grown"), self.grown),
        ]
        found = [text % number(count) for text, count in parts if count]
        return ", ".join(found) or _("changed verdicts only")

    @property
    def timing_text(self) -> str:
        return ", ".join(f"{part.label} {part.value:.0f} ms" for part in self.timing)

    @property
    def timing(self) -> Sequence[Part]:
        return (
            Part(fill="s2", value=self.load_ms, label=_("load")),
            Part(fill="s3", value=self.plan_ms, label=_("plan")),
            Part(fill="s4", value=self.commit_ms, label=_("commit")),
        )


@dataclass(frozen=True, kw_only=True)
class PassesPage:
    as_of: datetime
    summary: str
    rows: Sequence[PassRow]
    slowest_ms: float  # of the rows: the scale of their bars
    only_stops: bool
    pager: Pager


@dataclass(frozen=True, kw_only=True)
class PassWork:
    """One workload that a pass started, promised or took back."""

    id: str  # empty: it is gone
    name: str
    team: str
    what: str  # "8 × h100-80g on node-01"
    reason: str
    for_id: str = ""
    for_name: str = ""


@dataclass(frozen=True, kw_only=True)
class PassPage:
    as_of: datetime
    row: PassRow
    starts: Sequence[PassWork]
    claims: Sequence[PassWork]
    stops: Sequence[PassWork]
    refused: Sequence[tuple[str, str]]  # public id, why
    more: int  # starts and stops beyond those shown
    snapshot: str  # "48 kB", empty once it is gone
    engine: str
    digest: str
    policy: Sequence[tuple[str, str]]


# ───────── how reserved starts clear ─────────


@dataclass(frozen=True, kw_only=True)
class ClearingTick:
    x: str  # percent
    text: str
    is_minor: bool  # left out on a phone


@dataclass(frozen=True, kw_only=True)
class ClearingBar:
    """Work on the GPUs of a row. `x` and `width` are percent of the drawing."""

    fill: str  # active, stop, claimed
    x: str
    width: str
    name: str  # "another team" where the reader may not see it
    url: str
    since: datetime | None  # None: it is there
    until: datetime | None  # None: nobody knows
    note: str  # "by its time limit", "reserved"


@dataclass(frozen=True, kw_only=True)
class ClearingRow:
    node: str
    gpus: str  # "gpu 0-3", "2 of gpu 4-7"
    count: int
    tier: str
    bars: Sequence[ClearingBar]


@dataclass(frozen=True, kw_only=True)
class Clearing:
    """Reserved GPUs over time, from now on."""

    now: str
    ticks: Sequence[ClearingTick]
    rows: Sequence[ClearingRow]
    last: str  # "The last to leave is detr-base on node-09, 4 GPUs by 14:20."
    more_nodes: int


# ───────── queue ─────────


@dataclass(frozen=True, kw_only=True)
class QueueRow:
    position: int
    id: str
    name: str
    team: str
    kind: str
    gpus: int | Decimal
    tier: str
    asks: str  # "2 × 8 × h100-80g"
    priority: int
    waited_s: float
    reason: str
    is_never: bool = False
    is_reserved: bool = False
    eta: datetime | None = None
    basis: str = ""  # what the estimate rests on, in a few words
    more_reasons: int = 0
    changed: str = ""  # "was 5th; team vision's limit no longer in the way"
    changed_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class QueueLine:
    """Those who named one tier first, in the order of the next pass."""

    tier: str
    note: str  # "12 wait, 7 of them of others"
    rows: Sequence[QueueRow]


@dataclass(frozen=True, kw_only=True)
class QueuePage:
    as_of: datetime
    summary: str
    lines: Sequence[QueueLine]
    more: int  # rows of the reader's beyond those shown
    tier_choices: Sequence[Choice]
    lanes: Sequence[QuotaLine]
    clearing: Clearing | None  # None: nothing of the reader's is reserved
    last_pass_at: datetime | None
    passes: Sequence[PassRow] | None  # about all companies at once: for platform admins, None for others
