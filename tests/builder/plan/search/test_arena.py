"""The planner against its independent checker: right, never below the bound, the best of small sets."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from intervals import aligned, alignments, brute_force, intervals, small

from aotair.plan.check import violations
from aotair.plan.interval import columns
from aotair.plan.search import arena, greedy
from aotair.plan.search.arena import Interval, Plan, plan_arena
from aotair.plan.search.sections import sections


@settings(max_examples=400, deadline=None)
@given(intervals, alignments)
def test_a_plan_is_right_and_not_below_the_bound(items: list[Interval], alignment: int):
    plan = plan_arena(items, alignment)
    assert violations(items, plan, alignment) == []
    assert plan.height >= plan.lower_bound
    assert plan.height <= sum(-(-item.size // alignment) * alignment for item in items)
    assert plan == plan_arena(list(items), alignment)


def test_lifetimes_include_both_ends():
    touching = [Interval(10, 0, 3), Interval(10, 3, 5)]
    apart = [Interval(10, 0, 3), Interval(10, 4, 5)]
    assert plan_arena(touching, 1).height == 20
    assert plan_arena(apart, 1).height == 10
    assert plan_arena(touching, 1).lower_bound == 20


def test_nothing_needs_nothing():
    assert plan_arena([], 64) == Plan((), 0, 0, "greedy by size")
    assert plan_arena([Interval(0, 0, 9)], 64).height == 0


# ---- intervals that must lie somewhere -------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(aligned, alignments, st.randoms(use_true_random=False))
def test_what_is_fixed_stays_and_all_is_aligned(items: list[Interval], alignment: int, random: random.Random):
    offsets = plan_arena(items, alignment, 0.1).offsets
    chance = random.random()
    fixed = [replace(item, fixed=offset) if random.random() < chance else item for item, offset in zip(items, offsets)]
    plan = plan_arena(fixed, alignment, 0.1)
    assert violations(fixed, plan, alignment) == []
    for item, offset in zip(fixed, plan.offsets):
        assert item.fixed in (None, offset)
        assert offset % max(item.alignment, alignment) == 0
    assert plan.height >= plan.lower_bound >= plan_arena(items, alignment, 0.1).lower_bound
    assert plan == plan_arena(fixed, alignment, 0.1)


def test_what_is_fixed_beside_the_peak_is_not_laid_over():
    """One that lives at the peak lives on until something fixed comes that does not."""
    rows = [
        (256, 0, 1, 64),
        (256, 0, 1, 320),
        (32, 0, 9, 0),
        (256, 1, 2, None),
        (256, 1, 11, 576),
        (512, 2, 3, None),
        (256, 3, 9, None),
        (16, 6, 11, 832),
        (128, 7, 8, None),
        (64, 8, 11, 896),
        (16, 8, 11, 960),
        (64, 10, 11, 1024),
    ]
    items = [Interval(*row) for row in rows]
    assert not violations(items, plan_arena(items, 64), 64)


# ---- the searches ----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(small)
def test_the_suite_finds_the_best_plan_of_small_sets(items: list[Interval]):
    plan = plan_arena(items, 1)
    assert violations(items, plan, 1) == []
    assert plan.height == brute_force(items)


def test_a_gap_that_greedy_leaves_is_closed_within_counted_work():
    generator = random.Random(4)
    items = []
    for _ in range(60):
        first = generator.randrange(40)
        items.append(Interval(generator.randrange(1, 40), first, first + generator.randrange(12)))
    plans = [plan_arena(items, 1, effort) for effort in (1.0, 1.0)]
    assert plans[0] == plans[1], "work is counted, not timed"
    given = columns(items, 1)
    by_size = greedy.place(given, greedy.order_of("greedy by size", given))
    assert plans[0].height < (by_size + given.sizes).max()
    assert violations(items, plans[0], 1) == []


# ---- in which order they are tried -----------------------------------------------------------------------------------


def test_where_the_first_placement_reaches_the_bound_nothing_else_is_tried(monkeypatch):
    monkeypatch.setattr(arena, "_searched", lambda *_: pytest.fail("a search"))
    found = plan_arena([Interval(8, 0, 1), Interval(8, 1, 2)], 8)
    assert found == Plan((0, 8), 16, 16, "greedy by size")


def gaps(count: int = 60, seed: int = 4) -> list[Interval]:
    """Intervals that a placement by size does not plan at their bound."""
    generator, items = random.Random(seed), []
    for _ in range(count):
        first = generator.randrange(40)
        items.append(Interval(generator.randrange(1, 40), first, first + generator.randrange(12)))
    return items


def test_more_effort_never_makes_a_plan_higher():
    for seed in range(3):
        items = gaps(40, seed)
        heights = [plan_arena(items, 1, effort).height for effort in (0.0, 0.05, 0.5)]
        assert heights == sorted(heights, reverse=True)


def test_of_equal_plans_the_first_is_kept():
    """Whoever is first costs least; a later one has to be lower."""
    items = [Interval(3, 0, 3), Interval(2, 1, 1), Interval(2, 2, 2)]
    assert plan_arena(items, 1).algorithm == "greedy by size"


def test_fixed_ones_raise_the_bound():
    found = plan_arena([Interval(8, 0, 1, fixed=64), Interval(8, 0, 1)], 8)
    assert (found.lower_bound, found.height, found.offsets[0]) == (72, 72, 64)
    nothing = plan_arena([Interval(0, 0, 1, fixed=64), Interval(8, 0, 1)], 8)
    assert (nothing.lower_bound, nothing.height) == (8, 8), "what takes nothing ends nowhere"


def test_too_many_for_the_searches_are_placed(monkeypatch):
    items = gaps(30)
    searched = plan_arena(items, 1, 0.2)
    monkeypatch.setattr(arena, "_MOST", 5)
    monkeypatch.setattr(arena, "_lower", lambda *_: pytest.fail("a search of all"))
    placed = plan_arena(items, 1, 0.2)
    assert placed.height >= searched.height and violations(items, placed, 1) == []
    assert placed.algorithm.startswith("greedy") or placed.algorithm.startswith("peaks first")


@pytest.mark.parametrize("step", range(6))
def test_peaks_are_planned_at_each_level_that_has_some(step):
    """Whatever level's plan is kept, it is one."""
    items = gaps(30, step)
    bound = plan_arena(items, 1, 0).lower_bound
    given, parts = columns(items, 1), sections(items)
    found = list(arena._peaks_first(given, parts, bound, 1, 0.2))
    for name, offsets in found:
        assert name.startswith("peaks first, ")
        assert violations(items, Plan(tuple(offsets.tolist()), 1 << 40, bound, ""), 1) == []


