"""What lives where most is alive, planned first: which intervals, how they are merged, and where they then lie."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from intervals import aligned, live

from aotair.plan.check import violations
from aotair.plan.interval import columns
from aotair.plan.search import greedy
from aotair.plan.search.arena import Interval, Plan
from aotair.plan.search.peaks import Peak, held_at_peaks, peak
from aotair.plan.search.sections import sections


@settings(max_examples=300, deadline=None)
@given(aligned, st.sampled_from([0, 0.5, 0.9, 0.98]), st.randoms(use_true_random=False))
def test_a_plan_of_the_peaks_is_a_part_of_a_plan(items: list[Interval], share: float, random: random.Random):
    given, parts = columns(items, 1), sections(items)
    bound = max(parts.sums(given.sizes.tolist()), default=0)
    top = peak(given, parts, share * bound)
    steps = [step for step, alive in enumerate(live(items)) if alive > share * bound]
    tall = [item.size and any(item.first <= step <= item.last for step in steps) for item in items]
    assert sorted(i for group in top.groups for i in group) == [i for i, inside in enumerate(tall) if inside]
    order = list(range(len(top.groups)))
    random.shuffle(order)
    around = held_at_peaks(given, top, greedy.place(top.items, np.array(order, np.int64)))
    offsets = greedy.place(around, greedy.order_of("greedy by size", around))
    assert violations(items, Plan(tuple(offsets.tolist()), 1 << 40, bound, ""), 1) == []


def of(items: list[Interval], level: float, alignment: int = 1) -> Peak:
    return peak(columns(items, alignment), sections(items), level)


def test_where_nothing_is_alive_there_is_no_peak():
    found = of([], 0)
    assert found.groups == () and found.parts.count == 0 and len(found.items.sizes) == 0
    assert of([Interval(8, 0, 1)], 8).groups == (), "more than the level, not as much"
    assert of([Interval(0, 0, 1)], 0).groups == (), "what takes nothing belongs to none"


def test_those_of_the_crowded_steps_belong_to_it():
    items = [Interval(4, 0, 9), Interval(4, 2, 3), Interval(4, 5, 6), Interval(1, 8, 9)]
    found = of(items, 6)
    assert sorted(sum(found.groups, ())) == [0, 1, 2]
    assert sorted(sum(of(items, 4).groups, ())) == [0, 1, 2, 3]
    assert of(items, 8).groups == ()


def test_what_then_meets_the_same_others_becomes_one():
    """The two that live one step more or less than each other are alike once the rest is forgotten."""
    items = [Interval(4, 0, 4), Interval(6, 1, 4), Interval(5, 4, 5), Interval(1, 0, 0)]
    found = of(items, 14)
    assert found.groups == ((0, 1, 2),)
    assert found.items.sizes.tolist() == [15] and found.parts.count == 1


def test_the_longest_of_a_group_comes_first():
    items = [Interval(1, 3, 4), Interval(1, 0, 9), Interval(1, 2, 6)]
    assert of(items, 2).groups == ((1, 2, 0),)


@pytest.mark.parametrize("alone", [Interval(2, 0, 4, fixed=0), Interval(2, 0, 4, alignment=8)])
def test_what_is_fixed_or_aligned_stays_alone(alone):
    items = [Interval(4, 0, 4), alone, Interval(4, 0, 4)]
    found = of(items, 5)
    assert sorted(found.groups) == [(0, 2), (1,)]
    at = found.groups.index((1,))
    assert found.items.fixed[at] == (-1 if alone.fixed is None else 0)
    assert found.items.alignments[at] == alone.alignment


def test_what_is_fixed_belongs_to_it_wherever_it_lives():
    items = [Interval(8, 0, 1), Interval(1, 7, 9, fixed=0), Interval(1, 7, 9), Interval(0, 7, 9, fixed=4)]
    assert sorted(sum(of(items, 7).groups, ())) == [0, 1]


def test_groups_are_held_one_above_the_other():
    items = [Interval(4, 0, 4), Interval(6, 1, 4), Interval(5, 4, 5), Interval(1, 0, 0)]
    given = columns(items, 1)
    held = held_at_peaks(given, of(items, 14), [7])
    assert held.fixed.tolist() == [7, 11, 17, -1] and given.fixed.tolist() == [-1] * 4, "which stay as they are"
    with pytest.raises(ValueError, match="shorter"):
        held_at_peaks(given, of(items, 14), [])


def test_sizes_of_a_group_are_those_that_are_rounded_up():
    found = of([Interval(1, 0, 1), Interval(9, 0, 1)], 0, 8)
    assert found.items.sizes.tolist() == [24] and found.items.alignment == 8
