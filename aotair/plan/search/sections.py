"""Time cut into sections: the largest sets of intervals that are alive together, in order."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..interval import Interval


@dataclass(frozen=True)
class Sections:
    """Interval i is alive in the sections `low[i]` to `high[i]`, the latter excluded; there are `count`.

    Two intervals meet exactly where they share a section: in an interval graph every clique is part of a largest one.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    count: int

    def sums(self, sizes: Sequence[int]) -> list[int]:
        """The sum of the sizes that are alive in each section."""
        changes = [0] * (self.count + 1)
        for low, high, size in zip(self.low, self.high, sizes, strict=True):
            changes[low] += size
            changes[high] -= size
        live, found = 0, []
        for change in changes[:-1]:
            live += change
            found.append(live)
        return found

    def members(self) -> list[list[int]]:
        """The intervals of each section."""
        found: list[list[int]] = [[] for _ in range(self.count)]
        for index, (low, high) in enumerate(zip(self.low, self.high)):
            for section in range(low, high):
                found[section].append(index)
        return found


def sections(intervals: Sequence[Interval]) -> Sections:
    """A section ends where an interval ends after one has begun."""
    events = sorted(
        [(item.first, 1, i) for i, item in enumerate(intervals)]
        + [(item.last + 1, 0, i) for i, item in enumerate(intervals)]
    )
    low, high, count, grown = [0] * len(intervals), [0] * len(intervals), 0, False
    for _, begins, index in events:
        if begins:
            low[index], grown = count, True
            continue
        count += grown
        high[index], grown = count, False
    return Sections(tuple(low), tuple(high), count)
