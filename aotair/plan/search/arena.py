"""From intervals to offsets in one arena: a pure function. Several algorithms run, the lowest plan wins."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..interval import Columns, Interval, columns
from . import canonical, greedy, packing
from .fixed import refuse_impossible
from .peaks import held_at_peaks, peak
from .sections import Sections, sections

__all__ = ["Interval", "Plan", "plan_arena"]

_MOST = 1000  # intervals that the searches are tried on
_LEVELS = (0.98, 0.95, 0.9, 0.8, 0.6, 0)  # of the bound: what lives where more is alive is a peak; at last, all
_WORK = 5_000_000  # cells (an interval in a section) that the canonical search looks at, for each order, at effort 1
_STEP = 3_000  # what a step costs besides, in cells
_PACKING = 0.01  # deterministic seconds of CP-SAT, for each seed, at effort 1
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
    """The lowest plan that greedy placements in several orders find, or searches where these leave a gap.

    Sizes are rounded up to `alignment`, a power of two in bytes; so is every offset. `effort` bounds the searches by
    counted work, at 1 a few seconds where a gap stays: the same intervals and effort give the same plan. Raises
    ValueError where intervals are fixed so that there is no plan.
    """
    refuse_impossible(intervals, alignment)
    items, parts = columns(intervals, alignment), sections(intervals)
    ends = (items.fixed + items.sizes)[(items.fixed >= 0) & (items.sizes > 0)]
    bound = max(parts.sums(items.sizes.tolist()) + ends.tolist(), default=0)
    best = Plan((0,) * len(intervals), 0, 0, "greedy by size")
    for number, plan in enumerate(_plans(items, parts, bound, effort)):
        if number == 0 or plan.height < best.height:
            best = plan
        if best.height == bound:
            break
    return best


def _plans(items: Columns, parts: Sections, bound: int, effort: float) -> Iterator[Plan]:
    """One plan after the other, what costs least first; whoever asks stops at the bound."""
    rounds = max(1, min(50, round(effort * 10_000 / (len(items.sizes) + 1))))
    mended = {name: greedy.place_again(items, greedy.order_of(name, items), bound, rounds) for name in greedy.ORDERS}
    height = math.inf
    for name, offsets in itertools.chain(
        ((name, next(plans)) for name, plans in mended.items()),
        _peaks_first(items, parts, bound, min(rounds, 3), effort),
        ((name, offsets) for name, plans in mended.items() for offsets in plans),
    ):
        plan = _plan(offsets, items, bound, name)
        height = min(height, plan.height)
        yield plan
    if len(items.sizes) <= _MOST:
        yield from _lower(items, parts, bound, int(height), effort)


def _peaks_first(
    items: Columns, parts: Sections, bound: int, rounds: int, effort: float
) -> Iterator[tuple[str, np.ndarray]]:
    """What lives where most is alive by a search, at the bound's height, and the rest greedily around it.

    The search may cost more where the placements do.
    """
    effort *= max(1, len(items.sizes) / _MOST)
    for level in _LEVELS:
        top = peak(items, parts, level * bound)
        if not 0 < len(top.groups) <= _MOST:
            continue
        for name, offsets in _searched(top.items, top.parts, bound, effort, () if items.plain and level else _SEEDS):
            around = held_at_peaks(items, top, offsets.tolist())
            order = greedy.order_of("greedy by size", items)
            yield from ((f"peaks first, {name}", found) for found in greedy.place_again(around, order, bound, rounds))


def _lower(items: Columns, parts: Sections, bound: int, height: int, effort: float) -> Iterator[Plan]:
    """Plans of the bound's height; then, between it and `height`, ever lower ones, until the gap is half a percent."""
    equal, unit = peak(items, parts, 0), items.unit()
    low, middle = bound - unit, bound
    while height - low > unit and (low < bound or height - low > low // 200):
        merged = _searched(equal.items, equal.parts, middle, effort, _SEEDS[-1:]) if middle > bound else ()
        found = itertools.chain(
            ((name, held_at_peaks(items, equal, offsets.tolist()).fixed.clip(0)) for name, offsets in merged),
            _searched(items, parts, middle, effort, ()),
        )
        name, offsets = next(found, ("", None))
        if offsets is None:
            low = middle
        else:
            yield (plan := _plan(offsets, items, bound, name))
            height = plan.height
        middle = (low + height) // 2 // unit * unit


def _searched(
    items: Columns, parts: Sections, height: int, effort: float, seeds: Sequence[int]
) -> Iterator[tuple[str, np.ndarray]]:
    """Plans of at most `height`, by the searches that find one: CP-SAT with each of `seeds`."""
    unit, cells = items.unit(), sum(parts.high) - sum(parts.low)
    scaled, height = items.scaled(unit), height // unit
    sizes, lengths = scaled.sizes.tolist(), (items.last - items.first + 1).tolist()
    steps = max(1, round(_WORK * effort / (cells + _STEP)))
    for order in range(len(canonical.ORDERS) if items.plain else 0):
        found = canonical.search_orders(sizes, lengths, parts, height, order, steps)
        if found is not None:
            yield "canonical search", np.array(found, np.int64) * unit
    for seed in seeds:
        found = packing.search_packings(scaled, parts, height, seed, _PACKING * effort)
        if found is not None:
            yield "CP-SAT", np.array(found, np.int64) * unit


def _plan(offsets: np.ndarray, items: Columns, bound: int, algorithm: str) -> Plan:
    height = int(np.where(items.sizes > 0, offsets + items.sizes, 0).max(initial=0))
    return Plan(tuple(offsets.tolist()), height, bound, algorithm)
