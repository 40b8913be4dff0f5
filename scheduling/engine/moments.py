"""What a tier's timeline keeps of its answers, within a bound."""

import numpy as np

from scheduling.engine.placement import Ints

_KEPT_NUMBERS = 1 << 21


class Moments:
    """What ends give back less what reservations take, at the moments that were asked for: the search asks again."""

    def __init__(self, size: int) -> None:
        self._most = max(1, _KEPT_NUMBERS // (3 * max(1, size)))
        self._place: dict[int, int] = {}
        self._times: Ints = np.zeros(0, dtype=np.int64)  # (places,)
        self._free: Ints = np.zeros((0, 3, size), dtype=np.int64)  # (places, 3, tier nodes)

    def get(self, time_us: int) -> Ints | None:
        place = self._place.get(time_us)
        return None if place is None else self._free[place]

    def put(self, time_us: int, free: Ints) -> None:
        count = len(self._place)
        if count == self._most:
            self.forget()
            count = 0
        if count == len(self._times):
            more = min(self._most, max(16, 2 * count)) - count
            self._times = np.concatenate([self._times, np.zeros(more, dtype=np.int64)])
            self._free = np.concatenate([self._free, np.zeros((more, *free.shape), dtype=np.int64)])
        self._place[time_us] = count
        self._times[count], self._free[count] = time_us, free

    def shift(self, from_us: int, until_us: int, rows: Ints, amounts: Ints) -> None:
        """Adds (3, rows) to these rows of all moments from then to before then."""
        times = self._times[: len(self._place)]
        for place in np.flatnonzero((from_us <= times) & (times < until_us)).tolist():
            self._free[place][:, rows] += amounts

    def forget(self) -> None:
        self._place.clear()
