"""What a pass decides. Every mapping here holds plain JSON values: a plan can be stored and compared."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from scheduling.engine.snapshot import UNITS_PER_GPU, WHOLE, plain

# The stable codes of blockers.
QUOTA_LIMIT = "quota_limit"
QUOTA_LIMIT_TOTAL = "quota_limit_total"
TIER_UNKNOWN = "tier_unknown"
NEVER_FITS_NODE = "never_fits_node"
NO_READY_GPU = "no_ready_gpu"
NOT_ENOUGH_FREE_GPUS = "not_enough_free_gpus"
GANG_SPLIT = "gang_split"
CPU = "cpu"
MEMORY = "memory"
NODES_CORDONED = "nodes_cordoned"
POOL_NOT_ALLOWED = "pool_not_allowed"
BUDGET = "budget"
NOT_PREEMPTIBLE = "not_preemptible"
LEND_LIMIT = "lend_limit"
HEADROOM = "headroom"
RESERVATION = "reservation"
NOT_BEFORE = "not_before"
DEPENDENCY = "dependency"
ARRAY_CAP = "array_cap"
SESSIONS = "sessions"
NODE_SELECTION = "node_selection"
TOPOLOGY = "topology"
SHARE = "share"
LEAVING = "leaving"

BLOCKER_CODES = (
    NOT_BEFORE,
    DEPENDENCY,
    ARRAY_CAP,
    SESSIONS,
    BUDGET,
    TIER_UNKNOWN,
    QUOTA_LIMIT,
    QUOTA_LIMIT_TOTAL,
    NOT_PREEMPTIBLE,
    LEND_LIMIT,
    HEADROOM,
    NEVER_FITS_NODE,
    POOL_NOT_ALLOWED,
    NODE_SELECTION,
    NODES_CORDONED,
    NO_READY_GPU,
    NOT_ENOUGH_FREE_GPUS,
    SHARE,
    GANG_SPLIT,
    CPU,
    MEMORY,
    TOPOLOGY,
    RESERVATION,
    LEAVING,
)

# What an estimated start rests on.
BASIS_PROMISE = (
    "promise"  # a reservation that later passes keep: the next snapshot carries it as `promised_us`
)
BASIS_RESERVATION = "reservation"
BASIS_TIME_LIMITS = "time_limits"
BASIS_CLASS_DEFAULTS = "class_defaults"


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules that an admin may change, as plain values."""

    share_scope: str = "team"  # whose shares may lie on one card: of one "team", or of one "company"
    # The packing score, docs/scheduling.md section 12: its weights, and steps for what else speaks against a place.
    pack_fragments: float = 0.3
    pack_shares: float = 1.5
    pack_stranded: float = 0.9
    pack_scarcity: float = 4.0
    pack_balance: float = 2.0
    pack_fullness: float = 0.001
    pack_step_slots: float = 40.0
    pack_islands: float = 1.0  # steps for each further island that a replica's GPUs come from
    pack_together: float = 4.0  # steps for each further node that a gang needs
    gangs_close: bool = True  # gangs larger than a node go to few fabric domains, also unasked
    grow_gangs: bool = True  # start more than replicas_min where nobody else waits for the tier
    eta_shapes: int = 100  # for how many different shapes a pass works out when they could start
    # Fair share. Past use counts half as much after each half-life; 0 half-life or weight: only the present counts.
    usage_half_life_s: int = 7 * 86_400
    usage_weight_ppm: int = 1_000_000
    ageing_s: int = 86_400  # each time a workload has waited so long its priority rises by 1; 0: never
    starvation_s: int = 4 * 3_600  # having waited so long, its size no longer counts against it; 0: never
    non_preemptible_may_borrow: bool = False
    # Backfill. The first so many that cannot start have a start reserved; 0: no reservations at all.
    reservations: int = 50
    backfill_without_limit: bool = False  # whether work without a time limit may pass a reservation
    timeline_step_s: int = 60  # what is past its limit is expected to be gone at the next whole step
    # How long work without a time limit is expected to run; None: it does not end.
    training_run_s: int | None = 86_400
    inference_run_s: int | None = None
    development_run_s: int | None = 8 * 3_600
    # Taking back. Nothing leaves before it has run so long, nor oftener than this within the window (0: as often
    # as need be): but a guarantee never waits for such a number, it only takes others first.
    min_run_s: int = 600
    development_min_run_s: int = 3_600  # the same for sessions, if that is longer
    # What a request may ask for counts up to these: nobody may make work immovable, or others the victims.
    asked_min_run_most_s: int = 2 * 3_600
    asked_restart_most_s: int = 2 * 3_600
    eviction_window_s: int = 86_400
    evictions_per_workload: int = 3
    evictions_per_team: int = 50
    # A service's first replicas_min are never taken back once they stand inside the guarantee. Where they may not
    # borrow they always do; where they may, what was borrowed goes back like all else.
    inference_may_borrow: bool = True
    development_may_borrow: bool = True
    # GPUs that sessions hold at most, of a team's own and of one person; None: as many as quotas allow.
    sessions_per_team: int | None = None
    sessions_per_person: int | None = None
    # Thousandths of a tier that borrowed work of other kinds leaves free: by name of the tier, and of all others.
    inference_headroom: int = 0
    inference_headroom_tiers: tuple[tuple[str, int], ...] = ()
    grow_running: bool = True  # elastic work and services grow into what nobody waits for
    # Moving work together so that a larger one fits: at most so many at once (0: never), if what that unlocks,
    # GPUs × expected run, at most so long, is more than what moving loses.
    consolidation_movers: int = 16
    consolidation_cap_s: int = 4 * 3_600

    def may_borrow(self, kind: str, *, preemptible: bool) -> bool:
        """Whether work of the kind may go over its guarantee; what could not be taken back again may not."""
        by_kind = {"inference": self.inference_may_borrow, "development": self.development_may_borrow}
        return self.non_preemptible_may_borrow or (preemptible and by_kind.get(kind, True))

    def least_run_s(self, kind: str) -> int:
        return max(self.min_run_s, self.development_min_run_s if kind == "development" else 0)

    def expected_run_s(self, kind: str) -> int | None:
        if kind == "inference":
            return self.inference_run_s
        return self.development_run_s if kind == "development" else self.training_run_s