def test_the_last_search_goes_between_the_bound_and_what_is_known():
    """A set whose best plan is above its bound: each plan that is found is lower than the one before."""
    wheel = [
        Interval(2, 0, 2),
        Interval(2, 2, 4),
        Interval(2, 4, 6),
        Interval(3, 1, 3),
        Interval(3, 3, 5),
        Interval(1, 0, 6),
    ]
    given, parts = columns(wheel, 1), sections(wheel)
    bound = max(parts.sums(given.sizes.tolist()))
    heights = [plan.height for plan in arena._lower(given, parts, bound, bound + 9, 1.0)]
    assert heights == sorted(set(heights), reverse=True)
    for plan in arena._lower(given, parts, bound, bound + 9, 1.0):
        assert violations(wheel, plan, 1) == [] and plan.lower_bound == bound


def test_where_no_gap_is_left_there_is_no_last_search():
    items = [Interval(8, 0, 1), Interval(8, 1, 2)]
    given, parts = columns(items, 1), sections(items)
    assert list(arena._lower(given, parts, 16, 16, 1.0)) == []


def test_the_canonical_search_is_left_to_what_may_lie_anywhere():
    items = gaps(12)
    given, parts = columns(items, 1), sections(items)
    names = {name for name, _ in arena._searched(given, parts, 1000, 0.5, (0,))}
    assert names == {"canonical search", "CP-SAT"}
    given = columns([replace(items[0], fixed=0), *items[1:]], 1)
    assert {name for name, _ in arena._searched(given, parts, 1000, 0.5, (0,))} == {"CP-SAT"}
    assert list(arena._searched(given, parts, 1000, 0.5, ())) == []
