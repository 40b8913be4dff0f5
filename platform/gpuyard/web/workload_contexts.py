"""What the page of one workload is told; the parts it shares with other pages are in `contexts`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from gpuyard.web.contexts import ArrayChip, Cell, Money, Part, Step, Tone
from gpuyard.web.scheduler_contexts import Clearing


@dataclass(frozen=True, kw_only=True)
class PlacedNode:
    name: str
    gpus: str  # "gpu 0-3", "0.25 of gpu 2"


@dataclass(frozen=True, kw_only=True)
class Holder:
    name: str
    url: str  # empty when the reader may not see that workload
    team: str
    what: str  # "4 on node-09"
    ends: str  # "ends by 14:20", or empty
    state: str = "active"


@dataclass(frozen=True, kw_only=True)
class BlockerBar:
    """Two amounts in one unit: what there is or is allowed (the tick) against what this needs."""

    text: str
    parts: Sequence[Part]
    scale: float
    tick: float


@dataclass(frozen=True, kw_only=True)
class BlockerView:
    code: str
    sentence: str
    bar: BlockerBar | None = None
    holders: Sequence[Holder] = ()


@dataclass(frozen=True, kw_only=True)
class VerdictCard:
    headline: str  # "about 14:20", "not before a GPU is free", "never, as asked"
    detail: str
    basis: str  # what the estimate rests on
    position: int | None
    queue_length: int
    pass_number: int  # the one that found this
    pass_at: datetime
    judged_in: int  # the last one: it found the same
    judged_at: datetime
    blockers: Sequence[BlockerView]
    change: str = ""  # the smallest change that would let it start, as a sentence
    change_url: str = ""  # the request form filled in with that change, where it is one
    pass_url: str = ""  # for platform admins
    clearing: Clearing | None = None  # where its start is reserved


@dataclass(frozen=True, kw_only=True)
class CandidateNode:
    name: str
    picked: bool
    sentence: str
    cells: Sequence[Cell] = ()


@dataclass(frozen=True, kw_only=True)
class ScorePart:
    label: str
    picked: str
    runner_up: str  # empty without one


@dataclass(frozen=True, kw_only=True)
class EvictionView:
    """Work of this workload that was taken back."""

    at: datetime
    text: str  # who gained, what was lost, why this one, evicted ÷ requested
    smaller: str  # "2 replicas", empty for all of it
    pass_number: int
    pass_url: str  # for platform admins


@dataclass(frozen=True, kw_only=True)
class WhyHere:
    why_now: str
    score: Sequence[ScorePart]
    pass_url: str  # for platform admins
    candidates: Sequence[CandidateNode]
    pass_number: int
    pass_at: datetime
    borrowed: bool


@dataclass(frozen=True, kw_only=True)
class LogLine:
    key: str  # stable: stream, offset of its piece, place in it
    stream: str
    text: str


@dataclass(frozen=True, kw_only=True)
class LogView:
    lines: Sequence[LogLine]
    follows: bool  # more may come
    shown: int
    total_bytes: int
    rank: int


@dataclass(frozen=True, kw_only=True)
class CostPart:
    fill: str
    label: str
    price: Money
    hours: Decimal


@dataclass(frozen=True, kw_only=True)
class CostCard:
    so_far: Money
    at_most: Money | None  # None without a time limit
    cost: Money | None  # what it costs the company; None where the reader may not see it
    gpu_hours: Decimal
    rate: str  # "4 × 4.60 € an hour"
    parts: Sequence[CostPart]

    @property
    def scale(self) -> Decimal:
        most = self.at_most.amount if self.at_most else Decimal(0)
        return max(most, self.so_far.amount, Decimal("0.01"))

    @property
    def meter(self) -> Sequence[Part]:
        return tuple(
            Part(fill=part.fill, value=float(part.price.amount), label=part.label) for part in self.parts
        )


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A pass or a person decided something about this workload."""

    at: datetime
    what: str
    by: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class EventRow:
    at: datetime
    what: str
    actor: str
    detail: str
    sealed: bool


@dataclass(frozen=True, kw_only=True)
class ReplicaRow:
    index: int
    state: str
    node: str
    gpus: str
    ports: str
    exit: str
    run_s: float | None


@dataclass(frozen=True, kw_only=True)
class StopQuestion:
    """What stopping does: asked once, before it is done."""

    verb: str  # "Stop", "Withdraw"
    what: str  # "4 GPUs on node-07 are released after at most 10 s."
    lost: str  # "Work since the start, 2 h 14 m, is lost: no checkpoint folder is set."
    undo: str  # "This cannot be undone; Again asks for the same."


@dataclass(frozen=True, kw_only=True)
class WorkloadPage:
    as_of: datetime
    id: str
    name: str
    team: str
    team_id: str
    kind: str
    state: str
    state_s: float | None
    amount: str  # "8 × h100-80g", "0.25 × l4-24g, 6 GiB"
    replicas: int
    owner: str
    borrowed: bool | None  # None while it holds nothing
    placed: Sequence[PlacedNode]
    steps: Sequence[Step]
    tab: str
    counts: dict[str, int]  # of decisions and events, for the tabs
    spec: Sequence[tuple[str, str]]  # label and value, command first
    revision: int
    ended: str  # "Exit 3 after 12 s: exited", empty while live
    ended_tone: Tone
    replica_rows: Sequence[ReplicaRow]
    verdict: VerdictCard | None = None
    why: WhyHere | None = None
    evictions: Sequence[EvictionView] = ()
    log: LogView | None = None
    cost: CostCard | None = None
    decisions: Sequence[Decision] = ()
    events: Sequence[EventRow] = ()
    stop: StopQuestion | None = None
    array: ArrayChip | None = None
    case_url: str = ""  # the approval that holds it, if the reader may see it
    approval: str = ""  # whom it waits for, while it needs approval
    approvers: str = ""  # who may decide, by name
    approval_since: datetime | None = None
    idempotency_key: str = ""