@dataclass(frozen=True, slots=True)
class ReplicaPlacement:
    index: int
    node_id: str
    node_epoch: int
    gpu_ids: tuple[str, ...]
    units_per_gpu: int = UNITS_PER_GPU
    slots: int = WHOLE  # of each GPU; which ones of a shared card, the commit decides
    cpu_m: int = 0
    memory_mib: int = 0
    tier_id: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    workload_id: str
    tier_id: str
    borrowed: bool
    replicas: tuple[ReplicaPlacement, ...]
    why_now: Mapping[str, Any] = field(default_factory=dict)
    why_here: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Claim:
    """A start on GPUs that others must leave first: stored with their stops, or not at all."""

    workload_id: str
    tier_id: str
    borrowed: bool
    replicas: tuple[ReplicaPlacement, ...]
    victims: tuple[str, ...]  # workloads, each with a stop in the same plan
    why_now: Mapping[str, Any] = field(default_factory=dict)
    why_here: Mapping[str, Any] = field(default_factory=dict)


# Why work is taken back or made smaller.
STOP_RETURN = "return"  # for a guarantee
STOP_PREEMPT = "preempt"  # for work of a higher band, or a service's floor
STOP_CONSOLIDATE = "consolidate"  # moved so that a larger one fits


@dataclass(frozen=True, slots=True)
class Stop:
    """Take a workload back (it waits again), or only some replicas of an elastic one (it goes on).

    `why`: `rule` ("return", "floor", "band", "slack": replicas above the least for work that waits,
    "consolidate"), `gained_by_team`, `gained_by_workload`, `lost_gpu_s` (since the last checkpoint, or the start),
    `restart_gpu_s`, `checkpoint_age_s` or None, `evicted_units` and `requested_units` of the whole decision,
    `candidates`, and `why_this`: {`next_best_lost_gpu_s`: what the cheapest way without this one would lose, or None}.
    """

    workload_id: str
    reason: str
    for_workload_id: str | None  # who gains by it
    replicas: tuple[int, ...] | None = None  # indexes; None: all of it
    why: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Grow:
    """More replicas for a running elastic workload; their indexes are free ones."""

    workload_id: str
    replicas: tuple[ReplicaPlacement, ...]
    why: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Blocker:
    code: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`position` is the place in the line of those who named the same tier first, from 1."""

    workload_id: str
    blockers: tuple[Blocker, ...]
    smallest_change: Mapping[str, Any] | None
    eta_us: int | None
    position: int
    eta_basis: str | None = None


@dataclass(frozen=True, slots=True)
class Reservation:
    """A start in the future that no later one may delay. `nodes`: (node, replicas) as planned now."""

    workload_id: str
    tier_id: str
    start_us: int
    nodes: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class FairShare:
    """What a team and those below it may count on of a tier that somebody waits for: guarantee or more."""

    team_id: str
    tier_id: str
    units: int


@dataclass(frozen=True, slots=True)
class Plan:
    starts: tuple[Start, ...] = ()
    claims: tuple[Claim, ...] = ()
    stops: tuple[Stop, ...] = ()
    grows: tuple[Grow, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    shares: tuple[FairShare, ...] = ()  # as divided before anything started
    # (tier, guaranteed to all companies, units there are) where more is guaranteed than there is: each is served
    # in proportion then.
    oversold: tuple[tuple[str, int, int], ...] = ()


def plan_to_json(plan: Plan) -> str:
    """Canonical: equal plans are equal bytes."""
    return json.dumps(plan, default=_fields, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def _fields(part: Any) -> dict[str, Any]:
    # `asdict` would copy every value first, which takes longer than the writing.
    return {name: getattr(part, name) for name in part.__dataclass_fields__}


def policy_values(policy: Policy) -> dict[str, Any]:
    """As plain JSON values; `policy_of` reads them again."""
    return asdict(policy)


def policy_of(values: Mapping[str, Any]) -> Policy:
    """The policy again. What it does not say takes its default, and rules that there are no more are left out."""
    known = Policy.__dataclass_fields__.keys()
    return Policy(**{name: plain(value) for name, value in values.items() if name in known})
