"""Whether intervals with fixed offsets can lie where they must."""

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence

from ..interval import Interval


def refuse_impossible(intervals: Sequence[Interval], alignment: int) -> None:
    """Raise ValueError where a fixed offset is not aligned, or where two fixed intervals would share a byte."""
    fixed = {i: item.fixed for i, item in enumerate(intervals) if item.fixed is not None}
    for i, place in fixed.items():
        needed = max(alignment, intervals[i].alignment)
        if place < 0 or place % needed:
            raise ValueError(f"interval {i} is fixed at {place}, which {needed} does not divide")
    living: list[tuple[int, int]] = []  # offset and number; they lie apart, or we would have raised
    deaths: list[tuple[int, int, int]] = []
    for i in sorted((i for i in fixed if intervals[i].size), key=lambda i: intervals[i].first):
        item, place = intervals[i], fixed[i]
        while deaths and deaths[0][0] < item.first:
            living.remove(heapq.heappop(deaths)[1:])
        where = bisect_left(living, (place, i))
        for offset, j in living[max(0, where - 1) : where + 1]:
            if offset < place + item.size and place < offset + intervals[j].size:
                raise ValueError(f"intervals {j} and {i} are fixed where they overlap: {intervals[j]} and {item}")
        insort(living, (place, i))
        heapq.heappush(deaths, (item.last, place, i))
