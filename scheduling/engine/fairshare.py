"""The quota tree: who uses what, what is guaranteed to whom, which limits a start would break."""

from collections import defaultdict
from dataclasses import dataclass

from scheduling.engine.snapshot import Live, Snapshot

NO_GUARANTEE = 1 << 62  # sorts teams without a guarantee behind all others


@dataclass(frozen=True, slots=True)
class LimitHit:
    """One ancestor whose limit the start would break. `tier_id` None: its limit over all tiers."""

    team_id: str
    tier_id: str | None
    used: int
    limit: int
    asked: int


class QuotaTree:
    """Counts what is in use while the pass books its starts.

    A limit counts the use of the whole subtree and is checked at every ancestor. A guarantee belongs to the
    nearest team, the asking team itself first, that has a quota for the tier (its *guarantor*), less what
    that team's own descendants with a quota were given of it: so no descendant's guarantee can be used up by
    its siblings. A team for which nobody on the way up has one has a guarantee of nothing.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._paths = {team.id: team.path for team in snapshot.teams}
        self._limits = {(q.team_id, q.tier_id): q.limit for q in snapshot.quotas if q.limit is not None}
        self._guaranteed = {
            (q.team_id, q.tier_id): q.guaranteed for q in snapshot.quotas if q.tier_id is not None
        }
        self._shares = self._own_shares()
        self._guarantors: dict[tuple[str, str], str] = {}
        self._subtree_use: dict[tuple[str, str | None], int] = defaultdict(int)
        self._guarantor_use: dict[tuple[str, str], int] = defaultdict(int)
        for live in snapshot.live:
            self.book(live.team_id, live.tier_id, live.units)

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

    def share_used(self, team_id: str, tier_id: str) -> int:
        return self._guarantor_use.get((self.guarantor(team_id, tier_id), tier_id), 0)

    def within_guarantee(self, team_id: str, tier_id: str, units: int) -> bool:
        return self.share_used(team_id, tier_id) + units <= self.share(team_id, tier_id)

    def deprivation(self, team_id: str, tier_id: str) -> tuple[int, int, int]:
        """Smaller is more deprived: use per guarantee in millionths, that use itself, the team's own use."""
        share = self.share(team_id, tier_id)
        used = self.share_used(team_id, tier_id)
        ratio = used * 1_000_000 // share if share > 0 else NO_GUARANTEE
        return (ratio, used, self._subtree_use.get((team_id, tier_id), 0))

    def limit_hits(self, team_id: str, tier_id: str, units: int) -> tuple[LimitHit, ...]:
        """Every limit on the way up that `units` more of the tier would break, nearest team first."""
        hits = []
        for ancestor in reversed(self.path(team_id)):
            for scope in (tier_id, None):
                limit = self._limits.get((ancestor, scope))
                used = self._subtree_use.get((ancestor, scope), 0)
                if limit is not None and used + units > limit:
                    hits.append(LimitHit(ancestor, scope, used, limit, units))
        return tuple(hits)

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

    def book(self, team_id: str, tier_id: str, units: int) -> None:
        for ancestor in self.path(team_id):
            self._subtree_use[ancestor, tier_id] += units
            self._subtree_use[ancestor, None] += units
        self._guarantor_use[self.guarantor(team_id, tier_id), tier_id] += units

    def counts_against(self, live: Live, hit: LimitHit) -> bool:
        return hit.tier_id in (None, live.tier_id) and hit.team_id in self.path(live.team_id)

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
