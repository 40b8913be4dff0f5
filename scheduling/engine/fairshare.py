"""The quota tree: who uses what, what is guaranteed to whom, which limits a start would break."""

from collections import defaultdict
from dataclasses import dataclass

from scheduling.engine.decisions import Policy
from scheduling.engine.elastic import INFERENCE, surplus
from scheduling.engine.snapshot import BandGrant, Live, Snapshot

LIMIT, GUARANTEE, LENDING, HEADROOM = "limit", "guarantee", "lending", "headroom"


@dataclass(frozen=True, slots=True)
class LimitHit:
    """What the start would break, by `rule`.

    LIMIT: the limit of this ancestor; `tier_id` None is its limit over all tiers. GUARANTEE: this ancestor's
    guarantee, which work that may not be taken back has to stay inside. LENDING: what others lend of the tier;
    `limit` is then all that may be in use or kept back by its owners, `used` what is, and there is no team.
    HEADROOM: the same of all work but inference, without what is kept free for that.
    """

    team_id: str
    tier_id: str | None
    used: int
    limit: int
    asked: int
    rule: str = LIMIT


class QuotaTree:
    """Counts what is in use while the pass books its starts.

    A limit counts the use of the whole subtree and is checked at every ancestor. A guarantee belongs to the
    nearest team, the asking team itself first, that has a quota for the tier (its *guarantor*), less what
    that team's own descendants with a quota were given of it: so no descendant's guarantee can be used up by
    its siblings. A team for which nobody on the way up has one has a guarantee of nothing.

    What a team does not lend of its guarantee (guaranteed − lend_limit) counts as taken, used or not, for
    everybody outside it: `claimed` = max(kept back, used by the team + claimed by the teams below it). A start
    over the guarantee must leave Σ claimed of the roots ≤ the tier's capacity.

    Replicas above the least of an elastic workload are always borrowed: they count everywhere but against the
    guarantee. Head-room for inference binds borrowed work of the other kinds.

    `plan_ahead` counts a reserved start: for the order and for further reservations, never for a start.
    """

    def __init__(self, snapshot: Snapshot, policy: Policy | None = None) -> None:
        self._policy = policy or Policy()
        self._paths = {team.id: team.path for team in snapshot.teams}
        self._limits = {(q.team_id, q.tier_id): q.limit for q in snapshot.quotas if q.limit is not None}
        self._limits_up: dict[tuple[str, str], list[tuple[tuple[str, str | None], int]]] = {}
        self._guaranteed = {
            (q.team_id, q.tier_id): q.guaranteed for q in snapshot.quotas if q.tier_id is not None
        }
        self._kept_back = {
            (q.team_id, q.tier_id): max(0, q.guaranteed - q.lend_limit)
            for q in snapshot.quotas
            if q.tier_id is not None and q.lend_limit is not None
        }
        self._weights = {(q.team_id, q.tier_id): q.weight for q in snapshot.quotas}
        self._keeping = {tier_id for (_, tier_id), units in self._kept_back.items() if units}
        self.capacity = _capacity(snapshot)
        own, usual = dict(self._policy.inference_headroom_tiers), self._policy.inference_headroom
        self._headroom = {
            tier.id: self.capacity.get(tier.id, 0) * own.get(tier.name, usual) // 1000
            for tier in snapshot.tiers
        }
        self._shares = self._own_shares()
        self._guarantors: dict[tuple[str, str], str] = {}
        self._subtree_use: dict[tuple[str, str | None], int] = defaultdict(int)
        self._guarantor_use: dict[tuple[str, str], int] = defaultdict(int)
        self._direct_use: dict[tuple[str, str], int] = defaultdict(int)
        self._bound_use: dict[tuple[str, str], int] = defaultdict(int)  # by work that may not be taken back
        self._planned: dict[tuple[str, str | None], int] = defaultdict(int)
        self._planned_direct: dict[tuple[str, str], int] = defaultdict(int)
        self._planned_share: dict[tuple[str, str], int] = defaultdict(int)
        self._claims: dict[tuple[str, str], int] = defaultdict(
            int
        )  # below each team: used there + claimed there
        self._claimed: dict[str, int] = defaultdict(int)  # Σ claimed of the roots
        self._kept: dict[tuple[str, str], int] = {}
        self._answers: dict[
            tuple[str, str, int, bool, bool, str], tuple[LimitHit, ...]
        ] = {}  # until the next booking
        self._other_use: dict[str, int] = defaultdict(int)  # of each tier, by all but inference
        self._keep_back()
        above_least = surplus(snapshot)
        for live in snapshot.live:
            self.book_live(live, is_surplus=(live.workload_id, live.replica) in above_least)

    def path(self, team_id: str) -> tuple[str, ...]:
        return self._paths.get(team_id) or (team_id,)

    def company(self, team_id: str) -> str:
        return self.path(team_id)[0]

    def guarantor(self, team_id: str, tier_id: str) -> str:
        key = (team_id, tier_id)
        if key not in self._guarantors:
            holders = (
                ancestor
                for ancestor in reversed(self.path(team_id))
                if (ancestor, tier_id) in self._guaranteed
            )
            self._guarantors[key] = next(holders, team_id)
        return self._guarantors[key]

    def share(self, team_id: str, tier_id: str) -> int:
        return self._shares.get((self.guarantor(team_id, tier_id), tier_id), 0)

    def own_share(self, team_id: str, tier_id: str) -> int:
        """The team's own guarantee, less what it gave to the teams below it."""
        return self._shares.get((team_id, tier_id), 0)

    def teams_using(self, tier_id: str) -> set[str]:
        return {team for (team, tier), units in self._direct_use.items() if tier == tier_id and units}

    def share_used(self, team_id: str, tier_id: str) -> int:
        return self._guarantor_use.get((self.guarantor(team_id, tier_id), tier_id), 0)

    def within_guarantee(self, team_id: str, tier_id: str, units: int, *, ahead: bool = False) -> bool:
        used = self.share_used(team_id, tier_id)
        if ahead:
            used += self._planned_share.get((self.guarantor(team_id, tier_id), tier_id), 0)
        return used + units <= self.share(team_id, tier_id)

    def use(self, team_id: str, tier_id: str) -> int:
        """What the team and all below it hold or are to get by a reserved start: what the order goes by."""
        key = (team_id, tier_id)
        return self._subtree_use.get(key, 0) + self._planned.get(key, 0)

    def direct_use(self, team_id: str, tier_id: str) -> int:
        """The same without the teams below it."""
        key = (team_id, tier_id)
        return self._direct_use.get(key, 0) + self._planned_direct.get(key, 0)

    def guaranteed(self, team_id: str, tier_id: str) -> int:
        return self._guaranteed.get((team_id, tier_id), 0)

    def limit(self, team_id: str, tier_id: str) -> int | None:
        return self._limits.get((team_id, tier_id))

    def weight(self, team_id: str, tier_id: str) -> int:
        return self._weights.get((team_id, tier_id), 1)

    def parent(self, team_id: str) -> str | None:
        path = self.path(team_id)
        return path[-2] if len(path) > 1 else None

    def limit_hits(
        self, team_id: str, tier_id: str, units: int, *, ahead: bool = False
    ) -> tuple[LimitHit, ...]:
        """Every limit on the way up that `units` more of the tier would break, nearest team first."""
        hits = []
        for key, limit in self._limits_on(team_id, tier_id):
            used = self._subtree_use.get(key, 0) + (self._planned.get(key, 0) if ahead else 0)
            if used + units > limit:
                hits.append(LimitHit(*key, used, limit, units))
        return tuple(hits)

    def _limits_on(self, team_id: str, tier_id: str) -> list[tuple[tuple[str, str | None], int]]:
        """Of each ancestor for the tier and over all tiers, nearest team first."""
        if (team_id, tier_id) not in self._limits_up:
            keys = [(team, scope) for team in reversed(self.path(team_id)) for scope in (tier_id, None)]
            found = [(key, self._limits[key]) for key in keys if key in self._limits]
            self._limits_up[team_id, tier_id] = found
        return self._limits_up[team_id, tier_id]

    def hits(
        self, team_id: str, tier_id: str, units: int, *, bound: bool, ahead: bool = False, kind: str = ""
    ) -> tuple[LimitHit, ...]:
        """All that keeps the start out: limits, the guarantee if it is `bound` to it, what others do not lend.

        `ahead`: counting reserved starts as if they held what they are to get. `kind`: so that head-room counts.
        """
        key = (team_id, tier_id, units, bound, ahead, kind)
        if key not in self._answers:
            found = self._all_hits(team_id, tier_id, units, bound=bound, ahead=ahead)
            self._answers[key] = found + self._headroom_hits(team_id, tier_id, units, kind, ahead=ahead)
        return self._answers[key]

    def _headroom_hits(
        self, team_id: str, tier_id: str, units: int, kind: str, *, ahead: bool
    ) -> tuple[LimitHit, ...]:
        room = self.headroom_left(tier_id, kind)
        if room is None or units <= room or self.within_guarantee(team_id, tier_id, units, ahead=ahead):
            return ()
        used = self._other_use[tier_id]
        return (LimitHit("", tier_id, used, used + room, units, HEADROOM),)

    def headroom(self, tier_id: str) -> int:
        """Units of the tier that are kept free for inference, rounded down."""
        return self._headroom.get(tier_id, 0)

    def headroom_left(self, tier_id: str, kind: str) -> int | None:
        """What borrowed work of the kind may still take beside it; None: as much as there is."""
        if kind in ("", INFERENCE) or not self.headroom(tier_id):
            return None
        return self.capacity.get(tier_id, 0) - self.headroom(tier_id) - self._other_use[tier_id]

    def _all_hits(
        self, team_id: str, tier_id: str, units: int, *, bound: bool, ahead: bool
    ) -> tuple[LimitHit, ...]:
        hits = self.limit_hits(team_id, tier_id, units, ahead=ahead)
        is_within = self.within_guarantee(team_id, tier_id, units, ahead=ahead)
        if bound:
            hits += self._guarantee_hits(team_id, tier_id, units, is_within)
        if not is_within and tier_id in self._keeping:
            grows = self._raise_claims(team_id, tier_id, units, dry=True)
            used, capacity = self._claimed[tier_id], self.capacity.get(tier_id, 0)
            if grows and used + grows > capacity:
                hits += (LimitHit("", tier_id, used, capacity, grows, LENDING),)
        return hits

    def _guarantee_hits(
        self, team_id: str, tier_id: str, units: int, is_within: bool
    ) -> tuple[LimitHit, ...]:
        if not is_within:
            giver = self.guarantor(team_id, tier_id)
            used, share = self.share_used(team_id, tier_id), self.share(team_id, tier_id)
            return (LimitHit(giver, tier_id, used, share, units, GUARANTEE),)
        hits = []
        for ancestor in reversed(self.path(team_id)):
            guaranteed, used = (
                self._guaranteed.get((ancestor, tier_id)),
                self._bound_use.get((ancestor, tier_id), 0),
            )
            if guaranteed is not None and used + units > guaranteed:
                hits.append(LimitHit(ancestor, tier_id, used, guaranteed, units, GUARANTEE))
        return tuple(hits)

    def lend_room(self, tier_id: str, kind: str = "") -> int | None:
        """What may still be borrowed of the tier beside all that is kept back; None: nobody keeps any."""
        rooms = [self.headroom_left(tier_id, kind)]
        if tier_id in self._keeping:
            rooms.append(self.capacity.get(tier_id, 0) - self._claimed[tier_id])
        return min((room for room in rooms if room is not None), default=None)

    def limit_room(self, team_id: str, tier_id: str) -> int | None:
        """How many units more every limit on the way up leaves; None without any limit."""
        rooms = [
            self._limits[ancestor, scope] - self._subtree_use.get((ancestor, scope), 0)
            for ancestor in self.path(team_id)
            for scope in (tier_id, None)
            if (ancestor, scope) in self._limits
        ]
        return min(rooms) if rooms else None

    def total_room(self, team_id: str) -> int | None:
        """The same for the limits over all tiers alone."""
        rooms = [
            self._limits[ancestor, None] - self._subtree_use.get((ancestor, None), 0)
            for ancestor in self.path(team_id)
            if (ancestor, None) in self._limits
        ]
        return min(rooms) if rooms else None

    def book_live(self, live: Live, *, is_surplus: bool = False, gone: bool = False) -> None:
        """Count what runs; `gone`: it leaves."""
        is_floor = live.kind == INFERENCE and not self._policy.inference_may_borrow
        self.book(
            live.team_id,
            live.tier_id,
            -live.units if gone else live.units,
            preemptible=is_surplus or (live.preemptible and not is_floor),
            is_surplus=is_surplus,
            kind=live.kind,
        )

    def book(
        self,
        team_id: str,
        tier_id: str,
        units: int,
        *,
        preemptible: bool = True,
        is_surplus: bool = False,
        kind: str = "",
    ) -> None:
        self._answers.clear()
        for ancestor in self.path(team_id):
            self._subtree_use[ancestor, tier_id] += units
            self._subtree_use[ancestor, None] += units
            if not preemptible:
                self._bound_use[ancestor, tier_id] += units
        self._direct_use[team_id, tier_id] += units
        if not is_surplus:
            self._guarantor_use[self.guarantor(team_id, tier_id), tier_id] += units
        if kind != INFERENCE:
            self._other_use[tier_id] += units
        if tier_id in self._keeping:
            self._raise_claims(team_id, tier_id, units)

    def plan_ahead(self, team_id: str, tier_id: str, units: int) -> None:
        """Count a reserved start; negative units take it back."""
        self._answers.clear()
        for ancestor in self.path(team_id):
            self._planned[ancestor, tier_id] += units
            self._planned[ancestor, None] += units
        self._planned_direct[team_id, tier_id] += units
        self._planned_share[self.guarantor(team_id, tier_id), tier_id] += units

    def forget_plans(self) -> None:
        self._answers.clear()
        for planned in (self._planned, self._planned_direct, self._planned_share):
            planned.clear()

    def _keep_back(self) -> None:
        deepest_first = sorted(self._kept_back, key=lambda key: (-len(self.path(key[0])), key))
        for team_id, tier_id in deepest_first:
            kept, below = self._kept_back[team_id, tier_id], self._claims[team_id, tier_id]
            self._kept[team_id, tier_id] = kept
            parent = self.parent(team_id)
            if kept <= below:
                continue
            if parent is None:
                self._claimed[tier_id] += kept - below
            else:
                self._raise_claims(parent, tier_id, kept - below)

    def _raise_claims(self, team_id: str, tier_id: str, units: int, *, dry: bool = False) -> int:
        """By how much Σ claimed of the roots grows when the team takes `units` more."""
        for ancestor in reversed(self.path(team_id)):
            key = (ancestor, tier_id)
            kept, below = self._kept.get(key, 0), self._claims.get(key, 0)
            if not dry:
                self._claims[key] = below + units
            units = max(kept, below + units) - max(kept, below)
            if not units:
                return 0
        if not dry:
            self._claimed[tier_id] += units
        return units

    def counts_against(self, live: Live, hit: LimitHit) -> bool:
        if hit.rule == GUARANTEE:
            return live.tier_id == hit.tier_id and self.guarantor(live.team_id, live.tier_id) == hit.team_id
        if hit.rule == HEADROOM:
            return live.tier_id == hit.tier_id and live.kind != INFERENCE
        return hit.tier_id in (None, live.tier_id) and hit.team_id in self.path(live.team_id)

    def oversold(self) -> tuple[tuple[str, int, int], ...]:
        """(tier, guaranteed to all companies, units there are) where more is guaranteed than there is."""
        promised: dict[str, int] = defaultdict(int)
        for (team_id, tier_id), units in self._guaranteed.items():
            if tier_id is not None and self.parent(team_id) is None:
                promised[tier_id] += units
        found = (
            (tier_id, units, self.capacity.get(tier_id, 0)) for tier_id, units in sorted(promised.items())
        )
        return tuple(row for row in found if row[1] > row[2])

    def _own_shares(self) -> dict[tuple[str, str], int]:
        shares = {(team, tier): units for (team, tier), units in self._guaranteed.items() if tier is not None}
        for (team_id, tier_id), units in self._guaranteed.items():
            if tier_id is None:
                continue
            above = (a for a in reversed(self.path(team_id)[:-1]) if (a, tier_id) in self._guaranteed)
            giver = next(above, None)
            if giver is not None:
                shares[giver, tier_id] -= units
        return {key: max(0, units) for key, units in shares.items()}


