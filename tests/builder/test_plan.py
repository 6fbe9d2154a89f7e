"""The planner against its independent checker, and the checker against planted faults."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotair.plan.check import violations
from aotair.plan.interval import columns
from aotair.plan.search import canonical, greedy, packing
from aotair.plan.search.arena import Interval, Plan, plan_arena
from aotair.plan.search.peaks import held_at_peaks, peak
from aotair.plan.search.sections import sections

intervals = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 40), st.integers(0, 15)).map(
        lambda t: Interval(t[0], t[1], t[1] + t[2])
    ),
    max_size=60,
)
alignments = st.sampled_from([1, 64, 512])


@settings(max_examples=400, deadline=None)
@given(intervals, alignments)
def test_a_plan_is_right_and_not_below_the_bound(items: list[Interval], alignment: int):
    plan = plan_arena(items, alignment)
    assert violations(items, plan, alignment) == []
    assert plan.height >= plan.lower_bound
    assert plan.height <= sum(-(-item.size // alignment) * alignment for item in items)
    assert plan == plan_arena(list(items), alignment)


@settings(max_examples=400, deadline=None)
@given(intervals, st.randoms(use_true_random=False))
def test_a_planted_overlap_is_found(items: list[Interval], random):
    plan = plan_arena(items, 1)
    pairs = [
        (i, j)
        for i, a in enumerate(items)
        for j, b in enumerate(items)
        if i < j and a.size and b.size and a.first <= b.last and b.first <= a.last
    ]
    if not pairs:
        return
    i, j = random.choice(pairs)
    offsets = list(plan.offsets)
    offsets[j] = max(0, offsets[i] + random.randint(-items[j].size + 1, items[i].size - 1))
    broken = replace(plan, offsets=tuple(offsets), height=plan.height + items[j].size + items[i].size)
    assert f"intervals {i} and {j} overlap" in violations(items, broken, 1) or (
        f"intervals {j} and {i} overlap" in violations(items, broken, 1)
    )


def test_other_faults_are_found():
    items = [Interval(100, 0, 1), Interval(100, 1, 2)]
    assert violations(items, Plan((0, 100), 200, 200, ""), 4) == []
    assert "does not divide" in violations(items, Plan((2, 104), 204, 200, ""), 4)[0]
    assert "above the height" in violations(items, Plan((0, 100), 150, 200, ""), 4)[0]
    assert "offsets for" in violations(items, Plan((0,), 100, 200, ""), 4)[0]
    assert violations(items, Plan((0, -4), 200, 200, ""), 4)


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


def overlap(items: list[Interval], i: int, j: int) -> bool:
    """Whether two intervals that are fixed share a byte at some step."""
    a, b = items[i], items[j]
    together = a.first <= b.last and b.first <= a.last
    return bool(a.size and b.size) and together and a.fixed < b.fixed + b.size and b.fixed < a.fixed + a.size


own_alignments = st.sampled_from([1, 1, 1, 16, 256, 4096])
aligned = intervals.flatmap(
    lambda items: st.lists(own_alignments, min_size=len(items), max_size=len(items)).map(
        lambda own: [replace(item, alignment=a) for item, a in zip(items, own)]
    )
)


@settings(max_examples=300, deadline=None)
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


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9), st.integers(0, 5), st.integers(0, 400)), max_size=12))
def test_fixed_intervals_that_overlap_are_refused(rows: list[tuple[int, int, int, int]]):
    items = [Interval(size, first, first + length, offset) for size, first, length, offset in rows]
    pairs = {(i, j) for i in range(len(items)) for j in range(len(items)) if i != j and overlap(items, i, j)}
    if not pairs:
        assert plan_arena(items, 1).offsets == tuple(item.fixed for item in items)
        return
    with pytest.raises(ValueError, match="are fixed where they overlap") as caught:
        plan_arena(items, 1)
    words = str(caught.value).split()
    assert (int(words[1]), int(words[3])) in pairs


@pytest.mark.parametrize(("item", "alignment"), [(Interval(8, 0, 1, 8), 16), (Interval(8, 0, 1, 8, 16), 1),
                                                 (Interval(8, 0, 1, -8), 1)])  # fmt: skip
def test_a_fixed_offset_that_is_not_aligned_is_refused(item: Interval, alignment: int):
    with pytest.raises(ValueError, match="does not divide"):
        plan_arena([item], alignment)


def test_broken_promises_are_found():
    items = [Interval(8, 0, 1, 16), Interval(8, 0, 1, None, 32)]
    assert violations(items, plan_arena(items, 1), 1) == []
    assert "has to lie at 16" in violations(items, Plan((40, 0), 48, 24, ""), 1)[0]
    assert "its own 32" in violations(items, Plan((16, 24), 32, 24, ""), 1)[0]


def test_what_is_fixed_beside_the_peak_is_not_laid_over():
    """One that lives at the peak lives on until something fixed comes that does not."""
    rows = [
        (256, 0, 1, 64), (256, 0, 1, 320), (32, 0, 9, 0), (256, 1, 2, None), (256, 1, 11, 576), (512, 2, 3, None),
        (256, 3, 9, None), (16, 6, 11, 832), (128, 7, 8, None), (64, 8, 11, 896), (16, 8, 11, 960), (64, 10, 11, 1024),
    ]  # fmt: skip
    items = [Interval(*row) for row in rows]
    assert not violations(items, plan_arena(items, 64), 64)


def test_the_search_keeps_what_is_fixed_and_aligned():
    items = [Interval(8, 0, 3, 8), Interval(4, 0, 1, None, 16), Interval(8, 1, 2), Interval(4, 2, 3, None, 4)]
    found = packing.search_packings(columns(items, 1), sections(items), 20, 0, 1.0)
    assert found is not None and violations(items, Plan(tuple(found), 20, 20, ""), 1) == []
    assert packing.search_packings(columns(items, 1), sections(items), 19, 0, 1.0) is None


# ---- the searches ----------------------------------------------------------------------------------------------------


def live(items: list[Interval]) -> list[int]:
    return [sum(item.size for item in items if item.first <= step <= item.last) for step in range(60)]


@settings(max_examples=300, deadline=None)
@given(intervals)
def test_sections_are_the_largest_sets_that_live_together(items: list[Interval]):
    parts = sections(items)
    assert max(parts.sums([item.size for item in items]), default=0) == max(live(items))
    members = [set(found) for found in parts.members()]
    assert not any(a <= b for i, a in enumerate(members) for j, b in enumerate(members) if i != j)
    for i, a in enumerate(items):
        for j, b in enumerate(items[:i]):
            meet = a.first <= b.last and b.first <= a.last
            assert meet == any({i, j} <= found for found in members)


def brute_force(items: list[Interval]) -> int:
    """The least height of all orders of placement: one of them gives the best plan."""
    given = columns(items, 1)
    orders = itertools.permutations(range(len(items)))
    return min(int((greedy.place(given, np.array(order)) + given.sizes).max()) for order in orders)


small = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 5), st.integers(0, 3)).map(lambda t: Interval(t[0], t[1], t[1] + t[2])),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(small)
def test_the_suite_finds_the_best_plan_of_small_sets(items: list[Interval]):
    plan = plan_arena(items, 1)
    assert violations(items, plan, 1) == []
    assert plan.height == brute_force(items)


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


def test_what_ends_too_high_is_placed_first():
    items = columns([Interval(4, 0, 1), Interval(3, 0, 1), Interval(3, 2, 3)], 1)
    seen = list(greedy.place_again(items, np.array([2, 1, 0]), 7, 5))
    assert (seen[-1] + items.sizes).max() == 7 and len(seen) <= 5
