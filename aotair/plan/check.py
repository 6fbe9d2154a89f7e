"""Whether a plan is right: an independent proof that nothing alive at the same time shares a byte."""

import heapq
from collections.abc import Sequence

from .interval import Interval
from .search.arena import Plan


def violations(intervals: Sequence[Interval], plan: Plan, alignment: int) -> list[str]:
    """Every rule that `plan` breaks, in words; an empty list is the proof."""
    if len(plan.offsets) != len(intervals):
        return [f"{len(plan.offsets)} offsets for {len(intervals)} intervals"]
    found = []
    for i, (interval, offset) in enumerate(zip(intervals, plan.offsets)):
        if offset < 0 or offset % alignment:
            found.append(f"interval {i} lies at {offset}, which {alignment} does not divide")
        if offset % interval.alignment:
            found.append(f"interval {i} lies at {offset}, which its own {interval.alignment} does not divide")
        if interval.fixed not in (None, offset):
            found.append(f"interval {i} lies at {offset}, and has to lie at {interval.fixed}")
        if interval.size and offset + interval.size > plan.height:
            found.append(f"interval {i} ends at {offset + interval.size}, above the height {plan.height}")
    return found + [f"intervals {a} and {b} overlap" for a, b in _overlaps(intervals, plan.offsets)]


def _overlaps(intervals: Sequence[Interval], offsets: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs that share a byte at some step, found by walking through time with the set of the living."""
    found: list[tuple[int, int]] = []
    living: set[int] = set()
    deaths: list[tuple[int, int]] = []
    for i in sorted((i for i, item in enumerate(intervals) if item.size), key=lambda i: intervals[i].first):
        while deaths and deaths[0][0] < intervals[i].first:
            living.discard(heapq.heappop(deaths)[1])
        low, high = offsets[i], offsets[i] + intervals[i].size
        found += [(j, i) for j in sorted(living) if offsets[j] < high and low < offsets[j] + intervals[j].size]
        living.add(i)
        heapq.heappush(deaths, (intervals[i].last, i))
    return found