class Bands:
    """What the grants of bands still leave. A start counts at every grant on the way up that covers its band."""

    def __init__(self, tree: QuotaTree, snapshot: Snapshot) -> None:
        self._tree = tree
        self._grants: dict[str, list[BandGrant]] = defaultdict(list)
        for grant in sorted(snapshot.band_grants, key=lambda grant: (grant.team_id, grant.band, grant.cap)):
            self._grants[grant.team_id].append(grant)
        self._used: dict[BandGrant, int] = defaultdict(int)
        for live in snapshot.live:
            self.book(live.team_id, live.band, live.units)

    def allowed(self, team_id: str, band: int, units: int) -> bool:
        """Some grant covers the band, and all that do have room."""
        covering = self._covering(team_id, band)
        return bool(covering) and all(self._used[grant] + units <= grant.cap for grant in covering)

    def book(self, team_id: str, band: int, units: int) -> None:
        for grant in self._covering(team_id, band):
            self._used[grant] += units

    def room(self, team_id: str, band: int) -> int | None:
        """What every grant that covers the band still leaves."""
        return min((grant.cap - self._used[grant] for grant in self._covering(team_id, band)), default=None)

    def _covering(self, team_id: str, band: int) -> list[BandGrant]:
        if band <= 0 or not self._grants:
            return []
        return [
            grant
            for ancestor in self._tree.path(team_id)
            for grant in self._grants.get(ancestor, ())
            if grant.band >= band
        ]


def _capacity(snapshot: Snapshot) -> dict[str, int]:
    """Units of each tier that are held, or ready on a node in service."""
    schedulable = {node.id for node in snapshot.nodes if node.schedulable}
    capacity: dict[str, int] = defaultdict(int)
    for gpu in snapshot.gpus:
        if not gpu.free or (gpu.ready and gpu.node_id in schedulable):
            capacity[gpu.tier_id] += gpu.units
    return dict(capacity)
