"""Intervals as arrays: sizes rounded up, what divides each offset, and the same in larger units."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given, settings
from intervals import aligned, alignments

from aotair.plan.check import violations
from aotair.plan.interval import Interval, columns
from aotair.plan.search import greedy
from aotair.plan.search.arena import Plan


def test_an_interval_may_lie_anywhere_unless_it_says_so():
    item = Interval(8, 1, 3)
    assert (item.size, item.first, item.last, item.fixed, item.alignment) == (8, 1, 3, None, 1)
    with pytest.raises(FrozenInstanceError):
        item.size = 9


@pytest.mark.parametrize(
    ("size", "alignment", "rounded"), [(0, 64, 0), (1, 64, 64), (64, 64, 64), (65, 64, 128), (7, 1, 7)]
)
def test_sizes_are_rounded_up_to_the_plans_alignment(size, alignment, rounded):
    assert columns([Interval(size, 0, 0)], alignment).sizes.tolist() == [rounded]


def test_no_interval_at_all():
    items = columns([], 64)
    assert items.alignment == 64 and items.plain
    assert all(
        len(column) == 0 and column.dtype == np.int64
        for column in (items.sizes, items.first, items.last, items.fixed, items.alignments)
    )
    assert items.unit() == 0


def test_each_column_is_in_the_intervals_order():
    items = columns([Interval(5, 0, 3), Interval(9, 2, 7, fixed=32, alignment=16), Interval(1, 4, 4, alignment=2)], 8)
    assert items.sizes.tolist() == [8, 16, 8]
    assert items.first.tolist() == [0, 2, 4] and items.last.tolist() == [3, 7, 4]
    assert items.fixed.tolist() == [-1, 32, -1], "-1 stands for a free one"
    assert items.alignments.tolist() == [8, 16, 8], "the greater of the plan's and its own"


def test_what_is_fixed_at_zero_is_fixed():
    assert columns([Interval(8, 0, 0, fixed=0)], 8).fixed.tolist() == [0]


@pytest.mark.parametrize(
    ("items", "plain"),
    [
        ([], True),
        ([Interval(8, 0, 1)], True),
        ([Interval(8, 0, 1, alignment=4)], True),
        ([Interval(8, 0, 1, fixed=0)], False),
        ([Interval(8, 0, 1), Interval(8, 0, 1, alignment=16)], False),
    ],
)
def test_plain_is_what_may_lie_anywhere(items, plain):
    assert columns(items, 8).plain is plain


@pytest.mark.parametrize(
    ("items", "unit"),
    [
        ([Interval(24, 0, 1), Interval(40, 0, 1)], 8),
        ([Interval(24, 0, 1), Interval(48, 0, 1)], 24),
        ([Interval(24, 0, 1), Interval(48, 0, 1, fixed=40)], 8),
        ([Interval(48, 0, 1), Interval(48, 0, 1, alignment=32)], 16),
        ([Interval(48, 0, 1), Interval(48, 0, 1, fixed=0)], 48),
    ],
)
def test_the_unit_divides_sizes_fixed_offsets_and_own_alignments(items, unit):
    assert columns(items, 8).unit() == unit


def test_in_larger_units_the_same_intervals_are_small():
    items = columns([Interval(24, 0, 1), Interval(16, 1, 2, fixed=32), Interval(8, 2, 3, alignment=64)], 8)
    small = items.scaled(8)
    assert small.alignment == 1 and small.sizes.tolist() == [3, 2, 1]
    assert small.fixed.tolist() == [-1, 4, -1], "a free one stays free"
    assert small.alignments.tolist() == [1, 1, 8]
    assert small.first is items.first and small.last is items.last
    assert items.scaled(16).alignments.tolist() == [1, 1, 4], "never below one"


@settings(max_examples=60, deadline=None)
@given(aligned.filter(bool), alignments)
def test_a_plan_in_larger_units_is_a_plan(items: list[Interval], alignment: int):
    given = columns(items, alignment)
    unit = max(given.unit(), 1)
    scaled = given.scaled(unit)
    offsets = greedy.place(scaled, greedy.order_of("greedy by size", scaled)) * unit
    height = int((offsets + given.sizes).max())
    assert violations(items, Plan(tuple(offsets.tolist()), height, 0, ""), alignment) == []
