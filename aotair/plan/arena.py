"""From intervals to offsets in one arena: a pure function. Several algorithms run, the lowest plan wins."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from . import canonical, greedy, packing
from .interval import Interval
from .sections import Sections, sections

__all__ = ["Interval", "Plan", "largest_live_sum", "plan_arena"]

_MOST = 1000  # intervals that the searches are tried on
_WORK = 15_000  # intervals that the canonical search looks at, for each order, at effort 1
_PACKING = 0.03  # deterministic seconds of CP-SAT, for each seed, at effort 1
_SEEDS = (0, 2)


@dataclass(frozen=True)
class Plan:
    """`offsets` in bytes, in the intervals' order; `height` is the arena's size; no plan can be lower than
    `lower_bound`, the largest sum of sizes alive at one step."""

    offsets: tuple[int, ...]
    height: int
    lower_bound: int
    algorithm: str


def plan_arena(intervals: Sequence[Interval], alignment: int, effort: float = 1.0) -> Plan:
    """The lowest plan that greedy placements in several orders find, or a search where these leave a gap.

    Sizes are rounded up to `alignment`, a power of two in bytes; so is every offset. `effort` bounds the searches by
    counted work, at 1 a second or so for each gap: the same intervals and effort give the same plan.
    """
    sizes = [_round_up(interval.size, alignment) for interval in intervals]
    bound = largest_live_sum(intervals, sizes)
    best = Plan((0,) * len(sizes), 0, 0, "greedy by size")
    for number, plan in enumerate(_plans(intervals, sizes, bound, effort)):
        if number == 0 or plan.height < best.height:
            best = plan
        if best.height == bound:
            break
    return best


def largest_live_sum(intervals: Sequence[Interval], sizes: Sequence[int]) -> int:
    """The largest sum of `sizes` over the intervals that are alive at one step."""
    return max(sections(intervals).sums(sizes), default=0)


def _plans(intervals: Sequence[Interval], sizes: Sequence[int], bound: int, effort: float) -> Iterator[Plan]:
    """One plan after the other; whoever asks stops at the bound."""
    arrays = [
        np.array(values, np.int64) for values in (sizes, [i.first for i in intervals], [i.last for i in intervals])
    ]
    height = math.inf
    for name in greedy.ORDERS:
        for offsets in greedy.place_again(*arrays, greedy.order_of(name, *arrays), bound, _rounds(len(sizes), effort)):
            plan = _plan(offsets.tolist(), sizes, bound, name)
            height = min(height, plan.height)
            yield plan
    if len(sizes) <= _MOST:
        yield from _searched(intervals, sizes, bound, height, effort)


def _rounds(count: int, effort: float) -> int:
    """How often a greedy order is mended: less often where there is much to place."""
    return max(1, min(50, round(effort * 10_000 / (count + 1))))


def _searched(
    intervals: Sequence[Interval], sizes: Sequence[int], bound: int, height: int, effort: float
) -> Iterator[Plan]:
    """Plans of the bound's height; then, between it and `height`, ever lower ones, until the gap is half a percent."""
    unit = math.gcd(*sizes)
    finder = _Finder([size // unit for size in sizes], [i.last - i.first + 1 for i in intervals], sections(intervals))
    low, high = bound // unit, height // unit
    for name, offsets in finder.plans(low, effort):
        yield _plan([offset * unit for offset in offsets], sizes, bound, name)
    while high - low > max(1, low // 200):  # half a percent
        middle = (low + high) // 2
        name, offsets = next(finder.plans(middle, effort, seeds=()), ("", None))
        if offsets is None:
            low = middle
            continue
        plan = _plan([offset * unit for offset in offsets], sizes, bound, name)
        high = plan.height // unit
        yield plan


@dataclass(frozen=True)
class _Finder:
    sizes: Sequence[int]
    lengths: Sequence[int]
    parts: Sections

    def plans(self, height: int, effort: float, seeds: Sequence[int] = _SEEDS) -> Iterator[tuple[str, list[int]]]:
        """Plans of at most `height`, by the searches that find one."""
        for order in range(len(canonical.ORDERS)):
            steps = max(1, round(_WORK * effort / (len(self.sizes) + 1)))
            found = canonical.search(self.sizes, self.lengths, self.parts, height, order, steps)
            if found is not None:
                yield "canonical search", found
        for seed in seeds:
            found = packing.search(self.sizes, self.parts, height, seed, _PACKING * effort)
            if found is not None:
                yield "CP-SAT", found


def _plan(offsets: Sequence[int], sizes: Sequence[int], bound: int, algorithm: str) -> Plan:
    height = max((offset + size for offset, size in zip(offsets, sizes) if size), default=0)
    return Plan(tuple(offsets), height, bound, algorithm)


def _round_up(size: int, alignment: int) -> int:
    return (size + alignment - 1) // alignment * alignment
