"""One interval after the other, each at the lowest offset where nothing that lives with it lies."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ..interval import Columns

# What to begin with. Source of the first: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
# Inference", 2020 (greedy by size for offset calculation).
ORDERS = {
    "greedy by size": lambda sizes, first, last: (first, -sizes),
    "greedy by first use": lambda sizes, first, last: (-sizes, first),
    "greedy by duration": lambda sizes, first, last: (-sizes, first - last),
    "greedy by area": lambda sizes, first, last: (first, -sizes * (last - first + 1)),
}

_SPAN = 4  # stretches of time


def place(items: Columns, order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The offsets of intervals that are placed in this order, after those that are fixed."""
    sizes, alignments = items.sizes.tolist(), items.alignments.tolist()
    offsets: npt.NDArray[np.int64] = np.maximum(items.fixed, 0)
    held = (items.fixed >= 0).tolist()
    placed = _Placed(items)
    for index in np.flatnonzero((items.fixed >= 0) & (items.sizes > 0)).tolist():
        placed.add(index)
    for index in order.tolist():
        if sizes[index] and not held[index]:
            near = placed.near(index)
            starts = offsets[near]
            ascending = starts.argsort()
            near, starts = near[ascending], starts[ascending]
            offsets[index] = _lowest_gap(starts, starts + items.sizes[near], sizes[index], alignments[index])
            placed.add(index)
    return offsets


class _Placed:
    """What is placed, listed by time, so that few have to be looked at to find what meets an interval."""

    def __init__(self, items: Columns):
        count = len(items.sizes)
        self._first, self._last = items.first, items.last
        # Equally many begin in each stretch of time; the last list has what spans many stretches.
        bounds = np.sort(items.first)[:: max(64, count // 256)][1:]
        self._low = np.searchsorted(bounds, items.first, side="right").tolist()
        self._high = np.searchsorted(bounds, items.last, side="right").tolist()
        self._lists = [np.empty(64, np.int64) for _ in range(len(bounds) + 2)]
        self._counts = [0] * len(self._lists)

    def _where(self, index: int) -> range:
        low, high = self._low[index], self._high[index]
        return range(low, high + 1) if high - low < _SPAN else range(len(self._lists) - 1, len(self._lists))

    def add(self, index: int) -> None:
        for one in self._where(index):
            count = self._counts[one]
            if count == len(self._lists[one]):
                self._lists[one] = np.resize(self._lists[one], 2 * count)
            self._lists[one][count] = index
            self._counts[one] += 1

    def near(self, index: int) -> npt.NDArray[np.int64]:
        """What shares a step with an interval; some perhaps more than once."""
        wanted = (*range(self._low[index], self._high[index] + 1), -1)
        found = np.concatenate([self._lists[one][: self._counts[one]] for one in wanted])
        meets = (self._first[found] <= self._last[index]) & (self._last[found] >= self._first[index])
        near: npt.NDArray[np.int64] = found[meets]
        return near


def place_again(
    items: Columns, order: npt.NDArray[np.int64], bound: int, rounds: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Offsets, each time with what ended above `bound` before placed first; as often as `rounds`, or until nothing
    does."""
    for _ in range(rounds):
        offsets = place(items, order)
        yield offsets
        above = (offsets + items.sizes)[order] > bound
        if not above.any():
            return
        order = np.concatenate((order[above], order[~above]))


def order_of(name: str, items: Columns) -> npt.NDArray[np.int64]:
    """The order of that name: ties go by position, so that equal input gives an equal plan."""
    return np.lexsort(ORDERS[name](items.sizes, items.first, items.last))


def _lowest_gap(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], size: int, alignment: int) -> int:
    """The lowest multiple of `alignment` with room above it; `starts` ascend."""
    if not len(starts):
        return 0
    floors = np.concatenate(([0], np.maximum.accumulate(ends)))
    floors = (floors + alignment - 1) & -alignment
    fits = np.flatnonzero(starts - floors[:-1] >= size)
    return int(floors[fits[0]] if len(fits) else floors[-1])
