"""From intervals to offsets in one arena: a pure function."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """`size` bytes, needed from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


@dataclass(frozen=True)
class Plan:
    """`offsets` in bytes, in the intervals' order; `height` is the arena's size; no plan can be lower than
    `lower_bound`, the largest sum of sizes alive at one step."""

    offsets: tuple[int, ...]
    height: int
    lower_bound: int
    algorithm: str


def plan_arena(intervals: Sequence[Interval], alignment: int) -> Plan:
    """Greedy by size: the largest first, each at the lowest offset where nothing that lives with it lies.

    Sizes are rounded up to `alignment`, a power of two in bytes; so is every offset. Equal sizes go by first use,
    then by position, so that equal input gives an equal plan. Source: Pisarchyk and Lee, "Efficient Memory Management
    for Deep Neural Net Inference", 2020 (greedy by size for offset calculation).
    """
    sizes = [_round_up(interval.size, alignment) for interval in intervals]
    order = sorted(range(len(intervals)), key=lambda i: (-sizes[i], intervals[i].first, i))
    offsets = [0] * len(intervals)
    placed: list[int] = []  # by offset
    for index in order:
        if sizes[index]:
            offsets[index] = _lowest_gap(index, placed, intervals, sizes, offsets)
            _insert(placed, index, offsets)
    height = max((offsets[i] + sizes[i] for i in placed), default=0)
    return Plan(tuple(offsets), height, largest_live_sum(intervals, sizes), "greedy by size")


def largest_live_sum(intervals: Sequence[Interval], sizes: Sequence[int]) -> int:
    """The largest sum of `sizes` over the intervals that are alive at one step."""
    changes: dict[int, int] = {}
    for interval, size in zip(intervals, sizes, strict=True):
        changes[interval.first] = changes.get(interval.first, 0) + size
        changes[interval.last + 1] = changes.get(interval.last + 1, 0) - size
    live = largest = 0
    for step in sorted(changes):
        live += changes[step]
        largest = max(largest, live)
    return largest


def _lowest_gap(
    index: int, placed: Sequence[int], intervals: Sequence[Interval], sizes: Sequence[int], offsets: Sequence[int]
) -> int:
    mine, offset = intervals[index], 0
    for other in placed:
        theirs = intervals[other]
        if theirs.first <= mine.last and mine.first <= theirs.last:
            if offsets[other] - offset >= sizes[index]:
                break
            offset = max(offset, offsets[other] + sizes[other])
    return offset


def _insert(placed: list[int], index: int, offsets: Sequence[int]) -> None:
    low, high = 0, len(placed)
    while low < high:
        middle = (low + high) // 2
        if offsets[placed[middle]] <= offsets[index]:
            low = middle + 1
        else:
            high = middle
    placed.insert(low, index)


def _round_up(size: int, alignment: int) -> int:
    return (size + alignment - 1) // alignment * alignment
