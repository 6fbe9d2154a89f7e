"""Whether intervals with fixed offsets can lie where they must."""

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence

from ..interval import Interval


def refuse_impossible(intervals: Sequence[Interval], alignment: int) -> None:
    """Raise ValueError where a fixed offset is not aligned, or where two fixed intervals would share a byte."""
    fixed = [i for i, item in enumerate(intervals) if item.fixed is not None]
    for i in fixed:
        needed = max(alignment, intervals[i].alignment)
        if intervals[i].fixed < 0 or intervals[i].fixed % needed:
            raise ValueError(f"interval {i} is fixed at {intervals[i].fixed}, which {needed} does not divide")
    living: list[tuple[int, int]] = []  # offset and number; they lie apart, or we would have raised
    deaths: list[tuple[int, int, int]] = []
    for i in sorted((i for i in fixed if intervals[i].size), key=lambda i: intervals[i].first):
        item = intervals[i]
        while deaths and deaths[0][0] < item.first:
            living.remove(heapq.heappop(deaths)[1:])
        where = bisect_left(living, (item.fixed, i))
        for offset, j in living[max(0, where - 1) : where + 1]:
            if offset < item.fixed + item.size and item.fixed < offset + intervals[j].size:
                raise ValueError(f"intervals {j} and {i} are fixed where they overlap: {intervals[j]} and {item}")
        insort(living, (item.fixed, i))
        heapq.heappush(deaths, (item.last, item.fixed, i))
