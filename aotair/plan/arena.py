"""From intervals to offsets in one arena: a pure function. Several algorithms run, the lowest plan wins."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from . import canonical, greedy, packing
from .fixed import refuse_impossible
from .interval import Columns, Interval, columns
from .sections import Sections, sections

__all__ = ["Interval", "Plan", "largest_live_sum", "plan_arena"]

_MOST = 1000  # intervals that the searches are tried on
_WORK = 15_000  # intervals that the canonical search looks at, for each order, at effort 1
_PACKING = 0.03  # deterministic seconds of CP-SAT, for each seed, at effort 1
_SEEDS = (0, 2)


@dataclass(frozen=True)
class Plan:
    """`offsets` in bytes, in the intervals' order; `height` is the arena's size; no plan can be lower than
    `lower_bound`: the largest sum of sizes alive at one step, or the end of what is fixed highest."""

    offsets: tuple[int, ...]
    height: int
    lower_bound: int
    algorithm: str


def plan_arena(intervals: Sequence[Interval], alignment: int, effort: float = 1.0) -> Plan:
    """The lowest plan that greedy placements in several orders find, or a search where these leave a gap.

    Sizes are rounded up to `alignment`, a power of two in bytes; so is every offset. `effort` bounds the searches by
    counted work, at 1 a second or so for each gap: the same intervals and effort give the same plan. Raises ValueError
    where intervals are fixed so that there is no plan.
    """
    refuse_impossible(intervals, alignment)
    items = columns(intervals, alignment)
    ends = (items.fixed + items.sizes)[(items.fixed >= 0) & (items.sizes > 0)]
    bound = max(largest_live_sum(intervals, items.sizes.tolist()), *ends.tolist(), 0)
    best = Plan((0,) * len(intervals), 0, 0, "greedy by size")
    for number, plan in enumerate(_plans(intervals, items, bound, effort)):
        if number == 0 or plan.height < best.height:
            best = plan
        if best.height == bound:
            break
    return best


def largest_live_sum(intervals: Sequence[Interval], sizes: Sequence[int]) -> int:
    """The largest sum of `sizes` over the intervals that are alive at one step."""
    return max(sections(intervals).sums(sizes), default=0)


def _plans(intervals: Sequence[Interval], items: Columns, bound: int, effort: float) -> Iterator[Plan]:
    """One plan after the other; whoever asks stops at the bound."""
    height = math.inf
    for name in greedy.ORDERS:
        rounds = _rounds(len(intervals), effort)
        for offsets in greedy.place_again(items, greedy.order_of(name, items), bound, rounds):
            plan = _plan(offsets, items, bound, name)
            height = min(height, plan.height)
            yield plan
    if len(intervals) <= _MOST:
        yield from _searched(intervals, items, bound, height, effort)


def _rounds(count: int, effort: float) -> int:
    """How often a greedy order is mended: less often where there is much to place."""
    return max(1, min(50, round(effort * 10_000 / (count + 1))))


def _searched(intervals: Sequence[Interval], items: Columns, bound: int, height: int, effort: float) -> Iterator[Plan]:
    """Plans of the bound's height; then, between it and `height`, ever lower ones, until the gap is half a percent."""
    unit = items.unit()
    finder = _Finder(items.scaled(unit), sections(intervals))
    low, high = bound // unit, height // unit
    for name, offsets in finder.plans(low, effort):
        yield _plan(np.array(offsets) * unit, items, bound, name)
    while high - low > max(1, low // 200):  # half a percent
        middle = (low + high) // 2
        name, offsets = next(finder.plans(middle, effort, seeds=()), ("", None))
        if offsets is None:
            low = middle
            continue
        plan = _plan(np.array(offsets) * unit, items, bound, name)
        high = plan.height // unit
        yield plan


@dataclass(frozen=True)
class _Finder:
    items: Columns
    parts: Sections

    def plans(self, height: int, effort: float, seeds: Sequence[int] = _SEEDS) -> Iterator[tuple[str, list[int]]]:
        """Plans of at most `height`, by the searches that find one."""
        sizes, lengths = self.items.sizes.tolist(), (self.items.last - self.items.first + 1).tolist()
        steps = max(1, round(_WORK * effort / (len(sizes) + 1)))
        for order in range(len(canonical.ORDERS) if self.items.plain else 0):
            found = canonical.search(sizes, lengths, self.parts, height, order, steps)
            if found is not None:
                yield "canonical search", found
        for seed in seeds:
            found = packing.search(self.items, self.parts, height, seed, _PACKING * effort)
            if found is not None:
                yield "CP-SAT", found


def _plan(offsets: np.ndarray, items: Columns, bound: int, algorithm: str) -> Plan:
    height = int(np.where(items.sizes > 0, offsets + items.sizes, 0).max(initial=0))
    return Plan(tuple(offsets.tolist()), height, bound, algorithm)
