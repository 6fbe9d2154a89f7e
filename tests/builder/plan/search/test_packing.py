"""The search with CP-SAT: plans of a given height where there are some, within counted work."""

import random
import sys

import pytest

from aotair.plan.check import violations
from aotair.plan.interval import columns
from aotair.plan.search import packing
from aotair.plan.search.arena import Interval, Plan
from aotair.plan.search.sections import sections


def test_the_search_keeps_what_is_fixed_and_aligned():
    items = [Interval(8, 0, 3, 8), Interval(4, 0, 1, None, 16), Interval(8, 1, 2), Interval(4, 2, 3, None, 4)]
    found = packing.search_packings(columns(items, 1), sections(items), 20, 0, 1.0)
    assert found is not None and violations(items, Plan(tuple(found), 20, 20, ""), 1) == []
    assert packing.search_packings(columns(items, 1), sections(items), 19, 0, 1.0) is None


def packed(items: list[Interval], height: int, seed: int = 0, effort: float = 1.0) -> list[int] | None:
    return packing.search_packings(columns(items, 1), sections(items), height, seed, effort)


TIGHT = [Interval(4, 0, 1), Interval(3, 1, 3), Interval(2, 0, 0), Interval(3, 2, 4), Interval(4, 4, 5)]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_tight_set_is_packed_at_its_bound_and_not_below(seed):
    found = packed(TIGHT, 7, seed)
    assert found is not None and violations(TIGHT, Plan(tuple(found), 7, 7, ""), 1) == []
    assert packed(TIGHT, 6, seed) is None


@pytest.mark.parametrize("seed", [0, 2])
def test_the_same_seed_gives_the_same_plan(seed):
    assert packed(TIGHT, 9, seed) == packed(list(TIGHT), 9, seed)


@pytest.mark.parametrize(
    ("item", "height"), [(Interval(9, 0, 1), 8), (Interval(4, 0, 1, fixed=5), 8), (Interval(1, 0, 1, fixed=8), 8)]
)
def test_what_does_not_fit_alone_is_not_searched_for(item, height, monkeypatch):
    """Nor is the solver imported."""
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    assert packed([Interval(1, 0, 1), item], height) is None
    with pytest.raises(ImportError):
        packed([Interval(1, 0, 1)], 8)


def test_without_effort_nothing_is_found():
    chooser, items = random.Random(3), []
    for _ in range(60):
        first = chooser.randrange(30)
        items.append(Interval(chooser.randint(1, 40), first, first + chooser.randrange(12)))
    bound = max(sections(items).sums([item.size for item in items]))
    assert packed(items, bound, effort=0.0) is None


def test_alignments_and_fixed_offsets_hold():
    items = [Interval(3, 0, 2, alignment=8), Interval(5, 0, 2, fixed=3), Interval(8, 1, 2, alignment=16)]
    assert packed(items, 23) is None
    found = packed(items, 24)
    assert found is not None and violations(items, Plan(tuple(found), 24, 24, ""), 1) == []


def test_two_that_never_meet_may_lie_together():
    assert packed([Interval(5, 0, 1), Interval(5, 2, 3)], 5) == [0, 0]
    assert packed([Interval(5, 0, 2), Interval(5, 2, 3)], 9) is None
