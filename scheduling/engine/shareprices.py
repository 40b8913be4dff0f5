"""What a part of a GPU is worth: dual prices of the shares that are asked for.

The question "how few GPUs hold all shares of the mix?" is a cutting-stock problem. Its linear relaxation has a
price for each share: what one more share of that size costs in GPUs. A share of 810 thousandths may be worth a
whole GPU, because nothing that is asked for fits beside it, while 100 thousandths are worth nothing, because
they fit into what others leave. The prices make free parts comparable: a part is worth the best shares it holds.

Solved by column generation (Gilmore and Gomory): a revised simplex over patterns, each new pattern the best fill
of one GPU at the present prices.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from scheduling.engine.snapshot import WHOLE

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_TOLERANCE = 1e-9
_TURNS_PER_SIZE = 60  # far more than ever seen; what is left then is scaled to be feasible


def best_fill(sizes: Ints, prices: Floats, capacity: int = WHOLE) -> tuple[Floats, Ints]:
    """The most that shares are worth together in 0..capacity slots, and the last share of each such fill.

    An unbounded knapsack by dynamic programming. The last share is an index into `sizes`, or -1 for none.
    """
    value = np.zeros(capacity + 1)  # (slots,)
    last = np.full(capacity + 1, -1, dtype=np.int64)  # (slots,)
    useful = np.flatnonzero((prices > _TOLERANCE) & (sizes <= capacity))
    if useful.size == 0:
        return value, last
    useful = useful[np.argsort(sizes[useful], kind="stable")]
    size, price = sizes[useful], prices[useful]
    fitting = np.searchsorted(size, np.arange(capacity + 1), side="right")  # (slots,)
    for slots in range(int(size[0]), capacity + 1):
        gains = value[slots - size[: fitting[slots]]] + price[: fitting[slots]]
        best = int(gains.argmax())
        if gains[best] > value[slots - 1] + _TOLERANCE:
            value[slots], last[slots] = gains[best], useful[best]
        else:
            value[slots] = value[slots - 1]
    return value, last


def share_prices(sizes: Sequence[int], counts: Sequence[float], capacity: int = WHOLE) -> Floats:
    """The price in GPUs of one share of each size, at most 1 for any set of shares that one GPU holds."""
    if not sizes:
        return np.zeros(0)
    unit = math.gcd(capacity, *sizes)  # multiples of 10 make a tenth of the work
    size = np.array(sizes, dtype=np.int64) // unit  # (sizes,)
    room = capacity // unit
    simplex = _Simplex(size, np.array(counts, dtype=np.float64), room)
    for _ in range(_TURNS_PER_SIZE * len(sizes)):
        prices = simplex.prices()
        lowest = int(prices.argmin())
        if prices[lowest] < -_TOLERANCE:
            simplex.enter_surplus(lowest)
            continue
        value, last = best_fill(size, prices, room)
        if value[room] <= 1 + _TOLERANCE:
            break
        simplex.enter(_pattern(size, last, value, room), 1.0)
    prices = np.maximum(simplex.prices(), 0.0)
    most = best_fill(size, prices, room)[0][room]
    feasible: Floats = np.round(prices / max(most, 1.0), 9)
    return feasible


def _pattern(size: Ints, last: Ints, value: Floats, room: int) -> Floats:
    """Read back how often each share is in the best fill."""
    pattern = np.zeros(len(size))  # (sizes,)
    slots = room
    while slots > 0:
        if last[slots] < 0:
            slots -= 1
            continue
        pattern[last[slots]] += 1
        slots -= int(size[last[slots]])
    return pattern


class _Simplex:
    """min number of GPUs such that the patterns hold at least `counts` of each share; one column at a time."""

    def __init__(self, size: Ints, counts: Floats, room: int) -> None:
        alike = (room // size).astype(np.float64)  # (sizes,) a GPU full of one size: a first basis
        self.inverse: Floats = np.diag(1.0 / alike)  # (sizes, sizes)
        # Slightly unlike counts: without them many vertices coincide, and the simplex may stand still.
        self.amounts: Floats = self.inverse @ (counts * (1.0 + 1e-7 * np.arange(1, len(size) + 1)))
        self.costs: Floats = np.ones(len(size))  # (sizes,) of the columns in the basis

    def prices(self) -> Floats:
        prices: Floats = self.costs @ self.inverse
        return prices

    def enter_surplus(self, row: int) -> None:
        column = np.zeros(len(self.costs))
        column[row] = -1.0
        self.enter(column, 0.0)

    def enter(self, column: Floats, cost: float) -> None:
        direction = self.inverse @ column  # (sizes,)
        ratios = np.full(len(direction), np.inf)
        leaves = direction > _TOLERANCE
        ratios[leaves] = self.amounts[leaves] / direction[leaves]
        row = int(ratios.argmin())
        self.inverse[row] /= direction[row]
        self.amounts[row] = ratios[row]
        others = np.arange(len(direction)) != row
        self.inverse[others] -= np.outer(direction[others], self.inverse[row])
        self.amounts[others] -= direction[others] * self.amounts[row]
        self.costs[row] = cost
