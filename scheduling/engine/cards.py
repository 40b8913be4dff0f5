"""Cards that are listed whole and also in MIG instances, each a GPU of its own tier: who takes one shuts the other."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scheduling.engine.machines import TierNodes
from scheduling.engine.snapshot import Gpu


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where a GPU stands in its tier."""

    tier: TierNodes
    row: int
    column: int

    @property
    def is_held(self) -> bool:
        return bool(self.tier.held[self.row, self.column])

    def list_as(self, *, shut: bool) -> None:
        if self.tier.exists[self.row, self.column] == shut:
            self.tier.list_card(self.row, self.column, shut=shut)


class CutCards:
    """The cards of the snapshot that can be held in two ways; hardly a fleet has any."""

    def __init__(
        self, gpus: Iterable[Gpu], tiers: Mapping[str, TierNodes], node_index: dict[str, int]
    ) -> None:
        by_card: dict[tuple[int, str], tuple[list[_Spot], list[_Spot]]] = defaultdict(lambda: ([], []))
        for gpu in gpus:
            tier, node = tiers[gpu.tier_id], node_index[gpu.node_id]
            row = tier.row_of[node]
            spot = _Spot(tier, row, tier.gpus[row].index(gpu))
            by_card[node, gpu.card or ""][gpu.is_instance].append(spot)
        self._on: dict[int, list[tuple[list[_Spot], list[_Spot]]]] = defaultdict(list)
        for (node, _card), both_ways in by_card.items():
            if all(both_ways):
                self._on[node].append(both_ways)
        for node in self._on:
            self.follow(node)

    def follow(self, node: int) -> None:
        """Something on the node was taken or left."""
        for ways in self._on.get(node, ()):
            held = [any(spot.is_held for spot in way) for way in ways]
            for way, others_held in zip(ways, reversed(held), strict=True):
                for spot in way:
                    spot.list_as(shut=others_held)
