"""One interval after the other, each as low as it can lie."""

import random

import numpy as np
import pytest

from aotair.plan.interval import columns
from aotair.plan.search import greedy
from aotair.plan.search.arena import Interval


def test_what_ends_too_high_is_placed_first():
    items = columns([Interval(4, 0, 1), Interval(3, 0, 1), Interval(3, 2, 3)], 1)
    seen = list(greedy.place_again(items, np.array([2, 1, 0]), 7, 5))
    assert (seen[-1] + items.sizes).max() == 7 and len(seen) <= 5


def placed(items: list[Interval], order: list[int], alignment: int = 1) -> list[int]:
    return greedy.place(columns(items, alignment), np.array(order, np.int64)).tolist()


def test_nothing_is_placed_nowhere():
    assert placed([], []) == []


def test_each_lies_as_low_as_those_before_let_it():
    items = [Interval(4, 0, 9), Interval(2, 0, 1), Interval(3, 5, 9), Interval(1, 1, 2)]
    assert placed(items, [0, 1, 2, 3]) == [0, 4, 4, 6]
    assert placed(items, [3, 2, 1, 0]) == [3, 1, 0, 0]


def test_a_gap_between_two_is_used_where_it_is_wide_enough():
    items = [Interval(4, 0, 9, fixed=0), Interval(4, 0, 9, fixed=8), Interval(4, 1, 1), Interval(5, 1, 1)]
    assert placed(items, [2, 3]) == [0, 8, 4, 12]
    assert placed(items, [3, 2]) == [0, 8, 4, 12]


def test_below_the_lowest_there_is_a_gap_too():
    items = [Interval(4, 0, 9, fixed=8), Interval(8, 1, 1), Interval(9, 3, 3)]
    assert placed(items, [1, 2]) == [8, 0, 12]


def test_one_that_reaches_beyond_the_next_is_not_laid_over():
    """The gap begins where the highest of those below ends, not the last of them."""
    items = [Interval(10, 0, 9, fixed=0), Interval(2, 0, 0, fixed=12), Interval(3, 0, 9)]
    assert placed(items, [2]) == [0, 12, 14]


def test_offsets_are_multiples_of_each_intervals_alignment():
    items = [Interval(3, 0, 9), Interval(4, 0, 9, alignment=16), Interval(5, 0, 9), Interval(1, 0, 9, alignment=2)]
    found = placed(items, [0, 1, 2, 3])
    assert found == [0, 16, 3, 8]
    assert placed(items, [0, 1, 2, 3], 8) == [0, 16, 8, 24]


def test_what_is_fixed_stays_and_is_not_placed_twice():
    items = [Interval(4, 0, 9, fixed=2), Interval(4, 0, 9)]
    assert placed(items, [0, 1]) == [2, 6] and placed(items, [1]) == [2, 6]


def test_intervals_of_nothing_are_in_nobodys_way():
    items = [Interval(0, 0, 9, fixed=0), Interval(4, 0, 9), Interval(0, 0, 9)]
    assert placed(items, [2, 1, 0]) == [0, 0, 0]


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("greedy by size", [2, 0, 3, 1]),
        ("greedy by first use", [1, 0, 2, 3]),
        ("greedy by duration", [1, 2, 0, 3]),
        ("greedy by area", [2, 1, 0, 3]),
    ],
)
def test_each_order_has_its_own_beginning(name, order):
    items = [Interval(5, 1, 2), Interval(2, 0, 7), Interval(9, 2, 4), Interval(5, 6, 6)]
    assert greedy.order_of(name, columns(items, 1)).tolist() == order


@pytest.mark.parametrize("name", greedy.ORDERS)
def test_ties_go_by_position(name):
    assert greedy.order_of(name, columns([Interval(4, 0, 1)] * 5, 1)).tolist() == [0, 1, 2, 3, 4]
    assert greedy.order_of(name, columns([], 1)).tolist() == []


def test_many_intervals_are_placed_as_few_are():
    """So many that stretches of time are listed apart, and lists have to grow: beside a placement that looks at all."""
    chooser, items = random.Random(2), []
    for _ in range(600):
        first = chooser.randrange(400)
        items.append(Interval(chooser.randint(0, 40), first, first + chooser.choice([0, 1, 3, 30, 300])))
    order = list(range(len(items)))
    chooser.shuffle(order)
    found = placed(items, order)
    before: list[int] = []
    for index in order:
        item = items[index]
        if not item.size:
            continue
        near = [i for i in before if items[i].first <= item.last and item.first <= items[i].last]
        tops = sorted({0, *(found[i] + items[i].size for i in near)})
        free = (
            top for top in tops if all(top + item.size <= found[i] or found[i] + items[i].size <= top for i in near)
        )
        assert found[index] == next(free)
        before.append(index)


def test_placing_again_stops_where_nothing_ends_above_the_bound():
    items = columns([Interval(4, 0, 1), Interval(4, 1, 2)], 1)
    assert len(list(greedy.place_again(items, np.array([0, 1]), 8, 9))) == 1
    assert len(list(greedy.place_again(items, np.array([0, 1]), 7, 9))) == 9, "which it never reaches"
    assert list(greedy.place_again(items, np.array([0, 1]), 7, 0)) == []
