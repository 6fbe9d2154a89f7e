"""One interval after the other, each at the lowest offset where nothing that lives with it lies."""

from collections.abc import Iterator

import numpy as np

from .interval import Columns

# What to begin with. Source of the first: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
# Inference", 2020 (greedy by size for offset calculation).
ORDERS = {
    "greedy by size": lambda sizes, first, last: (first, -sizes),
    "greedy by first use": lambda sizes, first, last: (-sizes, first),
    "greedy by duration": lambda sizes, first, last: (-sizes, first - last),
    "greedy by area": lambda sizes, first, last: (first, -sizes * (last - first + 1)),
}


def place(items: Columns, order: np.ndarray) -> np.ndarray:
    """The offsets of intervals that are placed in this order, after those that are fixed."""
    sizes, first, last = items.sizes, items.first, items.last
    offsets = np.maximum(items.fixed, 0)
    kept = np.empty(len(sizes), np.int64)  # what is placed, by offset
    bound_to = np.flatnonzero((items.fixed >= 0) & (sizes > 0))
    count = len(bound_to)
    kept[:count] = bound_to[np.argsort(offsets[bound_to], kind="stable")]
    for index in order:
        if not sizes[index] or items.fixed[index] >= 0:
            continue
        placed = kept[:count]
        near = placed[(first[placed] <= last[index]) & (last[placed] >= first[index])]
        ends = offsets[near] + sizes[near]
        offsets[index] = _lowest_gap(offsets[near], ends, sizes[index], items.alignments[index])
        where = np.searchsorted(offsets[placed], offsets[index], side="right")
        kept[where + 1 : count + 1] = kept[where:count].copy()
        kept[where] = index
        count += 1
    return offsets


def place_again(items: Columns, order: np.ndarray, bound: int, rounds: int) -> Iterator[np.ndarray]:
    """Offsets, each time with what ended above `bound` before placed first; as often as `rounds`, or until nothing
    does."""
    for _ in range(rounds):
        offsets = place(items, order)
        yield offsets
        above = (offsets + items.sizes)[order] > bound
        if not above.any():
            return
        order = np.concatenate((order[above], order[~above]))


def order_of(name: str, items: Columns) -> np.ndarray:
    """The order of that name: ties go by position, so that equal input gives an equal plan."""
    return np.lexsort(ORDERS[name](items.sizes, items.first, items.last))


def _lowest_gap(starts: np.ndarray, ends: np.ndarray, size: int, alignment: int) -> int:
    """The lowest multiple of `alignment` with room above it; `starts` ascend."""
    if not len(starts):
        return 0
    floors = np.concatenate(([0], np.maximum.accumulate(ends)))
    floors = (floors + alignment - 1) & -alignment
    fits = np.flatnonzero(starts - floors[:-1] >= size)
    return int(floors[fits[0]] if len(fits) else floors[-1])
