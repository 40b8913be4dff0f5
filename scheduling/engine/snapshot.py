"""What a pass knows: plain frozen facts, loaded once, replayable from JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

UNITS_PER_GPU = 7000  # quota and money count in 1/7000 GPU, so that MIG's sevenths and thousandths stay whole
WHOLE = 1000  # slots of one GPU
ISLAND, NODE = "island", "node"  # the levels of topology below those that `Snapshot.levels` names


@dataclass(frozen=True, slots=True)
class Tier:
    id: str
    name: str
    memory_mib: int
    cost_rank: int
    architecture: str = ""
    labels: tuple[str, ...] = ()
    speeds: tuple[
        tuple[str, int], ...
    ] = ()  # (kind, thousandths of the slowest tier's speed), sorted by kind
    cost_micro: int = 0  # the cost of one GPU for an hour, in millionths; 0: not known

    def speed(self, kind: str) -> int:
        """Thousandths of the slowest tier's speed; 0: not known."""
        return next((speed for name, speed in self.speeds if name == kind), 0)


@dataclass(frozen=True, slots=True)
class Node:
    id: str
    name: str
    pool_id: str
    schedulable: bool
    epoch: int
    cpu_free_m: int
    memory_free_mib: int
    cpu_total_m: int
    memory_total_mib: int
    reason_unschedulable: str | None = None
    labels: tuple[str, ...] = ()  # "key=value", sorted
    domains: tuple[str, ...] = ()  # the node's domain at each of `Snapshot.levels`; "" where it has none


@dataclass(frozen=True, slots=True)
class Gpu:
    """`free` is False while anything claims, holds, leaves or may still hold any part of the GPU.

    `slots_free` counts what is left of a card that shares are on; `shared_by` is the one team whose they are.
    `card` is set where one card is listed whole and in MIG instances too: as long as somebody holds it one way it
    cannot be held the other, and `free` does not say that.
    """

    id: str
    node_id: str
    tier_id: str
    index: int
    island: int
    ready: bool
    free: bool
    slots_free: int = 0  # of WHOLE; counts only while `free` is False
    shared_by: str | None = None
    units: int = UNITS_PER_GPU  # what holding all of it counts for: a MIG instance is less than a card
    card: str | None = None
    is_instance: bool = False  # counts only beside `card`


@dataclass(frozen=True, slots=True)
class Team:
    id: str
    parent_id: str | None
    name: str
    path: tuple[str, ...]  # ids from the root to this team itself


@dataclass(frozen=True, slots=True)
class Quota:
    """`tier_id` None means all tiers together, where only `limit` counts. `limit` None means no limit.

    `lend_limit` is how much of the guarantee others may use while it lies idle; None: all of it.
    """

    team_id: str
    tier_id: str | None
    guaranteed: int
    limit: int | None
    lend_limit: int | None = None
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Usage:
    """What a team itself used of a tier, in unit-seconds, already decayed by the policy's half-life."""

    team_id: str
    tier_id: str
    unit_s: int


@dataclass(frozen=True, slots=True)
class BandGrant:
    """A team and all below it may start up to `cap` units, over all tiers, at this band or a lower one."""

    team_id: str
    band: int
    cap: int


@dataclass(frozen=True, slots=True)
class Live:
    """What one replica holds of one tier on one node, until `ends_us` at the latest if that is known."""

    workload_id: str
    team_id: str
    tier_id: str
    units: int
    state: str
    node_id: str
    borrowed: bool
    started_us: int
    ends_us: int | None
    cpu_m: int = 0
    memory_mib: int = 0
    kind: str = "training"
    preemptible: bool = True
    band: int = 0  # the band it was started at
    replica: int = 0  # its index
    gpu_ids: tuple[str, ...] = ()
    slots: int = WHOLE  # of each of them


@dataclass(frozen=True, slots=True)
class Running:
    """A workload with a live attempt; `Snapshot.placed` has its request, `Snapshot.live` what it holds."""

    workload_id: str
    state: str  # of the attempt: claiming, starting, running, stopping
    started_us: int
    borrowed: bool
    checkpoint_us: int | None = None  # the last one that its agent reported
    evictions: int = 0  # how often it was taken back within the policy's window


@dataclass(frozen=True, slots=True)
class TeamEvictions:
    """How many workloads of a team were taken back within the policy's window."""

    team_id: str
    count: int


