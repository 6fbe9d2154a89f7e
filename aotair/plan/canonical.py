"""Search for a plan of a given height, from the lowest offset up.

Source of the method: Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning",
ASPLOS 2023: every plan can be pushed down to one in which intervals, taken by offset, lie each on the highest of those
below it; and where one would fit under another, it goes there first.
"""

from collections.abc import Sequence

from .sections import Sections

ORDERS = (
    # What to try first where several lie equally low: what is long, what sits where most is alive, what is large.
    lambda size, length, crowd: (-crowd, -size * length, -length),
    lambda size, length, crowd: (-length, -size * length, -crowd),
    lambda size, length, crowd: (-crowd, -length, -size * length),
    lambda size, length, crowd: (-size, -length, -crowd),
)


def search(
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
    return _Search(sizes, parts, height, rank, crowds).run(steps)


class _Search:
    """`floor`: by section, the top of what is placed; `rest`: the sum of what is not."""

    def __init__(self, sizes: Sequence[int], parts: Sections, height: int, rank: Sequence[int], crowds: list[int]):
        self._sizes, self._low, self._high, self._height, self._rank = sizes, parts.low, parts.high, height, rank
        self._floor, self._rest = [0] * parts.count, list(crowds)
        self._open = [index for index, size in enumerate(sizes) if size]
        self._offsets = [0] * len(sizes)

    def run(self, steps: int) -> list[int] | None:
        """Depth first: a stack of what is left to try, and of what has to be put back."""
        choices, undo = [self._choices(0)], []
        while choices:
            if not self._open:
                return self._offsets
            if choices[-1]:
                steps -= 1
                if steps < 0:
                    return None
                undo.append(self._place(*choices[-1].pop()))
                choices.append(self._choices(self._offsets[undo[-1][0]]) if self._open else [])
            else:
                choices.pop()
                if undo:
                    self._put_back(*undo.pop())
        return None

    def _choices(self, least: int) -> list[tuple[int, int]]:
        """What may come next and where, the best last; nothing where the rest cannot fit."""
        floor, sizes, top = self._floor, self._sizes, self._height + 1
        base = [top] * len(floor)
        found = []
        lowest = top
        for index in self._open:
            low, high = self._low[index], self._high[index]
            offset = max(least, max(floor[low:high]))
            end = offset + sizes[index]
            if end > self._height:
                return []
            lowest = min(lowest, end)
            found.append((offset, index))
            for section in range(low, high):
                if offset < base[section]:
                    base[section] = offset
        if any(rest and start + rest > self._height for start, rest in zip(base, self._rest)):
            return []
        fitting = [(offset, index) for offset, index in found if offset < lowest]
        fitting.sort(key=lambda pair: (pair[0], self._rank[pair[1]]), reverse=True)
        return fitting

    def _place(self, offset: int, index: int) -> tuple[int, int, list[int]]:
        low, high, size = self._low[index], self._high[index], self._sizes[index]
        before, where = self._floor[low:high], self._open.index(index)
        self._floor[low:high] = [offset + size] * (high - low)
        for section in range(low, high):
            self._rest[section] -= size
        del self._open[where]
        self._offsets[index] = offset
        return index, where, before

    def _put_back(self, index: int, where: int, before: list[int]) -> None:
        low, high = self._low[index], self._high[index]
        self._floor[low:high] = before
        for section in range(low, high):
            self._rest[section] += self._sizes[index]
        self._open.insert(where, index)
