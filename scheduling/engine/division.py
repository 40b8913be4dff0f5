"""How one amount is divided among siblings: guarantees first, then what is left by weight and past use.

Integers throughout, so that the same claims give the same shares on every machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduling.engine.snapshot import UNITS_PER_GPU

PPM = 1_000_000


@dataclass(frozen=True, slots=True)
class Claim:
    """`wanted`: what it holds and asks for, at most its limit. `usage_ppm`: past use, of all there is to divide."""

    key: str
    guaranteed: int
    wanted: int
    weight: int = 1
    usage_ppm: int = 0


def divide(total: int, claims: Sequence[Claim], usage_weight_ppm: int = PPM) -> dict[str, int]:
    """Each claim's share. Nobody gets more than wanted; a claim that wants nothing changes nobody's share."""
    claims = sorted((claim for claim in claims if claim.wanted > 0), key=lambda claim: claim.key)
    shares = _guarantees(total, claims)
    left = total - sum(shares.values())
    remainders: dict[str, int] = {}
    while left > 0:
        weighed = _weighed([c for c in claims if shares[c.key] < c.wanted], usage_weight_ppm)
        whole = sum(weight for _, weight in weighed)
        if not whole:
            break
        given, again = 0, False
        for claim, weight in weighed:
            missing = claim.wanted - shares[claim.key]
            offer, rest = divmod(left * weight, whole)
            if missing <= offer:
                part, remainders[claim.key] = missing, 0
                again = again or missing < offer
            else:  # whole GPUs only: what is left of them goes by largest remainder
                part = offer - offer % UNITS_PER_GPU
                remainders[claim.key] = ((offer - part) * whole + rest) * PPM // (whole * UNITS_PER_GPU)
            shares[claim.key] += part
            given += part
        left -= given
        if not again:
            break
    _leftovers(left, claims, shares, remainders)
    return shares


def _guarantees(total: int, claims: Sequence[Claim]) -> dict[str, int]:
    """What is guaranteed and wanted; in proportion, where the guarantees are more than there is."""
    asked = {claim.key: min(claim.guaranteed, claim.wanted) for claim in claims}
    promised = sum(asked.values())
    if promised <= total:
        return asked
    shares = {key: total * units // promised for key, units in asked.items()}
    by_remainder = sorted(asked, key=lambda key: (-(total * asked[key] % promised), key))
    for key in by_remainder[: total - sum(shares.values())]:
        shares[key] += 1
    return shares


def _weighed(claims: Sequence[Claim], usage_weight_ppm: int) -> list[tuple[Claim, int]]:
    """s = max(0, n + k·(n − u)) for each, in millionths; n is its part of the weights."""
    weights = sum(claim.weight for claim in claims)
    found = []
    for claim in claims:
        normal = claim.weight * PPM // weights if weights else 0
        weight = max(0, normal + usage_weight_ppm * (normal - claim.usage_ppm) // PPM) if normal else 0
        if weight:
            found.append((claim, weight))
    return found


def _leftovers(
    left: int, claims: Sequence[Claim], shares: dict[str, int], remainders: dict[str, int]
) -> None:
    """One GPU at a time to the largest remainder, then to the first by key (older teams have smaller ids)."""
    for claim in sorted(claims, key=lambda claim: (-remainders.get(claim.key, 0), claim.key)):
        part = min(left, UNITS_PER_GPU, claim.wanted - shares[claim.key])
        if claim.key in remainders and part > 0:
            shares[claim.key] += part
            left -= part
