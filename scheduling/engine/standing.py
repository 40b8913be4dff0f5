"""Where each team stands: its fair share of a tier, and how far a start would take it.

The capacity of a tier is divided down the tree: among the companies, then what a team got among its subteams
and its own work, level by level.
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from scheduling.engine.decisions import FairShare, Policy
from scheduling.engine.division import PPM, Claim, divide
from scheduling.engine.fairshare import QuotaTree
from scheduling.engine.snapshot import Usage

OWN_WORK = "/"  # added to a team's id: its own work, beside its subteams
NOTHING = 1 << 62  # the ratio of whoever may have nothing: behind all others
_LN2_PPM = 693_147


class Standing:
    """`wanted`: units asked for by waiting work, by (team, tier); only what could run on empty machines counts."""

    def __init__(
        self, tree: QuotaTree, wanted: dict[tuple[str, str], int], usage: Iterable[Usage], policy: Policy
    ) -> None:
        self._tree, self._policy = tree, policy
        self._wanted: dict[str, dict[str, int]] = defaultdict(dict)
        for (team_id, tier_id), units in wanted.items():
            self._wanted[tier_id][team_id] = units
        self._usage: dict[tuple[str, str], int] = defaultdict(int)
        for row in usage:
            self._usage[row.team_id + OWN_WORK, row.tier_id] += row.unit_s
            for ancestor in tree.path(row.team_id):
                self._usage[ancestor, row.tier_id] += row.unit_s
        # Now, before anything starts: later a started request would count as waiting and as use.
        self._allowed = {
            tier_id: _Division(tree, tier_id, asked).shares(self) for tier_id, asked in self._wanted.items()
        }

    def allowed(self, member: str, tier_id: str) -> int:
        """The larger of guarantee and fair share, within the limit. A member is a team's id, or with OWN_WORK."""
        return self._allowed.get(tier_id, {}).get(member, 0)

    def fair_shares(self) -> tuple[FairShare, ...]:
        """Of all teams that hold or want some of a tier that is waited for, by tier and team."""
        return tuple(
            FairShare(member, tier_id, units)
            for tier_id, found in sorted(self._allowed.items())
            for member, units in sorted(found.items())
            if not member.endswith(OWN_WORK)
        )

    def rank(self, member: str, tier_id: str, units: int) -> tuple[int, int]:
        """((use + units) ÷ allowed in millionths, use): the smaller, the more deprived."""
        use, allowed = self.use(member, tier_id), self.allowed(member, tier_id)
        after = use + units
        return after * PPM // allowed if allowed > 0 else NOTHING + after, use

    def use(self, member: str, tier_id: str) -> int:
        if member.endswith(OWN_WORK):
            return self._tree.direct_use(member.removesuffix(OWN_WORK), tier_id)
        return self._tree.use(member, tier_id)

    def divided(self, total: int, tier_id: str, claims: list[Claim]) -> dict[str, int]:
        return divide(total, claims, self._policy.usage_weight_ppm)

    def usage_ppm(self, member: str, tier_id: str, total: int) -> int:
        """Past use as part of what is divided: 1 for who has held all of it for ever.

        Who holds A for ever has A · half-life / ln 2 unit-seconds of decayed use.
        """
        whole = total * self._policy.usage_half_life_s
        return self._usage.get((member, tier_id), 0) * _LN2_PPM // whole if whole > 0 else 0


class _Division:
    """One tier's capacity, down the tree."""

    def __init__(self, tree: QuotaTree, tier_id: str, wanted: dict[str, int]) -> None:
        self._tree, self._tier_id = tree, tier_id
        self._asked = dict(wanted)
        self._children: dict[str, set[str]] = defaultdict(set)
        self._roots: set[str] = set()
        for team_id in self._asked.keys() | tree.teams_using(tier_id):
            self._asked[team_id] = self._asked.get(team_id, 0) + tree.direct_use(team_id, tier_id)
        for team_id in list(self._asked):
            path = tree.path(team_id)
            self._roots.add(path[0])
            for parent, child in pairwise(path):
                self._children[parent].add(child)
        self._claims: dict[str, Claim] = {}
        self._found: dict[str, int] = {}

    def shares(self, standing: Standing) -> dict[str, int]:
        self._share_out(
            standing, self._tree.capacity.get(self._tier_id, 0), [self._claim(r) for r in self._roots]
        )
        return self._found

    def _share_out(self, standing: Standing, total: int, claims: list[Claim]) -> None:
        used = [
            Claim(c.key, c.guaranteed, c.wanted, c.weight, standing.usage_ppm(c.key, self._tier_id, total))
            for c in claims
        ]
        got = standing.divided(total, self._tier_id, used)
        for claim in used:
            share = got.get(claim.key, 0)
            self._found[claim.key] = self._capped(claim.key, max(claim.guaranteed, share))
            if not claim.key.endswith(OWN_WORK):
                below = [self._claim(child) for child in self._children.get(claim.key, ())]
                self._share_out_below(standing, share, claim, below)

    def _share_out_below(self, standing: Standing, share: int, claim: Claim, below: list[Claim]) -> None:
        own = Claim(
            claim.key + OWN_WORK,
            self._tree.own_share(claim.key, self._tier_id),
            self._asked.get(claim.key, 0),
        )
        if below:
            self._share_out(standing, share, [*below, own])
        else:
            self._found[own.key] = self._found[claim.key]

    def _claim(self, team_id: str) -> Claim:
        if team_id not in self._claims:
            below = [self._claim(child) for child in self._children.get(team_id, ())]
            asked = self._asked.get(team_id, 0) + sum(claim.wanted for claim in below)
            guaranteed = self._tree.guaranteed(team_id, self._tier_id)
            self._claims[team_id] = Claim(
                team_id,
                max(guaranteed, sum(claim.guaranteed for claim in below)),
                self._capped(team_id, asked),
                self._tree.weight(team_id, self._tier_id),
            )
        return self._claims[team_id]

    def _capped(self, member: str, units: int) -> int:
        limit = self._tree.limit(member, self._tier_id)
        return units if limit is None else min(units, limit)
