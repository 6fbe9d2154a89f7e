"""Search for a plan of a given height, from the lowest offset up.

Source of the method: Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning",
ASPLOS 2023: every plan can be pushed down to one in which intervals, taken by offset, lie each on the highest of those
below it; and where one would fit under another, it goes there first.
"""

from collections.abc import Sequence

import numpy as np

from .sections import Sections

ORDERS = (
    # What to try first where several lie equally low: what is long, what sits where most is alive, what is large.
    lambda size, length, crowd: (-crowd, -size * length, -length),
    lambda size, length, crowd: (-length, -size * length, -crowd),
    lambda size, length, crowd: (-crowd, -length, -size * length),
    lambda size, length, crowd: (-size, -length, -crowd),
)


def search_orders(
    sizes: Sequence[int], lengths: Sequence[int], parts: Sections, height: int, order: int, steps: int
) -> list[int] | None:
    """Offsets of a plan of at most `height`, or None where `steps` steps found none."""
    crowds = parts.sums(sizes)
    keys = [
        ORDERS[order](size, length, max(crowds[low:high], default=0))
        for size, length, low, high in zip(sizes, lengths, parts.low, parts.high)
    ]
    rank = [0] * len(sizes)
    for number, index in enumerate(sorted(range(len(sizes)), key=keys.__getitem__)):
        rank[index] = number
    return _Search(sizes, parts, height, rank).run(steps)


class _Search:
    """`floor`: by section, the top of what is placed; `rest`: the sum of what is not."""

    def __init__(self, sizes: Sequence[int], parts: Sections, height: int, rank: Sequence[int]):
        self._low, self._high, self._height, self._top = parts.low, parts.high, height, height + 1
        self._sizes, self._rank = np.array(sizes, np.int64), np.array(rank, np.int64)
        self._floor, self._rest = np.zeros(parts.count, np.int64), np.array(parts.sums(sizes), np.int64)
        self._open, self._left = self._sizes > 0, sum(size > 0 for size in sizes)
        self._offsets = [0] * len(sizes)
        lengths = np.subtract(parts.high, parts.low)
        self._starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
        self._cells = np.concatenate([np.arange(low, high) for low, high in zip(parts.low, parts.high)])
        self._members = np.repeat(np.arange(len(sizes)), lengths)[np.argsort(self._cells, kind="stable")]
        self._firsts = np.searchsorted(np.sort(self._cells), np.arange(parts.count))

    def run(self, steps: int) -> list[int] | None:
        """Depth first: a stack of what is left to try, and of what has to be put back."""
        choices, undo = [self._choices(0, -1)], []
        while choices:
            if not self._left:
                return self._offsets
            if choices[-1]:
                steps -= 1
                if steps < 0:
                    return None
                offset, index = choices[-1].pop()
                undo.append(self._place(offset, index))
                choices.append(self._choices(offset, self._rank[index]) if self._left else [])
            else:
                choices.pop()
                if undo:
                    self._put_back(*undo.pop())
        return None

    def _choices(self, least: int, rank: int) -> list[tuple[int, int]]:
        """What may come next and where, the best last; nothing where the rest cannot fit.

        What lies at equal offsets is placed in the order of rank, lest all orders are tried.
        """
        offsets = np.maximum(np.maximum.reduceat(self._floor[self._cells], self._starts), least)
        offsets[~self._open] = self._top
        ends = offsets + self._sizes
        if ends[self._open].max() > self._height:
            return []
        base = np.minimum.reduceat(offsets[self._members], self._firsts)
        if ((base + self._rest > self._height) & (self._rest > 0)).any():
            return []
        fitting = np.flatnonzero(offsets < min(ends.min(), self._top))
        fitting = fitting[(offsets[fitting] > least) | (self._rank[fitting] > rank)]
        order = np.lexsort((-self._rank[fitting], -offsets[fitting]))
        return list(zip(offsets[fitting][order].tolist(), fitting[order].tolist()))

    def _place(self, offset: int, index: int) -> tuple[int, np.ndarray]:
        low, high, size = self._low[index], self._high[index], self._sizes[index]
        before = self._floor[low:high].copy()
        self._floor[low:high] = offset + size
        self._rest[low:high] -= size
        self._open[index] = False
        self._left -= 1
        self._offsets[index] = offset
        return index, before

    def _put_back(self, index: int, before: np.ndarray) -> None:
        low, high = self._low[index], self._high[index]
        self._floor[low:high] = before
        self._rest[low:high] += self._sizes[index]
        self._open[index] = True
        self._left += 1
