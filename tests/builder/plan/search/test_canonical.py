"""The search from the lowest offset up: plans of the best height, and none where there is none."""

import random

import pytest
from hypothesis import given, settings
from intervals import brute_force, small

from aotair.plan.check import violations
from aotair.plan.interval import columns
from aotair.plan.search import canonical, packing
from aotair.plan.search.arena import Interval, Plan
from aotair.plan.search.sections import sections


@settings(max_examples=60, deadline=None)
@given(small)
def test_each_search_finds_a_plan_of_the_best_height_and_none_below(items: list[Interval]):
    best, sizes = brute_force(items), [item.size for item in items]
    lengths, parts = [item.last - item.first + 1 for item in items], sections(items)
    for order in range(len(canonical.ORDERS)):
        found = canonical.search_orders(sizes, lengths, parts, best, order, 100_000)
        assert found is not None and violations(items, Plan(tuple(found), best, best, ""), 1) == []
        assert canonical.search_orders(sizes, lengths, parts, best - 1, order, 100_000) is None
    found = packing.search_packings(columns(items, 1), parts, best, 0, 1.0)
    assert found is not None and violations(items, Plan(tuple(found), best, best, ""), 1) == []
    assert packing.search_packings(columns(items, 1), parts, best - 1, 0, 1.0) is None


def searched(items: list[Interval], height: int, order: int = 0, steps: int = 100_000) -> list[int] | None:
    lengths = [item.last - item.first + 1 for item in items]
    return canonical.search_orders([item.size for item in items], lengths, sections(items), height, order, steps)


ORDERS = range(len(canonical.ORDERS))
# Greedy by size ends at 10: the three of the middle leave a gap that the last does not fit in.
TIGHT = [Interval(4, 0, 1), Interval(3, 1, 3), Interval(2, 0, 0), Interval(3, 2, 4), Interval(4, 4, 5)]


@pytest.mark.parametrize("order", ORDERS)
def test_one_alone_lies_at_the_bottom(order):
    assert searched([Interval(5, 2, 9)], 5, order) == [0]
    assert searched([Interval(5, 2, 9)], 4, order) is None


@pytest.mark.parametrize("order", ORDERS)
def test_what_meets_lies_apart_and_what_does_not_lies_together(order):
    items = [Interval(5, 0, 1), Interval(5, 1, 2), Interval(5, 2, 3)]
    found = searched(items, 10, order)
    assert sorted(found) in ([0, 0, 5], [0, 5, 5]) and violations(items, Plan(tuple(found), 10, 10, ""), 1) == []


@pytest.mark.parametrize("order", ORDERS)
def test_intervals_of_nothing_are_left_out(order):
    items = [Interval(0, 0, 9), Interval(3, 0, 4), Interval(0, 2, 2), Interval(3, 3, 9)]
    found = searched(items, 6, order)
    assert found[0] == found[2] == 0 and {found[1], found[3]} == {0, 3}


@pytest.mark.parametrize("order", ORDERS)
def test_a_tight_set_is_planned_at_its_bound(order):
    bound = max(sections(TIGHT).sums([item.size for item in TIGHT]))
    found = searched(TIGHT, bound, order)
    assert found is not None and violations(TIGHT, Plan(tuple(found), bound, bound, ""), 1) == []
    assert searched(TIGHT, bound - 1, order) is None


def test_too_few_steps_find_nothing():
    bound = max(sections(TIGHT).sums([item.size for item in TIGHT]))
    assert searched(TIGHT, bound, steps=0) is None
    assert searched(TIGHT, bound, steps=len(TIGHT)) is not None or searched(TIGHT, bound, steps=1000) is not None
    assert searched(TIGHT, bound, steps=len(TIGHT) - 1) is None, "each takes a step"


def test_a_choice_that_leads_nowhere_is_taken_back():
    """Where only some orders reach the bound, the search has to go back, and finds what an exact one finds."""
    chooser, tried = random.Random(7), 0
    for _ in range(200):
        items = []
        for _ in range(12):
            first = chooser.randrange(6)
            items.append(Interval(chooser.randint(1, 6), first, first + chooser.randrange(3)))
        bound = max(sections(items).sums([item.size for item in items]))
        found = searched(items, bound, steps=len(items))
        again = searched(items, bound)
        exact = packing.search_packings(columns(items, 1), sections(items), bound, 0, 1.0)
        assert (again is None) == (exact is None), items
        if found is None and again is not None:
            tried += 1
            assert violations(items, Plan(tuple(again), bound, bound, ""), 1) == []
    assert tried >= 5, "some need more steps than there are intervals"


def test_a_search_is_repeated_exactly():
    assert searched(TIGHT, 9) == searched(list(TIGHT), 9)


@pytest.mark.parametrize(
    ("order", "first"),
    [(0, 2), (1, 1), (2, 2), (3, 0)],  # who is large where most is alive, long, long where most is alive, large
)
def test_each_order_begins_with_what_it_is_for(order, first):
    """All lie at the bottom but for those that meet them: who is placed first lies at 0."""
    items = [Interval(9, 4, 4), Interval(1, 3, 9), Interval(5, 0, 3), Interval(5, 0, 1), Interval(4, 1, 3)]
    found = searched(items, 1000, order)
    assert found[first] == 0 and violations(items, Plan(tuple(found), 1000, 0, ""), 1) == []


def test_what_is_equal_is_placed_in_its_order():
    assert searched([Interval(3, 0, 5)] * 4, 12) == [0, 3, 6, 9]