@dataclass(frozen=True, slots=True)
class MixRow:
    """How often replicas of one shape were asked for lately. Empty `tiers`: any."""

    cpu_m: int
    gpus: int
    slots: int
    tiers: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Request:
    """A waiting workload. GPUs, CPU and memory are for each replica; replicas and GPUs are 1 at least."""

    workload_id: str
    name: str
    team_id: str
    kind: str
    priority: int
    queued_us: int
    replicas_min: int
    replicas_max: int
    gpus_per_replica: int
    tiers: tuple[str, ...]  # in order of preference
    cpu_m: int
    memory_mib: int
    preemptible: bool = True
    time_limit_s: int | None = None
    budget_blocker: str | None = None
    pool_ids: tuple[str, ...] | None = None  # None: every pool is allowed
    mix_tiers: bool = False  # replicas may stand on different tiers when no single tier holds the gang
    band: int = 0  # above 0: goes before all fair share, where a grant allows it
    promised_us: int | None = None  # the start that an earlier pass promised: verdict basis `promise`
    # A share of one card instead of whole GPUs: thousandths, GPU memory or both (`gpus_per_replica` is 1 then).
    share: int | None = None
    gpu_memory_mib: int | None = None
    by_value: bool = False  # the tier with the best result per cost that can start wins, not the first named
    node_labels: tuple[str, ...] = ()  # a node must have them all: "key=value"
    not_labels: tuple[str, ...] = ()  # and none of these
    not_nodes: tuple[str, ...] = ()  # ids
    required_level: str | None = None  # all replicas inside one domain of this level
    preferred_level: str | None = None  # the same, if it can be had within `level_wait_s`
    level_wait_s: int = 0
    spread_level: str | None = None  # as evenly over the domains of this level as there is room
    not_before_us: int | None = None
    depends_on: tuple[str, ...] = ()  # workloads that must succeed first and have not yet
    array_id: str | None = None
    array_cap: int | None = None  # so many members of the array at once
    min_run_s: int = 0  # not taken back before it has run so long; the policy has a least one too
    restart_cost_s: int = 0  # what starting again costs beside the work since the last checkpoint
    owner_id: str = ""  # the person who asked
    elastic: bool = False  # may grow and shrink between replicas_min and replicas_max while it runs


@dataclass(frozen=True, slots=True)
class Snapshot:
    tiers: tuple[Tier, ...] = ()
    nodes: tuple[Node, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    teams: tuple[Team, ...] = ()
    quotas: tuple[Quota, ...] = ()
    live: tuple[Live, ...] = ()
    requests: tuple[Request, ...] = ()
    usage: tuple[Usage, ...] = ()
    band_grants: tuple[BandGrant, ...] = ()
    running: tuple[Running, ...] = ()
    placed: tuple[Request, ...] = ()  # the requests of the running workloads
    evictions: tuple[TeamEvictions, ...] = ()
    mix: tuple[MixRow, ...] = ()
    levels: tuple[str, ...] = ()  # of fabric domains, widest first


_FORMAT = 1
_ROW_TYPES: dict[str, type[Any]] = {
    "tiers": Tier,
    "nodes": Node,
    "gpus": Gpu,
    "teams": Team,
    "quotas": Quota,
    "live": Live,
    "requests": Request,
    "usage": Usage,
    "band_grants": BandGrant,
    "running": Running,
    "placed": Request,
    "evictions": TeamEvictions,
    "mix": MixRow,
}


def to_json(snapshot: Snapshot) -> str:
    """One header and many rows for each kind: a third of the size of an object for each row."""
    document: dict[str, Any] = {"format": _FORMAT, "levels": snapshot.levels}
    for kind, row_type in _ROW_TYPES.items():
        names = [field.name for field in fields(row_type)]
        rows = list(map(attrgetter(*names), getattr(snapshot, kind)))
        document[kind] = {"fields": names, "rows": rows}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def from_json(text: str) -> Snapshot:
    """The exact snapshot again. Fields and tables that a newer version added take their defaults."""
    document = json.loads(text)
    if document.get("format") != _FORMAT:
        raise ValueError(f"snapshot format {document.get('format')!r} is not {_FORMAT}")
    tables = {
        kind: _rows(row_type, document[kind]) for kind, row_type in _ROW_TYPES.items() if kind in document
    }
    return Snapshot(**tables, levels=tuple(document.get("levels", ())))


def _rows(row_type: type[Any], table: dict[str, Any]) -> tuple[Any, ...]:
    names: Sequence[str] = table["fields"]
    return tuple(
        row_type(**{name: plain(value) for name, value in zip(names, row, strict=True)})
        for row in table["rows"]
    )


def plain(value: Any) -> Any:
    """A value read from JSON as frozen rows have it: lists are tuples."""
    return tuple(plain(part) for part in value) if isinstance(value, list) else value
